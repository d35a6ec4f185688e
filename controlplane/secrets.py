"""The deployment's secrets: everything is derived from ``SECRET_KEY`` (a list, newest first), so that copies need share only that.

Each root key gives, by HKDF with its own label: a pepper for tenant keys, a key that signs hops between routers, an Ed25519 key
that signs node identities, and a key that seals secrets at rest. A new root key is put first; what the older ones made is
still accepted until they are taken off the list.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets as chance
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fleet.errors import FieldError, HeadraceError, InvalidInput
from fleet.snapshot import SECRETS_KIND, IntentObject
from fleet.wire.identity import public_jwk, public_key_of

MIN_SECRET_CHARS = 16
SECRETS_UID = "00000000-0000-0000-0000-000000000001"
"""The one secrets object of a snapshot has the same uid everywhere."""

_SEAL_PREFIX = "hrs1."
_NONCE_BYTES = 12


class SealBroken(HeadraceError):
    """A sealed secret was made with a SECRET_KEY that is no longer listed, or was damaged."""


def _derive(root: bytes, label: str) -> bytes:
    return HKDF(SHA256(), 32, salt=b"headrace", info=label.encode()).derive(root)


def _raw(sealed: str, context: str) -> bytes:
    if not sealed.startswith(_SEAL_PREFIX):
        raise SealBroken(f"{context}: not a sealed value")
    try:
        raw = base64.urlsafe_b64decode(sealed[len(_SEAL_PREFIX) :])
    except ValueError:
        raw = b""
    if len(raw) <= _NONCE_BYTES:
        raise SealBroken(f"{context}: damaged")
    return raw


class DeploymentSecrets:
    """What is derived from the root keys. Immutable; never shown in a repr."""

    __slots__ = ("_hop_keys", "_identity", "_peppers", "_seals")

    def __init__(self, roots: Sequence[bytes]) -> None:
        if not roots:
            raise ValueError("at least one root key is needed")
        self._peppers = tuple(_derive(r, "pepper") for r in roots)
        self._hop_keys = tuple(_derive(r, "hop") for r in roots)
        self._identity = tuple(_derive(r, "identity") for r in roots)
        self._seals = tuple(AESGCM(_derive(r, "seal")) for r in roots)

    def __repr__(self) -> str:
        return f"DeploymentSecrets({len(self._peppers)} keys)"

    @classmethod
    def of(cls, secret_keys: Sequence[str]) -> DeploymentSecrets:
        """From the values of SECRET_KEY, newest first. Raises InvalidInput when one is too short to be a secret."""
        for index, key in enumerate(secret_keys):
            if len(key) < MIN_SECRET_CHARS:
                raise InvalidInput(
                    [FieldError(f"/secret_key/{index}", f"must have at least {MIN_SECRET_CHARS} characters")]
                )
        return cls([k.encode() for k in secret_keys])

    @classmethod
    def generate(cls) -> DeploymentSecrets:
        """Secrets that last as long as this process, for databases in memory and tests."""
        return cls([os.urandom(32)])

    def peppers(self) -> tuple[bytes, ...]:
        """For tenant keys. The first makes digests, all are accepted."""
        return self._peppers

    def hop_keys(self) -> tuple[bytes, ...]:
        """For hops between routers. The first signs, all are accepted."""
        return self._hop_keys

    def identity_private_key(self) -> bytes:
        """Raw Ed25519 private key that signs node identities."""
        return self._identity[0]

    def identity_keys(self) -> tuple[bytes, ...]:
        """Raw Ed25519 public keys that verify node identities, newest first."""
        return tuple(public_key_of(k) for k in self._identity)

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """The public keys as a JWK set."""
        return {"keys": [public_jwk(k) for k in self.identity_keys()]}

    def digest_token(self, token: str) -> str:
        """Hex digest under which a join, router or admin token is stored and looked up (keyed: a dump is of no use)."""
        return self.token_digests(token)[0]

    def token_digests(self, token: str) -> tuple[str, ...]:
        """The digest of a token under each root key, for looking up one that was stored before a rotation."""
        return tuple(
            hashlib.blake2b(token.encode(), key=pepper, digest_size=32, person=b"headrace-token").hexdigest()
            for pepper in self._peppers
        )

    def seal(self, plain: str, context: str) -> str:
        """``plain`` encrypted for the database. ``context`` (such as ``endpoint/UID/api_key``) must be given again to open it."""
        nonce = os.urandom(_NONCE_BYTES)
        box = self._seals[0].encrypt(nonce, plain.encode(), context.encode())
        return _SEAL_PREFIX + base64.urlsafe_b64encode(nonce + box).decode()

    def sealed_by_newest(self, sealed: str, context: str) -> bool:
        """False when ``sealed`` was made with an older key of the list, or with none of them."""
        raw = _raw(sealed, context)
        try:
            self._seals[0].decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], context.encode())
        except InvalidTag:
            return False
        return True

    def unseal(self, sealed: str, context: str) -> str:
        """What was sealed. Raises SealBroken when no listed key opens it, or when it was sealed for another context."""
        raw = _raw(sealed, context)
        for key in self._seals:
            with contextlib.suppress(InvalidTag):
                return key.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], context.encode()).decode()
        raise SealBroken(f"{context}: no SECRET_KEY of the list opens it; add the one it was sealed with")

    def published(self) -> IntentObject:
        """The secrets object that every router gets in its snapshot."""

        def encode(keys: Sequence[bytes]) -> list[str]:
            return [base64.b64encode(k).decode() for k in keys]

        content: Mapping[str, Any] = {
            "peppers": encode(self._peppers),
            "hop_keys": encode(self._hop_keys),
            "identity_keys": encode(self.identity_keys()),
        }
        return IntentObject(SECRETS_KIND, SECRETS_UID, SECRETS_KIND, 1, {}, {}, content)


def load_or_create(path: Path) -> DeploymentSecrets:
    """The secrets kept in ``path`` (mode 0600), made on first use. Two processes that start at once get the same ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        fresh = path.with_name(f".{path.name}.{os.getpid()}.{chance.token_hex(4)}")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w") as out:
                out.write(chance.token_urlsafe(32) + "\n")
                out.flush()
                os.fsync(out.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first: its file counts
                os.link(fresh, path)
        finally:
            fresh.unlink()
    if path.stat().st_mode & 0o077:
        raise InvalidInput([FieldError("/secret_key", f"{path} can be read by others; chmod 600 it")])
    keys = path.read_text().split()
    if not keys:
        raise InvalidInput([FieldError("/secret_key", f"{path} is empty; restore it, or set HEADRACE_SECRET_KEY")])
    return DeploymentSecrets.of(keys)


def secrets_for(secret_keys: Sequence[str], sqlite_file: Path | None) -> DeploymentSecrets:
    """The secrets to use with a database: those given, else (SQLite only) a generated file beside it.

    Raises InvalidInput when several copies could come up with secrets of their own.
    """
    if secret_keys:
        return DeploymentSecrets.of(secret_keys)
    if sqlite_file is None:
        raise InvalidInput(
            [
                FieldError(
                    "/secret_key",
                    "is needed with PostgreSQL, the same for every copy: set HEADRACE_SECRET_KEY or HEADRACE_SECRET_KEY_FILE",
                )
            ]
        )
    return load_or_create(sqlite_file.with_name(sqlite_file.name + ".secret-key"))
