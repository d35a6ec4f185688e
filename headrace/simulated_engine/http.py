"""The little HTTP/1.1 server that engines speak through: one protocol object a connection, callbacks, no task a request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools

MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_UNREAD_BYTES = 1024 * 1024
_MAX_PIPELINED = 8
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Exchange:
    """One request and its answer. The handler answers now or later; ``on_abort`` is called if the client leaves first."""

    __slots__ = ("_connection", "_keep_alive", "_streaming", "body", "done", "headers", "method", "on_abort", "path")

    def __init__(
        self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes, keep: bool
    ):
        self._connection = connection
        self._keep_alive = keep
        self._streaming = False
        self.method = method
        self.path = path
        self.headers = headers
        """Lower-case names; of repeated ones the last."""
        self.body = body
        self.done = False
        self.on_abort: Callable[[], None] | None = None

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        extra: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Send the whole answer. Nothing happens when the client is gone."""
        if self.done:
            return
        head = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}", f"content-type: {content_type}"]
        head += [f"{name}: {value}" for name, value in extra]
        head.append(f"content-length: {len(body)}")
        if not self._keep_alive:
            head.append("connection: close")
        self._connection.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
        self._finish()

    def start_stream(self) -> None:
        """Send the head of an event stream."""
        if not self.done:
            self._streaming = True
            close = b"" if self._keep_alive else b"connection: close\r\n"
            self._connection.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                b"transfer-encoding: chunked\r\n" + close + b"\r\n"
            )

    def send(self, data: bytes) -> None:
        """Send one chunk of the stream."""
        if not self.done and data:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        if not self.done:
            self._connection.write(b"0\r\n\r\n")
            self._finish()

    @property
    def streaming(self) -> bool:
        return self._streaming

    def _finish(self) -> None:
        self.done = True
        self.on_abort = None
        self._connection.finished(self._keep_alive)

    def aborted(self) -> None:
        """The connection is gone; called once by the connection."""
        if not self.done:
            self.done = True
            if self.on_abort is not None:
                self.on_abort()
            self.on_abort = None


Handler = Callable[[Exchange], None]


class Connection(asyncio.Protocol):
    """One client connection: requests are answered one at a time, in order."""

    def __init__(self, handler: Handler, connections: set[Connection]) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._closing = False

    # --- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_MAX_UNREAD_BYTES)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, b'{"error":"no upgrades here"}')
        except httptools.HttpParserError:
            self._refuse(400, b'{"error":"not HTTP"}')
        else:
            self._next()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """A client that does not read what it asked for is cut off, before it fills our memory."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._closing = True
        current, self._current = self._current, None
        if current is not None:
            current.aborted()
        while self._queue:
            self._queue.popleft().aborted()

    # --- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body, self._body_bytes = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes <= MAX_BODY_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._closing:
            return
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413, b'{"error":"the body is too large"}')
            return
        method = self._parser.get_method().decode("ascii")
        path = self._url.decode("latin-1").partition("?")[0]
        keep = bool(self._parser.should_keep_alive())
        # Handled when the parser is done with this piece: its callbacks swallow what a handler raises.
        self._queue.append(Exchange(self, method, path, self._headers, b"".join(self._body), keep))
        if len(self._queue) > _MAX_PIPELINED:
            self.abort()

    # --- used by exchanges and the server -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def finished(self, keep_alive: bool) -> None:
        self._current = None
        if keep_alive:
            self._next()
        else:
            self.close()

    def _next(self) -> None:
        if self._current is None and self._queue and not self._closing:
            self._current = self._queue.popleft()
            self._handler(self._current)

    def close(self) -> None:
        """Close when what was written has gone out."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Reset the connection at once, as a process that dies does."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def busy(self) -> bool:
        return self._current is not None

    def _refuse(self, status: int, body: bytes) -> None:
        phrase = _PHRASES[status].encode()
        self.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, phrase, len(body), body)
        )
        self.close()
