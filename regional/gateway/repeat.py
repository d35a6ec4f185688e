"""Heads repeat: on one connection a client, and an engine, mostly send the same head again with another Content-Length.

A head that llhttp has judged once need not be parsed again while it stays the same byte for byte but for those digits. Only whole
messages take this short way; the parser stands between two messages meanwhile and never sees them. About 10 us a request.
"""

from __future__ import annotations

import re

MAX_HEAD_BYTES = 4096
MISSES = 8
"""A connection whose heads keep changing is not looked at any more after so many."""
_LENGTH = re.compile(rb"\r\ncontent-length: (\d{1,9})(?=\r\n)", re.IGNORECASE)
_ANY_LENGTH = re.compile(rb"\r\n(?:content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)


class RepeatedHead:
    """One head with its Content-Length left open."""

    __slots__ = ("_after", "_before", "_start")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._start = len(before)
        self._after = after

    @classmethod
    def of(cls, head: bytes) -> RepeatedHead | None:
        """Of a whole valid head, empty line included; None when its body is not framed by one plain Content-Length."""
        if len(head) > MAX_HEAD_BYTES:
            return None
        found = _LENGTH.search(head)
        if found is None or len(_ANY_LENGTH.findall(head)) != 1:
            return None
        return cls(head[: found.start(1)], head[found.end(1) :])

    def body_start(self, data: bytes) -> int:
        """Where the body begins when ``data`` is this head, with any length, and exactly the whole body; else -1."""
        if not data.startswith(self._before):
            return -1
        end = data.find(b"\r\n", self._start, self._start + 11)
        digits = data[self._start : end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return -1
        start = end + len(self._after)
        return start if len(data) - start == int(digits) else -1
