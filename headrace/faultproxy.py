"""A TCP proxy that does to a connection what networks do: delay, swallow, refuse, cut. For the demo, drills and tests."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from enum import StrEnum
from typing import cast

_HELD_BYTES = 1024 * 1024
_UNREAD_BYTES = 256 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Mode(StrEnum):
    FORWARD = "forward"
    SWALLOW = "swallow"
    """Connections are accepted, bytes vanish from sight, nothing is answered: a partition. What was held goes on after it."""
    REFUSE = "refuse"
    """The port is closed for new connections."""


Observer = Callable[[bytes], None]
"""Sees what clients send, in the pieces that arrive, also while it is swallowed."""


class FaultProxy:
    """One listening port in front of one target. All methods are for the loop it was started on."""

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        observe: Observer | None = None,
    ) -> None:
        self.target = (target_host, target_port)
        self.host = host
        self.port = port
        """The real one after ``start``."""
        self.delay_seconds = 0.0
        """Added to every piece, each way."""
        self._observe = observe
        self._mode = Mode.FORWARD
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def connections(self) -> int:
        return len(self._links)

    async def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self), self.host, self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def set_mode(self, mode: Mode) -> None:
        """Change what happens from now on, also to connections that are open."""
        if mode is self._mode:
            return
        was, self._mode = self._mode, mode
        if mode is Mode.REFUSE and self._server is not None:
            self._server.close()
        elif was is Mode.REFUSE:
            await self.start()
        if was is Mode.SWALLOW:
            for link in tuple(self._links):
                link.release()

    def cut(self) -> None:
        """Reset every open connection, both ways."""
        for link in tuple(self._links):
            link.abort()

    def _seen(self, data: bytes) -> None:
        if self._observe is not None:
            self._observe(data)


class _Side(asyncio.Protocol):
    """One end of a connection: what it receives goes to ``other``, in order, held or delayed as the proxy says."""

    def __init__(self, link: _Link, *, client: bool) -> None:
        self._link = link
        self._client = client
        self.transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_eof = False
        self._last_delivery = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        if self._client:
            self._link.proxy._seen(data)
        if self._link.must_hold(self):
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes > _HELD_BYTES and self.transport is not None:
                self.transport.pause_reading()
        else:
            self._pass(data)

    def eof_received(self) -> bool:
        if self._link.must_hold(self):
            self._held_eof = True
        else:
            self._pass(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost(self, reset=exc is not None)

    def pause_writing(self) -> None:
        if (source := self._link.other(self).transport) is not None:
            source.pause_reading()

    def resume_writing(self) -> None:
        if (source := self._link.other(self).transport) is not None:
            source.resume_reading()

    def release(self) -> None:
        """Pass on what was held."""
        held, self._held, self._held_bytes = self._held, [], 0
        for data in held:
            self._pass(data)
        if self._held_eof:
            self._held_eof = False
            self._pass(None)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _pass(self, data: bytes | None) -> None:
        delay = self._link.proxy.delay_seconds
        loop = asyncio.get_running_loop()
        if delay <= 0 and self._last_delivery <= loop.time():
            self._link.deliver(self, data)
            return
        # Never before what is already on its way, even when the delay was just taken back.
        self._last_delivery = max(loop.time() + delay, self._last_delivery + 1e-6)
        loop.call_at(self._last_delivery, self._link.deliver, self, data)


class _Link(_Side):
    """A client's connection together with the one to the target."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(self, client=True)
        self.upstream = _Side(self, client=False)
        self._dialling: asyncio.Task[None] | None = None
        self._ended = False

    def made(self, side: _Side) -> None:
        if side is self:
            self.proxy._links.add(self)
            if self.proxy.mode is not Mode.SWALLOW:
                self._dial()
        elif self._ended:
            assert side.transport is not None
            side.transport.abort()
        else:
            self.release()

    def other(self, side: _Side) -> _Side:
        return self.upstream if side is self else self

    def must_hold(self, side: _Side) -> bool:
        return self.proxy.mode is Mode.SWALLOW or self.other(side).transport is None

    def deliver(self, source: _Side, data: bytes | None) -> None:
        target = self.other(source).transport
        if target is None or target.is_closing():
            return
        if data is not None:
            target.write(data)
        elif target.can_write_eof():
            target.write_eof()

    def release(self) -> None:
        """A partition ended, or the target was reached."""
        if self.upstream.transport is None:
            self._dial()
            return
        super().release()
        self.upstream.release()

    def lost(self, side: _Side, *, reset: bool) -> None:
        """One end is gone: the other goes too, in the same manner, once what is under way has arrived."""
        if self.proxy.mode is Mode.SWALLOW and not self._ended:
            # The other end cannot know. It is told when the partition is over.
            side._held_eof = True
            return
        other = self.other(side).transport
        if reset:
            self.abort()
            return
        if other is not None and not other.is_closing():
            delay = max(0.0, side._last_delivery - asyncio.get_running_loop().time())
            asyncio.get_running_loop().call_later(delay, other.close)
        self._end()

    def abort(self) -> None:
        self._end()
        for side in (self, self.upstream):
            if side.transport is not None and not side.transport.is_closing():
                connection = side.transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                side.transport.abort()

    def _end(self) -> None:
        self._ended = True
        self.proxy._links.discard(self)
        if self._dialling is not None and self.upstream.transport is None:
            self._dialling.cancel()

    def _dial(self) -> None:
        if self._dialling is None and not self._ended:
            self._dialling = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.upstream, *self.proxy.target)
        except OSError:
            # Nobody listens there. A real network would have refused; the nearest thing left to us is a reset.
            self.abort()
