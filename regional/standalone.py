"""A router without a control plane: intent from a fleet file, secrets of its own."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets as chance
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fleet.clock import Clock
from fleet.errors import FieldError, InvalidInput
from fleet.intent import Intent
from fleet.process.incarnation import write_atomically
from fleet.resources.file import load, to_intent_objects
from fleet.resources.translate import intent_of
from fleet.snapshot import SECRETS_KIND, IntentObject, IntentVersion
from fleet.wire.identity import public_key_of

CHECK_INTERVAL_SECONDS = 0.5
MIN_SECRET_CHARS = 16
_SECRETS_UID = "00000000-0000-0000-0000-000000000001"
_KEY_FILE = "secret-key"


@dataclass(frozen=True, slots=True)
class StandaloneSecrets:
    """What is derived from ``SECRET_KEY``, by the same labels as in a control plane, so that a fleet can move to one."""

    peppers: tuple[bytes, ...] = field(repr=False)
    hop_keys: tuple[bytes, ...] = field(repr=False)
    identity_private_keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, keys: Sequence[str]) -> StandaloneSecrets:
        """From root keys, newest first."""
        roots = [key.encode() for key in keys]

        def derived(label: str) -> tuple[bytes, ...]:
            return tuple(HKDF(SHA256(), 32, salt=b"headrace", info=label.encode()).derive(r) for r in roots)

        return cls(derived("pepper"), derived("hop"), derived("identity"))

    @property
    def identity_keys(self) -> tuple[bytes, ...]:
        """Raw Ed25519 public keys."""
        return tuple(public_key_of(k) for k in self.identity_private_keys)

    def as_object(self) -> IntentObject:
        def encode(keys: Sequence[bytes]) -> list[str]:
            return [base64.b64encode(k).decode() for k in keys]

        content = {
            "peppers": encode(self.peppers),
            "hop_keys": encode(self.hop_keys),
            "identity_keys": encode(self.identity_keys),
        }
        return IntentObject(SECRETS_KIND, _SECRETS_UID, SECRETS_KIND, 1, {}, {}, content)


def standalone_keys(secret_keys: Sequence[str], state_dir: Path | None) -> list[str]:
    """Root keys, newest first: from the settings, else from the state directory (made on first use), else for this run only.

    Raises InvalidInput for a key too short to be a secret, or a key file that others can read.
    """
    for index, key in enumerate(secret_keys):
        if len(key) < MIN_SECRET_CHARS:
            raise InvalidInput(
                [FieldError(f"/secret_key/{index}", f"must have at least {MIN_SECRET_CHARS} characters")]
            )
    if secret_keys:
        return list(secret_keys)
    if state_dir is None:
        return [chance.token_urlsafe(32)]
    path = state_dir / _KEY_FILE
    if not path.exists():
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, chance.token_urlsafe(32).encode(), mode=0o600)
    if path.stat().st_mode & 0o077:
        raise InvalidInput([FieldError("secret_key", f"{path} can be read by others; chmod 600 it")])
    key = path.read_text().strip()
    if len(key) < MIN_SECRET_CHARS:
        raise InvalidInput(
            [FieldError("secret_key", f"{path} is damaged; restore it, or remove it to start with new keys")]
        )
    return [key]


class FleetFile:
    """The intent in a fleet file, taken whole or not at all."""

    def __init__(
        self,
        path: Path,
        region: str,
        secrets: StandaloneSecrets,
        environ: Mapping[str, str],
        clock: Clock,
        *,
        loopback: bool,
    ) -> None:
        self._path = path
        self._region = region
        self._secrets = secrets
        self._environ = environ
        self._clock = clock
        self._loopback = loopback
        self._version = 0
        self._seen: tuple[int, int, int] | None = None
        self._asked = asyncio.Event()

    @property
    def secrets(self) -> StandaloneSecrets:
        return self._secrets

    def load(self) -> Intent:
        """The intent of the file as it is now, at a version above all before. Raises InvalidInput; nothing changes then."""
        self._seen = self._stamp()
        documents = load(self._path, self._environ)
        regions = [d.name for d in documents if d.kind == "region"]
        region = self._region or (regions[0] if len(regions) == 1 else "")
        if region not in regions:
            there = ", ".join(regions) or "none"
            wanted = f"region {self._region} is not in it" if self._region else "say which region this router is in"
            raise InvalidInput([FieldError("region", f"{wanted} (there: {there})", str(self._path))])
        if not self._loopback and not any(d.kind == "tenant" for d in documents):
            reason = "a fleet without tenants serves anyone, so only on loopback; add a tenant and a key, or use --host 127.0.0.1"
            raise InvalidInput([FieldError("host", reason, str(self._path))])
        # Agents obey the highest version they have seen, so it must rise over restarts too.
        version = max(self._version + 1, int(self._clock.wall() * 1000))
        objects = [*to_intent_objects(documents, self._secrets.peppers[0]), self._secrets.as_object()]
        intent, unread = intent_of(IntentVersion(1, version), region, objects)
        if unread:
            raise InvalidInput([FieldError("", line, str(self._path)) for line in unread])
        self._version = version
        return intent

    def reload_now(self) -> None:
        """Look at the file at once, changed or not (SIGHUP)."""
        self._asked.set()

    async def watch(self, on_intent: Callable[[Intent], None], on_error: Callable[[InvalidInput], None]) -> None:
        """Until cancelled: hand over each new content of the file; one that is wrong is told and leaves the old in force.

        Raises what ``on_intent`` raises; run again, it hands over the same content again.
        """
        while True:
            try:
                async with asyncio.timeout(CHECK_INTERVAL_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                if await asyncio.to_thread(self._stamp) in (self._seen, None):
                    continue  # unchanged, or being replaced at this very moment
            self._asked.clear()
            try:
                intent = await asyncio.to_thread(self.load)
            except InvalidInput as error:
                on_error(error)
                continue
            except Exception:
                self._seen = None
                raise
            try:
                on_intent(intent)
            except Exception:
                self._seen = None  # what was not taken in is read again, unchanged as it is
                raise

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
