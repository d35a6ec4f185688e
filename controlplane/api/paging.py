"""Page tokens: opaque, and bound to the filters they were given for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json

from controlplane.api.problems import invalid
from fleet.snapshot import canonical_json

DEFAULT_SIZE = 100
MAX_SIZE = 1000
_MAC_BYTES = 16


def page_size(wanted: int | None) -> int:
    """What is asked for, coerced to 1..MAX_SIZE; absent, zero and negative take the default."""
    return DEFAULT_SIZE if wanted is None or wanted <= 0 else min(wanted, MAX_SIZE)


def make_token(key: bytes, filters: list[str], position: list[str]) -> str:
    """A token that continues after ``position`` (what the list is ordered by) under the same ``filters``."""
    body = canonical_json(position)
    return base64.urlsafe_b64encode(_mac(key, filters, body) + body).decode().rstrip("=")


def read_token(key: bytes, filters: list[str], token: str, width: int) -> list[str] | None:
    """The position a token stands for, ``width`` texts; None for no token.

    Raises Problem (422) for one that was not made for these filters.
    """
    if not token:
        return None
    refused = invalid("/query/page_token", "is not a token of this list with these filters; start again without it")
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise refused from None
    mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, filters, body)):
        raise refused
    position = json.loads(body)
    if not isinstance(position, list) or len(position) != width:
        raise refused
    return [str(p) for p in position]


def _mac(key: bytes, filters: list[str], body: bytes) -> bytes:
    return hmac.digest(key, b"page-token\0" + canonical_json(filters) + body, hashlib.sha256)[:_MAC_BYTES]
