"""Where others reach this router."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleet.errors import FieldError, InvalidInput
from fleet.process.grpc_server import grpc_address
from regional.settings import RouterSettings


@dataclass(frozen=True, slots=True)
class Advertised:
    """``http`` is the base URL of the inference port, ``grpc`` the ``host:port`` for agents."""

    http: str
    grpc: str
    workers: tuple[str, ...] = ()
    """``host:port`` of all workers that share this router's inference port."""


def advertised(settings: RouterSettings, *, tls: bool, port: int, grpc_port: int) -> Advertised:
    """From the settings and the ports in use. Raises InvalidInput for an ``advertise`` that is neither host nor base URL."""
    text = settings.advertise.strip().rstrip("/")
    if "://" in text:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
            raise InvalidInput([FieldError("advertise", f"{text!r} is neither a host nor http(s)://host[:port]")])
        host, http = parts.hostname, text
    else:
        host = text or _reachable(settings.host)
        http = f"{'https' if tls else 'http'}://{grpc_address(host, port)}"
    workers = tuple(grpc_address(host, each) for each in settings.worker_grpc_ports)
    if settings.advertise_grpc and not workers:
        return Advertised(http, settings.advertise_grpc)
    return Advertised(http, grpc_address(host, grpc_port), workers)


def _reachable(host: str) -> str:
    """The host to name when it listens on ``host``: of all addresses, the machine's name stands for them."""
    try:
        unspecified = ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        unspecified = False
    return socket.gethostname() if unspecified else host.strip("[]")
