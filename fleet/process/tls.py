"""TLS from files that are replaced while the process runs: new connections use the new ones."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import grpc
from cryptography import x509

from fleet.errors import FieldError, InvalidInput
from fleet.process.settings import TlsSettings

_Stamp = tuple[tuple[int, int, int], ...]


class TlsFiles:
    """Certificate, key and CAs of one process.

    The files are read once at construction (InvalidInput names what is wrong with which) and again whenever one of them has
    changed, looked at when a connection comes in. A new set that does not load leaves the old one in force and ``error``
    set, until the next good one.
    """

    def __init__(self, settings: TlsSettings) -> None:
        if (settings.cert is None) != (settings.key is None):
            missing = "key" if settings.key is None else "cert"
            raise InvalidInput([FieldError(f"tls.{missing}", "cert and key are wanted together")])
        if settings.client_ca is not None and settings.cert is None:
            raise InvalidInput([FieldError("tls.client_ca", "wants tls.cert and tls.key as well")])
        self._settings = settings
        self.error = ""
        self._stamp = self._look()
        self._server = self._load_server()
        self._client = self._load_client()
        self._grpc_seen: _Stamp = self._stamp

    @property
    def serves(self) -> bool:
        """True when this process serves TLS."""
        return self._settings.cert is not None

    @property
    def secures_channels(self) -> bool:
        """True when outgoing connections without a scheme should be encrypted: there is a CA to verify them by."""
        return self._settings.ca is not None

    @property
    def verifies_clients(self) -> bool:
        return self._settings.client_ca is not None

    def server_context(self) -> ssl.SSLContext:
        """For listening sockets. The context follows the files by itself; pass it on once."""
        if self._server is None:
            raise InvalidInput([FieldError("tls.cert", "is not set")])
        context = self._build_server()

        def newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            self.reload()
            if self._server is not None:
                connection.context = self._server

        context.sni_callback = newest
        return context

    def client_context(self) -> ssl.SSLContext:
        """For outgoing connections; ask again for each new one."""
        self.reload()
        return self._client

    def reload(self) -> bool:
        """Take changed files into force; True when a new set was loaded."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            server, client = self._load_server(), self._load_client()
        except InvalidInput as error:
            self.error = str(error)
            return False
        self._server, self._client, self.error = server, client, ""
        return True

    def expiry(self) -> float | None:
        """When the certificate on disk expires, in Unix seconds; None without one or when it cannot be read."""
        if self._settings.cert is None:
            return None
        try:
            certificate = x509.load_pem_x509_certificate(self._settings.cert.read_bytes())
        except (OSError, ValueError):
            return None
        return certificate.not_valid_after_utc.timestamp()

    def grpc_server_credentials(self) -> grpc.ServerCredentials:
        """Credentials that read changed files at the next handshake."""

        def changed() -> grpc.ServerCertificateConfiguration | None:
            self.reload()
            if self._stamp == self._grpc_seen or self.error:
                return None
            self._grpc_seen = self._stamp
            return self._grpc_configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(),
            changed,  # type: ignore[arg-type]  # the stubs do not know that None means unchanged
            require_client_authentication=self.verifies_clients,
        )

    def grpc_channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for one channel; make new ones for a new channel."""
        settings = self._settings
        return grpc.ssl_channel_credentials(
            root_certificates=_bytes(settings.ca, "ca"),
            private_key=_bytes(settings.key, "key"),
            certificate_chain=_bytes(settings.cert, "cert"),
        )

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        key, cert = _bytes(self._settings.key, "key"), _bytes(self._settings.cert, "cert")
        if key is None or cert is None:
            raise InvalidInput([FieldError("tls.cert", "is not set")])
        return grpc.ssl_server_certificate_configuration(
            [(key, cert)], root_certificates=_bytes(self._settings.client_ca, "client_ca")
        )

    def _look(self) -> _Stamp:
        settings = self._settings
        return tuple(_stamp(path) for path in (settings.cert, settings.key, settings.ca, settings.client_ca))

    def _load_server(self) -> ssl.SSLContext | None:
        return None if self._settings.cert is None else self._build_server()

    def _build_server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._own_certificate(context)
        if self._settings.client_ca is not None:
            _trust(context, self._settings.client_ca, "client_ca")
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load_client(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._settings.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # only our own CA, not those of the system
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            _trust(context, self._settings.ca, "ca")
        if self._settings.cert is not None:
            self._own_certificate(context)
        return context

    def _own_certificate(self, context: ssl.SSLContext) -> None:
        cert, key = self._settings.cert, self._settings.key
        if cert is None or key is None:
            return
        try:
            context.load_cert_chain(cert, key, password=_no_passphrase)
        except FileNotFoundError:
            name, path = ("key", key) if cert.exists() else ("cert", cert)
            raise InvalidInput([FieldError(f"tls.{name}", f"{path}: no such file")]) from None
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or error.strerror or "cannot be read"
            raise InvalidInput([FieldError("tls.cert", f"{cert} with key {key}: {reason}")]) from None


def _no_passphrase() -> str:
    """Never ask on a terminal: a key with a passphrase is an error, not a process that hangs."""
    return ""


def _trust(context: ssl.SSLContext, path: Path, name: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or "is not PEM"
        raise InvalidInput([FieldError(f"tls.{name}", f"{path}: {reason}")]) from None


def _stamp(path: Path | None) -> tuple[int, int, int]:
    if path is None:
        return (0, 0, 0)
    try:
        stat = os.stat(path)
    except OSError:
        return (0, 0, -1)
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _bytes(path: Path | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput([FieldError(f"tls.{name}", f"{path}: {error.strerror}")]) from None
