"""Connections to engines and peer routers: an HTTP/1.1 client that does only what a relay needs.

A connection belongs to one exchange at a time and tells it, in this order: ``on_head``
once, ``on_data`` any number of times, then ``on_complete``; or ``on_broken`` at any point instead. Nothing is retried here: the
life of the request is the only retry layer (case-R01).
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from regional.gateway.outbox import Outbox
from regional.gateway.repeat import MISSES, RepeatedHead
from regional.request.steps import Outcome

if TYPE_CHECKING:
    from regional.gateway.pools import UpstreamPool

MAX_HEAD_BYTES = 256 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
SMALL_BYTES = 32 * 1024
# Chunk size lines that the short way knows: plain lower-case or upper-case hex without leading zeros, as engines write them.
_SIZES = {b"%x" % n: n for n in range(1, 65536)} | {b"%X" % n: n for n in range(1, 65536)}
_CONTENT_END = b"\n\n\r\n"


class AnswerHead:
    """Status and headers of one answer; shared by answers whose heads are the same. Never changed."""

    __slots__ = ("chunked", "headers", "keep", "lines", "status", "whole_json")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], *, chunked: bool, keep: bool) -> None:
        self.status = status
        self.headers = headers
        """Names in lower case."""
        self.chunked = chunked
        self.keep = keep
        self.lines: bytes | None = None
        """What of it is passed on, once that has been worked out."""
        self.whole_json = False
        """A good answer that is plain JSON without a coding, once that has been looked at."""


_NO_HEAD = AnswerHead(0, [], chunked=False, keep=False)


class Owner(Protocol):
    """The exchange that a connection works for."""

    direct: bool
    """Whole chunks of whole events may be written to the client as they came."""
    fresh: bool

    def on_head(self, connection: UpstreamConnection) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_complete(self) -> None: ...
    def on_whole(self, connection: UpstreamConnection, body: bytes) -> None:
        """All of it at once: the same as ``on_head``, ``on_data`` and ``on_complete``."""
        ...

    def on_broken(self, outcome: Outcome, detail: str) -> None: ...
    def relay_chunk(self, chunk: bytes) -> None:
        """One whole chunk, framing included, that ends with a whole event and mentions no usage."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection. Values of the present answer are set when ``on_head`` is called."""

    __slots__ = (
        "_between_chunks",
        "_complete",
        "_fields",
        "_head_told",
        "_held",
        "_interim",
        "_misses",
        "_parser",
        "_pieces",
        "_repeated",
        "_repeated_head",
        "_silent",
        "_surplus",
        "head",
        "idle_since",
        "length",
        "owner",
        "pool",
        "reused",
        "transport",
    )

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.owner: Owner | None = None
        self.reused = False
        """This is not the connection's first request: that it is closed may be news only to us (case-R10)."""
        self.idle_since: float | None = None
        """When the pool first saw it idle; read at the pool's pace, so that a request need not ask for the time."""
        self.head = _NO_HEAD
        self.length: int | None = None
        """Declared length of the body."""
        self._parser = httptools.HttpResponseParser(self)
        self._repeated: RepeatedHead | None = None
        self._repeated_head = _NO_HEAD
        self._misses = 0
        self._held = False
        self._reset()

    def _reset(self) -> None:
        """Nothing of one answer stays for the next, which may be another tenant's."""
        self._fields: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self.head = _NO_HEAD
        self.length = None
        self._silent = 0
        self._interim = False
        self._head_told = False
        self._between_chunks = False
        self._complete = False
        self._surplus = False

    # What the owner does

    def send(self, owner: Owner, head: bytes, payload: bytes, outbox: Outbox) -> None:
        """Send a whole request; a small one at the end of this turn of the loop, with the others."""
        self.owner = owner
        if len(payload) <= SMALL_BYTES:
            outbox.add(self.transport, head + payload)
        else:
            self.transport.writelines((head, payload))

    def abandon(self) -> None:
        """The owner wants no more of it: nothing is told any more, and the engine sees the connection close at once."""
        self.owner = None
        if self.transport is not None:
            self.transport.abort()

    def hold(self) -> None:
        """Read no more for now: what the engine sends waits in the kernel, and then in the engine."""
        if not self._held:
            self._held = True
            self.transport.pause_reading()

    def flow(self) -> None:
        """Read again."""
        if self._held:
            self._held = False
            self.transport.resume_reading()

    def discard(self) -> None:
        """The owner has seen enough of this answer. When all of it is here the connection is kept, else closed."""
        if self._complete:
            self.finished()
        else:
            self.owner = None
            self.transport.abort()

    def finished(self) -> None:
        """The owner has all of this answer: the connection is free for another request."""
        self.owner = None
        self.pool.release(self, reusable=self.head.keep and not self._surplus)

    @property
    def answered(self) -> bool:
        """True when a byte of the present answer has come."""
        return self._silent > 0 or self.head is not _NO_HEAD or self._interim

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pool.open.add(self)

    def data_received(self, data: bytes) -> None:
        owner = self.owner
        if owner is None:  # an idle connection has nothing to say
            self.transport.abort()
            return
        if self._between_chunks and owner.direct:
            # The short way: one whole chunk that ends with a whole event goes on unparsed. The parser, which stands between two
            # chunks, does not notice.
            at = data.find(b"\r\n", 1, 6)
            size = _SIZES.get(data[:at]) if at > 0 else None
            if (
                size is not None
                and len(data) == at + size + 4
                and data.endswith(_CONTENT_END)
                and b'"usage"' not in data
            ):
                owner.relay_chunk(data)
                return
        begins = self.head is _NO_HEAD and not self._silent and not self._interim
        if begins and self._repeated is not None:
            start = self._repeated.body_start(data)
            if start > 0:
                self._misses = 0
                self.head = self._repeated_head
                self.length = len(data) - start
                self._complete = True
                owner.on_whole(self, data[start:])
                return
        self._silent += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Outcome.BAD_RESPONSE, "switched protocols")
            return
        except httptools.HttpParserError as error:
            self._fail(Outcome.BAD_RESPONSE, f"not HTTP: {error}")
            return
        if self._silent > MAX_HEAD_BYTES:
            self._fail(Outcome.BAD_RESPONSE, "head or framing too long")
            return
        if begins and self._complete and self._misses < MISSES:
            self._misses += 1
            if self.head.status == 200 and self.head.keep and self.length:
                self._repeated = RepeatedHead.of(data[: data.find(b"\r\n\r\n") + 4])
                self._repeated_head = self.head
        self._tell(data)

    def _tell(self, data: bytes) -> None:
        owner = self.owner
        if owner is None or self.head is _NO_HEAD:
            return
        if not self._head_told:
            self._head_told = True
            owner.on_head(self)
            if self.owner is not owner:
                return
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            owner.on_data(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if self.owner is not owner:
                return
        if self._complete:
            self.finished()
            owner.on_complete()
        elif not data.endswith(b"\r\n"):
            self._between_chunks = False  # a size line may have begun

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.lost(self)
        self._parser = cast(httptools.HttpResponseParser, None)  # it holds bound methods of this object
        owner = self.owner
        if owner is None:
            return
        self.owner = None
        if not self.answered:
            stale = self.reused
            owner.on_broken(Outcome.STALE_CONNECTION if stale else Outcome.RESET, "closed before an answer")
        elif self.head is not _NO_HEAD and not self.head.chunked and self.length is None and exc is None:
            owner.on_complete()  # the end of the connection is the end of the body
        else:
            owner.on_broken(Outcome.RESET, "closed in the middle of an answer")

    def pause_writing(self) -> None:
        pass  # a request body is held whole already: there is nobody to slow down

    def resume_writing(self) -> None:
        pass

    def _fail(self, outcome: Outcome, detail: str) -> None:
        owner, self.owner = self.owner, None
        self.transport.abort()
        if owner is not None:
            owner.on_broken(outcome, detail)

    # httptools: only notes what came; telling the owner waits until the parser has returned

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True  # bytes that nobody asked for follow the answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is not _NO_HEAD:
            return  # a trailer
        name = name.lower()
        if name == b"content-length":
            self.length = int(value)
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._silent = 0
        fields, self._fields = self._fields, []
        if self._surplus:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._interim = True
            self.length = None
            return
        chunked = any(name == b"transfer-encoding" for name, _ in fields)
        self._between_chunks = chunked
        self.head = AnswerHead(status, fields, chunked=chunked, keep=self._parser.should_keep_alive())

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        if not self._surplus:
            self._pieces.append(body)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._silent = 0
        self._between_chunks = True

    def on_message_complete(self) -> None:
        if self.head is _NO_HEAD:
            return  # an interim answer
        self._complete = True

    def ready_again(self) -> None:
        """Back in the pool."""
        self.flow()  # it may have been held in the very read that ended the answer
        self._reset()
        self.reused = True
        self.idle_since = None
