"""Which headers cross the gateway, in which direction. Names are lower-case bytes throughout."""

from __future__ import annotations

import re
from collections.abc import Iterable

# RFC 9110 section 7.6.1, and those that older software treats the same way.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# Read by the gateway and not passed on: framing, credentials, what is addressed to us.
_CONSUMED = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"expect",
        b"forwarded",
        b"host",
        b"transfer-encoding",
        b"x-forwarded-for",
        b"x-headrace-deadline-ms",
        b"x-headrace-hop",
        b"x-headrace-priority",
        b"x-headrace-redirect",
        b"x-request-id",
        b"x-session-id",
    }
)

# Neither read nor passed on: other people's credentials, and what other proxies said about the client.
_SWALLOWED = frozenset(
    {
        b"api-key",
        b"cookie",
        b"via",
        b"x-api-key",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-real-ip",
    }
)

REQUEST_ACTIONS: dict[bytes, bool] = {
    **dict.fromkeys(HOP_BY_HOP | _SWALLOWED, False),
    **dict.fromkeys(_CONSUMED, True),
}
"""By name: True is kept for the gateway, False is dropped; a name that is not here goes to the engine."""

# Of an engine's answer: framing is ours, the rest would show internals or set state at our origin.
ANSWER_DROPPED = HOP_BY_HOP | frozenset(
    {
        b"alt-svc",
        b"content-length",
        b"endpoint-load-metrics",
        b"location",
        b"server",
        b"set-cookie",
        b"via",
        b"www-authenticate",
        b"x-accel-buffering",
        b"x-request-id",
    }
)

_LABEL = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_SESSION = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,256}")
SESSION_LIMIT_BYTES = 1024


def connection_names(value: bytes) -> frozenset[bytes]:
    """Header names that a Connection header lists, which makes them hop-by-hop too."""
    return frozenset(part.strip().lower() for part in value.split(b","))


def without(lines: Iterable[bytes], names: frozenset[bytes]) -> list[bytes]:
    """``name: value`` lines whose name is not in ``names``."""
    return [line for line in lines if line.split(b":", 1)[0] not in names]


def request_label(value: bytes | None) -> str:
    """A client's ``x-request-id`` when it is safe to log and to send back; else empty (case-H10)."""
    return value.decode() if value is not None and _LABEL.fullmatch(value) else ""


def session_token(value: bytes | None) -> bytes:
    """A client's session id when it is one; empty for none and for nonsense (case-N03)."""
    return value if value is not None and _SESSION.fullmatch(value) else b""


def number(value: bytes | None, low: int, high: int) -> int | None:
    """A decimal header value inside its bounds; None when it is absent, malformed or outside."""
    if value is None or not value.isdigit() or len(value) > 12:
        return None
    found = int(value)
    return found if low <= found <= high else None
