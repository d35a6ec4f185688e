"""Node identity: what a node shows a router to prove who it is. A compact JWS signed with Ed25519 (RFC 8037, RFC 9864).

The control plane signs; routers verify offline with the public keys of their snapshot. Signing and verifying stand together
because they are the two halves of one format.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from fleet.errors import HeadraceError

ALGORITHM = "Ed25519"
TYPE = "headrace-node+jws"
LIFETIME_SECONDS = 24 * 3600.0
RENEW_AT_SHARE = 2 / 3
"""A node asks for a new identity when this share of its lifetime has passed."""
CLOCK_SKEW_SECONDS = 60.0
"""Two machines' wall clocks may differ by this much (rel-R19)."""
MAX_TOKEN_BYTES = 4096


class InvalidIdentity(HeadraceError):
    """A node identity is not one of ours, is damaged, or has expired. The node has to join again or renew."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who a node is. It may report for this uid and zone and for nothing else."""

    node_uid: str
    node_name: str
    zone: str
    region: str
    issued_at: float
    """Unix seconds."""
    expires_at: float
    """Unix seconds."""

    def renew_at(self) -> float:
        """Unix seconds at which the node should renew."""
        return self.issued_at + (self.expires_at - self.issued_at) * RENEW_AT_SHARE


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_key_of(private_key: bytes) -> bytes:
    """Raw Ed25519 public key (32 bytes) of a raw private key (32 bytes)."""
    return Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def public_jwk(public_key: bytes) -> dict[str, str]:
    """A public key in the form of a JWK set's member (RFC 7517)."""
    key = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": _b64(public_key)})
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": _b64(public_key),
        "use": "sig",
        "alg": ALGORITHM,
        "kid": key.thumbprint(),
    }


def sign_identity(identity: NodeIdentity, private_key: bytes) -> str:
    """The identity as a compact JWS. ``private_key`` is a raw Ed25519 private key."""
    public = public_key_of(private_key)
    key = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": _b64(public), "d": _b64(private_key)})
    claims = {
        "sub": identity.node_uid,
        "name": identity.node_name,
        "zone": identity.zone,
        "region": identity.region,
        "iat": int(identity.issued_at),
        "exp": int(identity.expires_at),
    }
    header = {"alg": ALGORITHM, "typ": TYPE, "kid": key.thumbprint()}
    return jws.serialize_compact(header, json.dumps(claims, separators=(",", ":")), key, algorithms=[ALGORITHM])


def verify_identity(
    token: str, public_keys: Sequence[bytes], wall_now: float, snapshot_wall: float | None = None
) -> NodeIdentity:
    """The identity in ``token`` when one of ``public_keys`` (raw Ed25519) signed it. Raises InvalidIdentity otherwise.

    ``snapshot_wall`` is when this router last heard from the control plane (Unix seconds; None: it is in touch now). A router
    that has been cut off since before the identity expired does not enforce the expiry: the node could not have renewed.
    """
    identity = _verified(token, public_keys)
    heard = wall_now if snapshot_wall is None else min(snapshot_wall, wall_now)
    if identity.issued_at > wall_now + CLOCK_SKEW_SECONDS:
        raise InvalidIdentity("the node identity is dated in the future; compare the clocks of node and control plane")
    if wall_now > identity.expires_at + CLOCK_SKEW_SECONDS and heard >= identity.expires_at:
        raise InvalidIdentity("the node identity has expired; the node has to renew or join again")
    return identity


def _verified(token: str, public_keys: Sequence[bytes]) -> NodeIdentity:
    if not token or len(token) > MAX_TOKEN_BYTES:
        raise InvalidIdentity("there is no node identity")
    for public in public_keys:
        key = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": _b64(public)})
        try:
            parsed = jws.deserialize_compact(token, key, algorithms=[ALGORITHM])
        except (JoseError, ValueError):
            continue  # signed with another of the keys, or with none of them
        if parsed.headers().get("typ") != TYPE:
            raise InvalidIdentity("the token is not a node identity")
        return _parse(parsed.payload)
    raise InvalidIdentity("the node identity was not signed by this deployment")


def _parse(payload: bytes | None) -> NodeIdentity:
    try:
        claims: dict[str, Any] = json.loads(payload or b"")
        uid, name, zone = str(claims["sub"]), str(claims["name"]), str(claims["zone"])
        identity = NodeIdentity(uid, name, zone, str(claims["region"]), float(claims["iat"]), float(claims["exp"]))
    except (ValueError, KeyError, TypeError):
        raise InvalidIdentity("the node identity is damaged") from None
    if not uid or not zone:
        raise InvalidIdentity("the node identity names no node or no zone")
    return identity
