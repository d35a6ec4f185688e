"""Server-sent events on their way through: whole events only, unchanged, with the few facts that matter read off."""

from __future__ import annotations

import re
from collections import deque

from fleet.request import Usage
from regional.gateway.openai import NO_USAGE, read_chunk, rename_model

CARRY_BYTES = 256 * 1024
"""Longest unfinished event that is held back; a longer one is passed through in pieces."""

# An event ends with an empty line. Line ends are LF, CRLF or CR; mixtures within one pair do not occur.
_BOUNDARY = re.compile(rb"\n\r?\n|\r\r")
_TERMINAL = re.compile(rb'\[DONE\]|"finish_reason"\s*:\s*"|^data:\s*\{\s*"error"', re.MULTILINE)
_NULL_USAGE = b'"usage":null'
_TAIL_PIECES = 4


class EventStream:
    """What one answer's event stream passes through on its way to the client.

    A network read is not an event (case-S03): bytes are let through up to the last event's end and the rest is held until the
    event is whole, so that an error event can be put behind it at any moment. Bytes are changed only where asked: ``strip_usage``
    takes out the chunk that carries nothing but usage, ``rename`` puts another model name in.
    """

    __slots__ = ("_passing", "_rename_from", "carry", "rename", "strip_usage", "tail", "usage")

    def __init__(self, *, strip_usage: bool, rename: str = "") -> None:
        self.strip_usage = strip_usage
        self.rename = rename
        """The model name to put into every event; empty leaves them alone."""
        self.usage: Usage = NO_USAGE
        self.carry = b""
        self.tail: deque[bytes] = deque(maxlen=_TAIL_PIECES)
        """The last pieces that came, for :meth:`finished`."""
        self._passing = False
        self._rename_from: tuple[bytes, bytes] | None = None

    @property
    def aligned(self) -> bool:
        """True between two events."""
        return not self.carry and not self._passing

    def feed(self, piece: bytes) -> bytes:
        """Bytes to let through now, given the next bytes of the body; empty while an event is not whole."""
        passed, whole = b"", piece
        if self.carry or self._passing or not piece.endswith(b"\n\n"):
            passed, whole = self._cut(piece)
        if whole or passed:
            self.tail.append(whole or passed)
        return passed + self._events(whole) if whole else passed

    def end(self) -> bytes:
        """The rest, when the body has ended: an event whose last empty line was left out."""
        rest, self.carry = self.carry, b""
        if rest:
            self.tail.append(rest)
        return self._events(rest) if rest else b""

    def finished(self) -> bool:
        """True when the stream said that it was over: ``[DONE]``, a finish reason, or an error of the engine's own (case-S08)."""
        return any(_TERMINAL.search(piece) for piece in reversed(self.tail))

    def _cut(self, piece: bytes) -> tuple[bytes, bytes]:
        """(bytes of an oversized event to pass as they are, whole events), keeping what is left."""
        passed = b""
        if self._passing:
            match = _BOUNDARY.search(piece)
            if match is None:
                return piece, b""
            self._passing = False
            passed, piece = piece[: match.end()], piece[match.end() :]
        data = self.carry + piece
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3, data.rfind(b"\r\r") + 2)
        if end <= 2:  # nothing found: -1 plus the length of an empty line's end
            end = 0
        whole, self.carry = data[:end], data[end:]
        if len(self.carry) > CARRY_BYTES:
            self._passing = True
            passed, whole, self.carry = passed + self._events(whole) + self.carry, b"", b""
        return passed, whole

    def _events(self, whole: bytes) -> bytes:
        mentions = whole.count(b'"usage"')
        if not self.rename and (not mentions or mentions == whole.count(_NULL_USAGE)):
            return whole
        out = []
        at = 0
        for match in _BOUNDARY.finditer(whole):
            out.append(self._event(whole[at : match.end()]))
            at = match.end()
        if at < len(whole):
            out.append(self._event(whole[at:]))
        return b"".join(out)

    def _event(self, event: bytes) -> bytes:
        if b'"usage"' in event:
            usage, alone = read_chunk(_payload(event))
            if usage is not NO_USAGE:
                self.usage = usage
            if alone and self.strip_usage:
                return b""
        return self._renamed(event) if self.rename else event

    def _renamed(self, event: bytes) -> bytes:
        """The event with the model's name changed. What to replace is learnt from the first event and then looked for as text:
        inside a JSON string its quotes would be escaped, so it can only be a field."""
        known = self._rename_from
        if known is not None and event.count(known[0]) == 1:
            return event.replace(known[0], known[1], 1)
        payload = _payload(event)
        if not payload.startswith(b"{") or event.count(payload) != 1:
            return event
        renamed = rename_model(payload, self.rename)
        if renamed != payload:
            self._rename_from = _difference(payload, renamed)
        return event.replace(payload, renamed, 1)


def _payload(event: bytes) -> bytes:
    """The data of one event: its ``data:`` lines, joined."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


_MODEL = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')


def _difference(before: bytes, after: bytes) -> tuple[bytes, bytes] | None:
    """The ``"model": "…"`` text before and after, when each has exactly one; else None: look anew in each event."""
    old, new = _MODEL.findall(before), _MODEL.findall(after)
    return (old[0], new[0]) if len(old) == len(new) == 1 else None
