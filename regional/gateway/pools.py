"""Pools of upstream connections, one for each base URL, so that one engine cannot hold up another (case-R12)."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from regional.gateway.dialling import places_of
from regional.gateway.upstream import UpstreamConnection

_POOL_FORGET_SECONDS = 600.0
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
