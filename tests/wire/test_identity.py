"""Node identities: who may read them as valid, and when not."""

from __future__ import annotations

import base64
import json
import os

import pytest
from joserfc import jws
from joserfc.jwk import OctKey, OKPKey

from fleet.wire.identity import (
    InvalidIdentity,
    NodeIdentity,
    public_jwk,
    public_key_of,
    sign_identity,
    verify_identity,
)

NOW = 1_800_000_000.0
PRIVATE, OTHER = b"a" * 32, b"b" * 32
PUBLIC = public_key_of(PRIVATE)
IDENTITY = NodeIdentity("uid-1", "node-1", "eu-west-a", "eu-west", NOW, NOW + 86_400)
TOKEN = sign_identity(IDENTITY, PRIVATE)


def test_round_trip_and_key_rotation() -> None:
    assert verify_identity(TOKEN, [PUBLIC], NOW) == IDENTITY
    assert verify_identity(TOKEN, [public_key_of(OTHER), PUBLIC], NOW) == IDENTITY
    with pytest.raises(InvalidIdentity, match="not signed by this deployment"):
        verify_identity(TOKEN, [public_key_of(OTHER)], NOW)
    with pytest.raises(InvalidIdentity):
        verify_identity(TOKEN, [], NOW)


def test_it_is_renewed_at_two_thirds() -> None:
    assert IDENTITY.renew_at() == NOW + 57_600


def test_expiry_counts_only_for_a_router_that_could_have_seen_a_renewal() -> None:
    after = IDENTITY.expires_at + 3600
    with pytest.raises(InvalidIdentity, match="expired"):
        verify_identity(TOKEN, [PUBLIC], after)
    with pytest.raises(InvalidIdentity, match="expired"):
        verify_identity(TOKEN, [PUBLIC], after, snapshot_wall=IDENTITY.expires_at + 1)
    assert verify_identity(TOKEN, [PUBLIC], after, snapshot_wall=IDENTITY.expires_at - 1) == IDENTITY


@pytest.mark.parametrize("skew", [-60, 60])
def test_clocks_may_differ_by_a_minute(skew: float) -> None:
    assert verify_identity(TOKEN, [PUBLIC], NOW + skew) == IDENTITY
    assert verify_identity(TOKEN, [PUBLIC], IDENTITY.expires_at + 60) == IDENTITY


def test_a_clock_that_is_far_behind_is_named() -> None:
    with pytest.raises(InvalidIdentity, match="clocks"):
        verify_identity(TOKEN, [PUBLIC], NOW - 3600)


def _forged(header: dict[str, str], payload: bytes, key: object, algorithm: str) -> str:
    return jws.serialize_compact(header, payload, key, algorithms=[algorithm])  # type: ignore[arg-type]


def _key(private: bytes) -> OKPKey:
    encode = lambda b: base64.urlsafe_b64encode(b).rstrip(b"=").decode()  # noqa: E731
    return OKPKey.import_key(
        {"kty": "OKP", "crv": "Ed25519", "x": encode(public_key_of(private)), "d": encode(private)}
    )


def test_forgeries_are_refused() -> None:
    header, payload, signature = TOKEN.split(".")
    claims = json.dumps({"sub": "x", "name": "x", "zone": "z", "region": "r", "iat": NOW, "exp": NOW + 9}).encode()
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"headrace-node+jws"}').rstrip(b"=").decode()
    forgeries = [
        "",
        "a.b.c",
        f"{header}.{payload}.",
        f"{none}.{payload}.",
        f"{header}.{payload}x.{signature}",
        TOKEN + "A",
        "x" * 10_000,
        # the public key used as an HMAC secret, the oldest trick of all
        _forged({"alg": "HS256", "typ": "headrace-node+jws"}, claims, OctKey.import_key(PUBLIC), "HS256"),
        # signed by us, but as something else
        _forged({"alg": "Ed25519", "typ": "JWT"}, claims, _key(PRIVATE), "Ed25519"),
    ]
    for token in forgeries:
        with pytest.raises(InvalidIdentity):
            verify_identity(token, [PUBLIC], NOW)


@pytest.mark.parametrize(
    "payload", [b"{}", b"[]", b"\xff", b'{"sub":"","zone":"","name":"n","region":"r","iat":1,"exp":2}']
)
def test_a_signed_payload_without_the_claims_is_damaged(payload: bytes) -> None:
    token = _forged({"alg": "Ed25519", "typ": "headrace-node+jws"}, payload, _key(PRIVATE), "Ed25519")
    with pytest.raises(InvalidIdentity):
        verify_identity(token, [PUBLIC], NOW)


def test_random_bytes_never_crash_it() -> None:
    for _ in range(200):
        raw = base64.urlsafe_b64encode(os.urandom(60)).decode()
        with pytest.raises(InvalidIdentity):
            verify_identity(f"{raw[:20]}.{raw[20:40]}.{raw[40:]}", [PUBLIC], NOW)


def test_the_public_key_is_published_without_the_private_one() -> None:
    jwk = public_jwk(PUBLIC)
    assert "d" not in jwk
    assert base64.urlsafe_b64decode(jwk["x"] + "=") == PUBLIC
