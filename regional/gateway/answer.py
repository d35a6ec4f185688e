"""An engine's answer on its way to the client: what of it is usable, what is changed, how it is framed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from fleet.request import Task, Usage
from regional.gateway.errors import REASON_PHRASES, error_json
from regional.gateway.headers import ANSWER_DROPPED, connection_names, number
from regional.gateway.hop import ATTEMPTS_HEADER, REFUSAL_HEADER
from regional.gateway.openai import NO_USAGE, read_answer, rename_model
from regional.gateway.request import ClientRequest, connection_line
from regional.gateway.sse import EventStream
from regional.gateway.upstream import AnswerHead
from regional.request.steps import AttemptResult, Outcome, RejectReason

WHOLE_BYTES = 1024 * 1024
"""An answer that is no stream is held until it is whole up to this size: until then it can still be had elsewhere, its usage
read and its model renamed. A larger one is passed on as it comes."""
WHOLE_RENAMED_BYTES = 16 * 1024 * 1024
"""The same where the model's name has to be put back."""
_INFLATED_BYTES = 16 * 1024 * 1024
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, phrase) for status, phrase in REASON_PHRASES.items()}
_STREAM_LINES = b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
_NONE: frozenset[bytes] = frozenset()
_STREAMED_TASKS = frozenset({Task.CHAT, Task.COMPLETION})


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer is not for the client: the attempt has failed."""

    result: AttemptResult


@dataclass(frozen=True, slots=True)
class Usable:
    """The answer goes to the client."""

    streamed: bool
    opaque: bool = False
    """Passed on as it comes and not looked into: a stream with a coding that we asked not to have."""


def judge_head(head: AnswerHead, *, hop_attempt: int = 0) -> Usable | Failure:
    """What the head of an answer says. ``hop_attempt``: it comes from a peer router, as this attempt of the request."""
    if head.whole_json and not hop_attempt:
        return _WHOLE
    status = head.status
    found = {name: value for name, value in head.headers if name in _READ}
    if hop_attempt:
        refused = found.get(REFUSAL_HEADER)
        if refused is not None or status == 401:
            return Failure(_peer_refused(refused, status, found, hop_attempt))
    if 200 <= status < 300:
        kind = found.get(b"content-type", b"application/json").lower()
        if kind.startswith(b"text/event-stream"):
            coded = found.get(b"content-encoding", b"identity").lower() != b"identity"
            return Usable(streamed=not coded, opaque=coded)
        if kind.startswith(b"text/"):
            return Failure(AttemptResult(Outcome.BAD_RESPONSE, status, detail="text instead of JSON"))
        head.whole_json = b"content-encoding" not in found and status != 204
        return _WHOLE
    if status in (429, 503):
        return Failure(AttemptResult(Outcome.OVERLOADED, status, _retry_after(found), "overloaded"))
    if status == 401:
        return Failure(AttemptResult(Outcome.AUTH_FAILED, status, detail="engine refused our credentials"))
    if 400 <= status < 500:
        return Usable(streamed=False)
    if status >= 500:
        return Failure(AttemptResult(Outcome.UPSTREAM_ERROR, status, detail="engine error"))
    return Failure(AttemptResult(Outcome.BAD_RESPONSE, status, detail="unexpected status"))


_WHOLE = Usable(streamed=False)
_READ = frozenset(
    {b"content-type", b"content-encoding", b"retry-after", b"retry-after-ms", REFUSAL_HEADER, ATTEMPTS_HEADER}
)
_PEER_OUTCOMES: dict[bytes, Outcome] = {
    RejectReason.UPSTREAM_FAILED.value.encode(): Outcome.UPSTREAM_ERROR,
    RejectReason.UPSTREAM_AUTH.value.encode(): Outcome.UPSTREAM_ERROR,
    RejectReason.UPSTREAM_TIMEOUT.value.encode(): Outcome.TIMEOUT_FIRST_BYTE,
}


def _peer_refused(reason: bytes | None, status: int, found: dict[bytes, bytes], hop_attempt: int) -> AttemptResult:
    """A peer that has no room after all, or does not take our word, is not a failure of anything; engines failing there are."""
    outcome = _PEER_OUTCOMES.get(reason or b"", Outcome.REFUSED_SPILL)
    detail = f"peer: {(reason or b'refused').decode('latin-1')[:64]}"
    made = number(found.get(ATTEMPTS_HEADER), 0, 1000) or 0
    return AttemptResult(outcome, status, _retry_after(found), detail, max(1, made - hop_attempt + 1))


def _retry_after(found: dict[bytes, bytes]) -> float | None:
    for name, scale in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        try:
            seconds = float(found[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= 86_400:
            return seconds
    return None


class Answer:
    """One answer. Returns the bytes to write; never writes itself."""

    __slots__ = (
        "_buffer",
        "_buffered",
        "_chunked",
        "_events",
        "_head",
        "_hold",
        "_length",
        "_lines",
        "_passing",
        "_rename",
        "_request",
        "_usage",
        "begun",
        "keep",
        "seen",
        "status",
    )

    def __init__(
        self,
        request: ClientRequest,
        head: AnswerHead,
        length: int | None,
        *,
        verdict: Usable,
        strip_usage: bool,
        rename: str,
        lines: bytes,
        close: bool,
    ) -> None:
        """``lines`` are our own header lines. ``close``: the client's connection ends with this answer."""
        self._request = request
        self._head = head
        self._lines = lines
        self._rename = rename
        self._chunked = not request.http10
        self._length = length
        self._events = EventStream(strip_usage=strip_usage, rename=rename) if verdict.streamed else None
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._hold = 0 if verdict.opaque else WHOLE_RENAMED_BYTES if rename else WHOLE_BYTES
        self._passing = False
        self.status = head.status
        self._usage: Usage = NO_USAGE
        self.seen = False
        """A byte of the body has come."""
        self.begun = False
        """A byte has gone to the client: set by the exchange."""
        self.keep = request.keep_alive and not close

    # Bytes of the body come

    def feed(self, data: bytes) -> bytes:
        self.seen = True
        events = self._events
        if events is not None:
            out = events.feed(data)
            if not out:
                return b""
            if self.begun:
                return self._framed(out)
            return self._stream_head() + self._framed(out)
        if self._passing:
            return self._framed(data) if self._length is None else data
        self._buffer.append(data)
        self._buffered += len(data)
        return self._pass_on() if self._buffered > self._hold else b""

    @property
    def usage(self) -> Usage:
        """What the engine has counted so far."""
        return self._events.usage if self._events is not None else self._usage

    @property
    def direct(self) -> bool:
        """Whole chunks that hold whole events without usage may go on as they come."""
        events = self._events
        return events is not None and self.begun and self._chunked and events.aligned and not self._rename

    def passed(self, chunk: bytes) -> None:
        """A whole chunk went to the client as it came."""
        if self._events is not None:
            self._events.tail.append(chunk)

    def finish(self) -> tuple[bytes, AttemptResult | None]:
        """The body has ended: the last bytes to write, or why this is not an answer."""
        if self._events is not None:
            return self._finish_stream(self._events)
        if self._passing:
            return (b"0\r\n\r\n" if self._length is None and self._chunked else b""), None
        return self._finish_whole()

    def said_all(self) -> bool:
        """True for a stream whose terminal event has gone to the client."""
        return self._events is not None and self.begun and not self._events.carry and self._events.finished()

    def in_band(self, event: bytes) -> bytes:
        """What to write when the answer breaks after its first byte: for a stream an error event; the connection closes behind it.
        Nothing can be said inside any other body: its end is missing."""
        return self._framed(event) if self._events is not None else b""

    # Streams

    def _finish_stream(self, events: EventStream) -> tuple[bytes, AttemptResult | None]:
        rest = events.end()
        if self._request.task in _STREAMED_TASKS and not events.finished():
            # It ended in good order and yet said nothing of being over: a polite truncation is a truncation.
            return b"", AttemptResult(Outcome.BAD_RESPONSE, self.status, detail="stream ended without an end")
        out = self._framed(rest) if rest else b""
        if not self.begun:
            out = self._stream_head() + out
        return out + (b"0\r\n\r\n" if self._chunked else b""), None

    def _stream_head(self) -> bytes:
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        if not self._chunked:
            self.keep = False
        return self._top(framing + _STREAM_LINES, skip=_CACHE_CONTROL)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    # Everything else

    def _pass_on(self) -> bytes:
        """Too large to hold: from here it goes as it comes, its coding and its model name untouched."""
        self._passing = True
        body = b"".join(self._buffer)
        self._buffer = []
        if self._length is not None:
            return self._top(b"content-length: %d\r\n" % self._length) + body
        if self._chunked:
            return self._top(b"transfer-encoding: chunked\r\n") + self._framed(body)
        self.keep = False
        return self._top(b"") + body

    def _finish_whole(self) -> tuple[bytes, AttemptResult | None]:
        body = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        if self._head.whole_json:
            return self._json(body, _NONE)
        skip = _NONE
        coding = self._header(b"content-encoding")
        if coding:
            plain = _decoded(body, coding)
            if plain is not None:
                body, skip, coding = plain, _CONTENT_CODING, b""
        if self.status >= 400:
            kind = self._header(b"content-type").lower()
            if not kind.startswith(b"application/json") and not coding:
                body, skip = _shaped(self.status), skip | _CONTENT_TYPE
                return self._top(_JSON + b"content-length: %d\r\n" % len(body), skip=skip) + body, None
        elif not coding and self.status != 204:
            return self._json(body, skip)
        return self._top(b"content-length: %d\r\n" % len(body), skip=skip) + body, None

    def _json(self, body: bytes, skip: frozenset[bytes]) -> tuple[bytes, AttemptResult | None]:
        usage = read_answer(body)
        if usage is None:
            return b"", AttemptResult(Outcome.BAD_RESPONSE, self.status, detail="not JSON")
        self._usage = usage
        if self._rename:
            body = rename_model(body, self._rename)
        return self._top(b"content-length: %d\r\n" % len(body), skip=skip) + body, None

    def _header(self, name: bytes) -> bytes:
        for found, value in self._head.headers:
            if found == name:
                return value
        return b""

    def _top(self, own: bytes, *, skip: frozenset[bytes] = _NONE) -> bytes:
        """The whole head: what is passed on of the engine's, and ours."""
        head = self._head
        passed = head.lines
        if passed is None or skip:
            passed = _passed_on(head, skip)
            if not skip:
                head.lines = passed
        return b"".join((passed, own, self._lines, connection_line(self._request, keep=self.keep), b"\r\n"))


def whole_answer(request: ClientRequest, head: AnswerHead, lines: bytes, body: bytes, *, keep: bool) -> bytes:
    """A whole plain answer: the head as :class:`Answer` would write it, and the body."""
    if head.lines is None:
        head.lines = _passed_on(head, _NONE)
    ending = b"\r\n" if keep and not request.http10 else connection_line(request, keep=keep) + b"\r\n"
    return b"%bcontent-length: %d\r\n%b%b%b" % (head.lines, len(body), lines, ending, body)


def _passed_on(head: AnswerHead, skip: frozenset[bytes]) -> bytes:
    """Status line and the headers that reach the client."""
    dropped = ANSWER_DROPPED | skip
    for name, value in head.headers:
        if name == b"connection":
            dropped |= connection_names(value)
    lines = [_STATUS_LINES.get(head.status) or b"HTTP/1.1 %d \r\n" % head.status]
    lines += [
        name + b": " + value + b"\r\n"
        for name, value in head.headers
        if name not in dropped and not name.startswith(b"x-headrace-")
    ]
    return b"".join(lines)


_CACHE_CONTROL = frozenset({b"cache-control"})
_CONTENT_CODING = frozenset({b"content-encoding"})
_CONTENT_TYPE = frozenset({b"content-type"})
_JSON = b"content-type: application/json\r\n"


def _shaped(status: int) -> bytes:
    """An engine's error that is not JSON, in the shape clients can read; its text may name internals and stays here."""
    phrase = REASON_PHRASES.get(status, b"error").decode().lower()
    return error_json(f"The engine refused the request ({phrase}).", "invalid_request_error", "engine_error")


def _decoded(body: bytes, coding: bytes) -> bytes | None:
    """The body without its coding; None when it is not one of zlib's, damaged or too large (then it passes as it is)."""
    if coding.lower() not in (b"gzip", b"x-gzip", b"deflate"):
        return None
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        plain = inflater.decompress(body, _INFLATED_BYTES)
    except zlib.error:
        return None
    return plain if inflater.eof else None
