"""One client's connection: HTTP/1.1 in, requests one after another to where they are answered."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from regional.gateway import errors, hop
from regional.gateway.errors import REASON_PHRASES, Refusal
from regional.gateway.exchange import Exchange
from regional.gateway.headers import REQUEST_ACTIONS
from regional.gateway.repeat import MISSES, RepeatedHead
from regional.gateway.request import ClientRequest, Kind, connection_line

if TYPE_CHECKING:
    from regional.gateway.server import Gateway

WRITE_BUFFER_BYTES = 256 * 1024
SMALL_BODY_BYTES = 64 * 1024
"""A refused request's body of at most this is read and thrown away, so that the connection can go on."""
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 1024 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """Parses requests, keeps them in order, bounds what a client can make us hold, and closes what is too slow."""

    __slots__ = (
        "_deaf",
        "_discarded",
        "_gateway",
        "_last_request",
        "_linger_until",
        "_made_up_head",
        "_misses",
        "_model_request",
        "_parser",
        "_paused_reading",
        "_repeated",
        "_request",
        "_silent",
        "_since",
        "_starting",
        "_waiting",
        "exchange",
        "paused_writing",
        "peer",
        "transport",
    )

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.peer = ""
        self.exchange: Exchange | None = None
        """The request being answered. Others wait behind it."""
        self.paused_writing = False
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._request: ClientRequest | None = None
        self._waiting: deque[ClientRequest] = deque()
        self._silent = 0
        self._since = gateway.now
        self._deaf = False
        self._last_request = False
        self._linger_until: float | None = None
        self._made_up_head = False
        self._repeated: RepeatedHead | None = None
        self._model_request: ClientRequest | None = None
        self._misses = 0
        self._discarded = 0
        self._paused_reading = False
        self._starting = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peername = transport.get_extra_info("peername")
        self.peer = str(peername[0]) if isinstance(peername, tuple) else ""
        if not self._gateway.admit(self):
            self._refuse_and_close(errors.TOO_BUSY, None)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._parser is None:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.abort()
            return
        between = self._request is None and not self._waiting and not self._made_up_head
        if between and self._repeated is not None:
            start = self._repeated.body_start(data)
            if start > 0 and self._same_again(data[start:]):
                return
        self._silent += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._malformed(errors.MALFORMED)
            return
        if self._silent > self._gateway.settings.head_bytes:
            head = self._request is None or not self._request.head_done
            self._malformed(errors.HEAD_TOO_LARGE if head else errors.MALFORMED)
            return
        if between and self._waiting and self._misses < MISSES:
            self._learn(self._waiting[0], data)
        if self._waiting:
            self._start_next()

    def _learn(self, request: ClientRequest, data: bytes) -> None:
        """``data`` began with this request's head: recognise it when it comes again."""
        self._misses += 1
        if request.repeatable and not self._made_up_head:
            self._repeated = RepeatedHead.of(data[: data.find(b"\r\n\r\n") + 4])
            request.forward = [b"".join(request.forward)]
            self._model_request = request

    def _same_again(self, body: bytes) -> bool:
        """Take a request whose head is the one before again. False leaves it to the parser."""
        model = self._model_request
        gateway = self._gateway
        if model is None or len(body) > gateway.settings.body_bytes:
            return False
        request = model.again(gateway.now, gateway.monotonic())
        if not gateway.reception.admit_again(request) or not gateway.buffer(request, len(body)):
            return False
        self._misses = 0
        request.body.append(body)
        request.size = len(body)
        if self.exchange is None and not self.paused_writing and not self._last_request:
            self._begin(request)
        else:
            self._waiting.append(request)
        return True

    def eof_received(self) -> bool:
        """A client that closes its side has left: nobody could tell it from one that closed altogether."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.departed(self)
        self._parser = None  # it holds bound methods of this object
        self._deaf = True
        for request in (*self._waiting, self._request):
            if request is not None:
                self._gateway.unbuffer(request)
        self._waiting.clear()
        self._request = self._model_request = None
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_gone()

    def pause_writing(self) -> None:
        self.paused_writing = True
        self._since = self._gateway.now
        if self.exchange is not None:
            self.exchange.slow_down()

    def resume_writing(self) -> None:
        self.paused_writing = False
        if self.exchange is not None:
            self.exchange.go_on()
        elif self._waiting:
            self._start_next()

    # httptools: only notes what came; starting waits until the parser has returned

    def on_message_begin(self) -> None:
        if not self._made_up_head:
            self._request = ClientRequest(self._gateway.now)

    def on_url(self, url: bytes) -> None:
        if self._request is not None and not self._request.head_done:
            self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._request
        if request is None or request.head_done:
            return  # a trailer
        name = name.lower()
        action = REQUEST_ACTIONS.get(name)
        if action is None:
            if not name.startswith(b"x-headrace-"):
                request.forward.append(name + b": " + value + b"\r\n")
        elif action:
            known = request.known
            if name in known:
                known[name] += b", " + value
                request.repeated.add(name)
            else:
                known[name] = value

    def on_headers_complete(self) -> None:
        request, parser = self._request, self._parser
        if self._made_up_head:
            self._made_up_head = False
            return
        if request is None or parser is None:
            return
        self._silent = 0
        request.head_done = True
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        request.http10 = version == "1.0"
        request.arrived = self._gateway.monotonic()
        if version not in ("1.1", "1.0"):
            request.refusal = errors.MALFORMED
        elif len(request.forward) + len(request.known) > self._gateway.settings.header_count:
            request.refusal = errors.HEAD_TOO_LARGE
        else:
            request.refusal = self._gateway.reception.judge(request, self.peer)
        if request.refusal is not None:
            length = request.declared_length
            unclear = request.refusal is errors.MALFORMED
            if unclear or length is None or length > SMALL_BODY_BYTES or request.expects_continue:
                self._stop_at(request)
        elif request.expects_continue and self.exchange is None and not self._waiting:
            self._gateway.outbox.flush()
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        request = self._request
        if request is None or request.refusal is not None:
            return
        request.size += len(body)
        if request.size > self._gateway.settings.body_bytes:
            self._gateway.unbuffer(request)
            request.refusal = errors.TOO_LARGE
            self._stop_at(request)
        elif request.kind is not Kind.INFERENCE:
            pass  # answered here, whatever its body says: nobody would let go of it
        elif self._gateway.buffer(request, len(body)):
            request.body.append(body)
        else:
            self._gateway.unbuffer(request)
            request.refusal = errors.TOO_BUSY
            self._stop_at(request)

    def on_message_complete(self) -> None:
        self._silent = 0
        if self._parser is not None and self._parser.should_upgrade():
            return  # only the head is over: see _decline_upgrade
        request, self._request = self._request, None
        if request is None:
            return
        request.complete = True
        self._waiting.append(request)
        if len(self._waiting) > self._gateway.settings.pipelined and not self._paused_reading:
            self._paused_reading = True
            self.transport.pause_reading()

    # The order of things

    def _stop_at(self, request: ClientRequest) -> None:
        """Answer a refused request now; what is left of it is thrown away, and nothing after it is read."""
        request.keep_alive = False
        self._request = None
        self._deaf = True
        self._waiting.append(request)

    def _start_next(self) -> None:
        """Begin with the requests that wait, in order, until one takes time."""
        if self._starting:
            return  # further up the stack a loop is at it
        self._starting = True
        try:
            while self._waiting and self.exchange is None and not self.paused_writing and not self._last_request:
                self._begin(self._waiting.popleft())
            if self._paused_reading and not self._waiting:
                self._paused_reading = False
                self.transport.resume_reading()
        finally:
            self._starting = False

    def _begin(self, request: ClientRequest) -> None:
        if request.refusal is not None:
            self._gateway.count_refusal(request)
            self.answer(request, request.refusal)
        elif request.kind is Kind.INFERENCE:
            if self._gateway.closing:
                request.keep_alive = False
            self.exchange = exchange = Exchange(self._gateway, self, request)
            exchange.start()
        else:
            self._gateway.answer_locally(self, request)

    def done(self, *, keep: bool) -> None:
        """The present answer has been written whole. Without ``keep`` the connection closes once it is sent."""
        self.exchange = None
        self._since = self._gateway.now
        if not keep or (self._gateway.closing and not self._waiting):
            self._close()
        elif self._waiting:
            self._start_next()

    def answer(self, request: ClientRequest, refusal: Refusal) -> None:
        """Write an error of our own as the present answer."""
        body = refusal.body()
        lines = b"content-type: application/json\r\n" + refusal.header_lines()
        if request.claims is not None:
            lines += b"%b: %b\r\n%b: %d\r\n" % (
                hop.REFUSAL_HEADER,
                refusal.code.encode(),
                hop.ATTEMPTS_HEADER,
                request.attempts,
            )
        self.write_whole(request, refusal.status, lines, body)

    def write_whole(self, request: ClientRequest, status: int, lines: bytes, body: bytes) -> None:
        """Write an answer that is all here."""
        keep = request.keep_alive and not self._gateway.closing
        self._gateway.outbox.flush()  # the answer before this one may still be there
        self.transport.write(
            b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n%b"
            % (
                status,
                REASON_PHRASES.get(status, b""),
                lines,
                len(body),
                request.shown_id.encode(),
                connection_line(request, keep=keep),
                b"" if request.method == b"HEAD" else body,
            )
        )
        self.done(keep=keep)

    # Closing

    def _malformed(self, refusal: Refusal) -> None:
        """What comes after this cannot be told apart any more: answer what is under way, then this, then close."""
        request = self._request or ClientRequest(self._gateway.now)
        self._gateway.unbuffer(request)
        request.refusal = refusal
        self._stop_at(request)
        self._start_next()

    def _refuse_and_close(self, refusal: Refusal, request: ClientRequest | None) -> None:
        if request is None:
            request = ClientRequest(self._gateway.now)
        request.keep_alive = False
        self._deaf = True
        self.answer(request, refusal)

    def _close(self) -> None:
        """Close once everything is sent. While the client still sends, what it sends is thrown away for a moment first: closing
        at once would reset the connection, and the client could lose the answer (case-B05)."""
        self._last_request = True
        self._gateway.outbox.flush()
        if not self._deaf or self.transport.is_closing() or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._linger_until = self._gateway.now + LINGER_SECONDS
        self.transport.write_eof()

    def _decline_upgrade(self, rest: bytes) -> None:
        """The client offers another protocol and we stay with HTTP/1.1, as RFC 9110 allows. llhttp has taken the request to end
        with its head, so what follows is read by a new parser as the body that the head announced."""
        request = self._request
        if request is None:
            return  # refused already, and deaf
        length = request.declared_length
        framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        self._parser = httptools.HttpRequestParser(self)
        self._made_up_head = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self.data_received(rest)

    def shut(self) -> None:
        """The gateway stops: close now if nothing is under way, else after the present answer."""
        if self.exchange is None and not self._waiting and self._request is None:
            self._close()

    def tick(self, now: float) -> None:
        """Close what is too slow (rel-R20). Called about once a second."""
        settings = self._gateway.settings
        if self.paused_writing or self.transport.is_closing():
            if now - self._since > settings.client_seconds:
                self.transport.abort()
            return
        if self._linger_until is not None:
            if now >= self._linger_until:
                self.transport.abort()
            return
        if self.exchange is not None:
            return
        request = self._request
        if request is None:
            if now - self._since > settings.keepalive_seconds:
                self.transport.abort()
            return
        elapsed = now - request.began
        if elapsed > settings.client_seconds and (
            not request.head_done or request.size < settings.body_floor * elapsed
        ):
            self._malformed(errors.TOO_SLOW)
