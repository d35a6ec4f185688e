"""Connections to engines and peer routers: an HTTP/1.1 client that does only what a relay needs.

Each base URL has its own pool (case-R12). A connection belongs to one exchange at a time and tells it, in this order: ``on_head``
once, ``on_data`` any number of times, then ``on_complete``; or ``on_broken`` at any point instead. Nothing is retried here: the
life of the request is the only retry layer (case-R01).
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from regional.gateway.dialling import places_of
from regional.gateway.repeat import MISSES, RepeatedHead
from regional.request.steps import Outcome

MAX_HEAD_BYTES = 256 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
_POOL_FORGET_SECONDS = 600.0
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

    def send(self, owner: Owner, data: list[bytes]) -> None:
        """Send a whole request."""
        self.owner = owner
        self.transport.writelines(data)

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


_HOST = re.compile(r"[A-Za-z0-9._:-]+")


class UpstreamPool:
    """Connections to one base URL."""

    __slots__ = ("_idle", "_limit", "_ranges", "_tls", "base_url", "host", "host_line", "open", "port", "used_at")

    def __init__(
        self, base_url: str, limit: int, tls: Callable[[], ssl.SSLContext], ranges: tuple[str, ...] = ()
    ) -> None:
        """``ranges``: networks that a name must lead into; none for no limit.

        Raises ValueError for a URL that is not ``http(s)://host[:port]``.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _HOST.fullmatch(parts.hostname):
            raise ValueError("not an http(s) base URL")
        self.base_url = base_url
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        literal = f"[{self.host}]" if ":" in self.host else self.host
        suffix = f":{parts.port}" if parts.port else ""
        self.host_line = f"host: {literal}{suffix}\r\n".encode()
        self._tls = tls if parts.scheme == "https" else None
        self._limit = limit
        self._ranges = ranges
        self._idle: list[UpstreamConnection] = []
        self.open: set[UpstreamConnection] = set()
        self.used_at = 0.0

    def take(self) -> UpstreamConnection | None:
        """The idle connection used last, or None: then :meth:`connect`."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection. Every address of a name is tried. Raises OSError or ssl.SSLError."""
        loop = asyncio.get_running_loop()
        context = self._tls() if self._tls is not None else None
        places = await places_of(self.host, self.port, self._ranges)
        while True:
            try:
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self),
                    places.pop(0),
                    self.port,
                    ssl=context,
                    server_hostname=self.host if context is not None else None,
                )
            except OSError:
                if not places:
                    raise
            else:
                return connection

    def release(self, connection: UpstreamConnection, *, reusable: bool) -> None:
        """A whole answer has been read from it."""
        transport = connection.transport
        if (
            reusable
            and not transport.is_closing()
            and len(self._idle) < self._limit
            and transport.get_write_buffer_size() == 0
        ):
            connection.ready_again()
            self._idle.append(connection)
        else:
            transport.abort()

    def lost(self, connection: UpstreamConnection) -> None:
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def drop_idle(self) -> None:
        """One kept connection turned out to be dead; the others of its age are no better."""
        while self._idle:
            self._idle.pop().transport.abort()

    def expire(self, now: float, idle_seconds: float) -> bool:
        """Close what has been idle for too long. True when the pool itself has not been used for long and may be forgotten."""
        keep = []
        for connection in self._idle:
            if connection.idle_since is None:
                connection.idle_since = now
            if now - connection.idle_since >= idle_seconds:
                connection.transport.abort()
            else:
                keep.append(connection)
        self._idle = keep
        return not self.open and now - self.used_at > _POOL_FORGET_SECONDS


class Upstreams:
    """All pools, by base URL and where its name may lead."""

    def __init__(self, idle_connections: int, idle_seconds: float, tls: Callable[[], ssl.SSLContext]) -> None:
        self._limit = idle_connections
        self._idle_seconds = idle_seconds
        self._tls = tls
        self._pools: dict[tuple[str, tuple[str, ...]], UpstreamPool] = {}

    def pool(self, base_url: str, now: float, ranges: tuple[str, ...] = ()) -> UpstreamPool:
        """``ranges``: networks that a name must lead into. Raises ValueError for a URL that cannot be one."""
        key = base_url, ranges
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = UpstreamPool(base_url, self._limit, self._tls, ranges)
        pool.used_at = now
        return pool

    def expire(self, now: float) -> None:
        forgotten = [key for key, pool in self._pools.items() if pool.expire(now, self._idle_seconds)]
        for key in forgotten:
            del self._pools[key]

    def close(self) -> None:
        for pool in self._pools.values():
            for connection in list(pool.open):
                connection.abandon()
        self._pools.clear()
