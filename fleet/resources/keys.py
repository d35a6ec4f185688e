"""Tenant keys: how they look, and the only form in which they are kept.

``hr_`` + 27 base62 characters (160 random bits) + 6 base62 characters of CRC-32 over what comes before, so that a mistyped or
made-up key is refused without a look-up and secret scanners can recognise one.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib

PREFIX = "hr_"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ENTROPY_CHARS = 27
_CHECK_CHARS = 6


def _base62(number: int, width: int) -> str:
    out = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        out.append(_ALPHABET[digit])
    return "".join(reversed(out))


def make_key(entropy: bytes) -> str:
    """A key from 20 random bytes. Raises ValueError for fewer."""
    if len(entropy) < 20:
        raise ValueError("a key wants 160 random bits")
    body = PREFIX + _base62(int.from_bytes(entropy[:20], "big"), _ENTROPY_CHARS)
    return body + _base62(zlib.crc32(body.encode()), _CHECK_CHARS)


def plausible(key: str) -> bool:
    """False for a string in our own format whose checksum is wrong. Keys of other formats are for the look-up to judge."""
    if not key.startswith(PREFIX) or len(key) != len(PREFIX) + _ENTROPY_CHARS + _CHECK_CHARS:
        return 8 <= len(key) <= 512
    body, check = key[:-_CHECK_CHARS], key[-_CHECK_CHARS:]
    return _base62(zlib.crc32(body.encode()), _CHECK_CHARS) == check


def key_digest(pepper: bytes, key: str) -> bytes:
    """HMAC-SHA256 of the key under the deployment's pepper, 32 bytes."""
    return hmac.digest(pepper, key.encode(), hashlib.sha256)


def hint(key: str) -> str:
    """What may be shown of a key: its prefix and last two characters."""
    return f"{PREFIX if key.startswith(PREFIX) else ''}…{key[-2:]}" if len(key) >= 12 else "…"
