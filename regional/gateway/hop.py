"""The signed hop: how one router of this deployment tells another what it already decided about a request.

A hop carries one header, ``x-headrace-hop: v1.<claims>.<mac>``: base64url JSON and the HMAC-SHA256 of it under a key that only
routers have (``Intent.secrets.hop_keys``; the first signs, any verifies). The bearer key is never forwarded. The target believes
the claims, rechecks residency against its own intent, and never sends a request that came by hop on again.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from hashlib import sha256

import msgspec

HEADER = b"x-headrace-hop"
REFUSAL_HEADER = b"x-headrace-refused"
"""In the target's answer: the RejectReason, so that the origin can tell a refused spill from an engine's error."""
ATTEMPTS_HEADER = b"x-headrace-attempts"
"""Beside it: attempts made for the request so far, over all tiers (case-R01)."""
PROBE_PATH = b"/_headrace/peer"
LIFETIME_SECONDS = 60.0
_VERSION = b"v1"
_MAX_TOKEN_BYTES = 8192
_REPLAY_ENTRIES = 200_000


class OriginClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the client is, as the entry router resolved it; its address stays there."""

    country: str = ""
    continent: str = ""
    latitude: float | None = None
    longitude: float | None = None
    source: str = "unknown"


class HopClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the entry router vouches for."""

    nonce: str
    """Random; a token is good for one use (within the memory of the router that got it)."""
    expires: float
    """Unix seconds."""
    source: str
    """Region it comes from."""
    target: str
    """Region it is for; a router of another region refuses it."""
    probe: bool = False
    request: str = ""
    """Request uid, the same over all tiers."""
    label: str = ""
    """The client's ``x-request-id``."""
    tenant: str = ""
    key: str = ""
    sla_class: str = ""
    priority: int = 0
    model: str = ""
    """The model version the entry router's route chose."""
    session: str = ""
    deadline_seconds: float | None = None
    """What is left of the caller's own deadline."""
    total_seconds: float = 600.0
    residency: tuple[str, ...] = ()
    relay_ingress: bool = False
    attempts_used: int = 0
    origin: OriginClaim = OriginClaim()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(HopClaims)


def sign(claims: HopClaims, key: bytes) -> bytes:
    """The header's value."""
    payload = base64.urlsafe_b64encode(_encoder.encode(claims)).rstrip(b"=")
    return b".".join((_VERSION, payload, _mac(key, payload)))


def sign_probe(source: str, target: str, key: bytes, *, nonce: str, wall: float) -> bytes:
    """Header value for ``GET /_headrace/peer`` at a router of region ``target``."""
    return sign(HopClaims(nonce, wall + LIFETIME_SECONDS, source, target, probe=True), key)


def verify(token: bytes, keys: tuple[bytes, ...], *, region: str, wall: float) -> HopClaims | None:
    """The claims when the token is ours, meant for ``region`` and not expired; else None, without saying why."""
    if len(token) > _MAX_TOKEN_BYTES:
        return None
    parts = token.split(b".")
    if len(parts) != 3 or parts[0] != _VERSION:
        return None
    payload, mac = parts[1], parts[2]
    # Every key is tried, so that the time taken does not tell which one matched.
    if sum(hmac.compare_digest(_mac(key, payload), mac) for key in keys) == 0:
        return None
    try:
        claims = _decoder.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (ValueError, msgspec.DecodeError):
        return None
    if claims.target != region or not wall < claims.expires <= wall + 2 * LIFETIME_SECONDS:
        return None
    return claims


class ReplayGuard:
    """Remembers nonces until their tokens expire. Bounded: when full, the oldest are forgotten."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def fresh(self, claims: HopClaims, wall: float) -> bool:
        """True the first time a token is shown."""
        if self._seen.get(claims.nonce, 0.0) > wall:
            return False
        self._seen[claims.nonce] = claims.expires
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= _REPLAY_ENTRIES and self._seen[oldest] > wall:
                break
            del self._seen[oldest]
        return True


def peer_answer(status: Mapping[str, object]) -> bytes:
    """Body of a probe's answer."""
    return _encoder.encode(dict(status))


def _mac(key: bytes, payload: bytes) -> bytes:
    return base64.urlsafe_b64encode(hmac.digest(key, _VERSION + b"." + payload, sha256)).rstrip(b"=")
