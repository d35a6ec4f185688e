"""Serving HTTP with uvicorn inside a process that has other things to do, and stopping without cutting anybody off."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from fleet.errors import HeadraceError
from fleet.process.health import Readiness
from fleet.process.tls import TlsFiles

KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048


class BindError(HeadraceError):
    """An address cannot be served on; the text says which and what to do."""


def bind_error(host: str, port: int, flag: str, error: OSError | None) -> BindError:
    """The one line that a user gets for an address that cannot be had."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    match error.errno if error is not None else errno.EADDRINUSE:
        case errno.EADDRINUSE:
            return BindError(f"{where} is taken by another process; choose another port with {flag} or stop the other")
        case errno.EADDRNOTAVAIL:
            return BindError(f"{where} is not an address of this machine; choose another with --host")
        case errno.EACCES:
            return BindError(f"{where} needs privileges that this process lacks; choose a port above 1023 with {flag}")
        case _:
            return BindError(f"cannot serve on {where}: {error.strerror if error else 'refused'}")


def bind(host: str, port: int, *, flag: str = "--port", reuse_port: bool = False) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises BindError.

    ``reuse_port`` lets the workers of one router share a port. Everyone else must not, or a second process started by
    mistake would silently take half of the connections.
    """
    plain = host.strip("[]")
    try:
        found = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise BindError(f"{host} is neither an address nor a name that resolves; choose another with --host") from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise bind_error(plain, port, flag, error) from None
    return sock


async def serve_http(
    app: Any,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    tls: TlsFiles | None = None,
    on_bound: Callable[[str, int], None] | None = None,
    flag: str = "--port",
    sock: socket.socket | None = None,
    grace_seconds: float = 10.0,
) -> None:
    """Serve ``app`` until ``stop`` is set; then finish what runs, for at most ``grace_seconds``.

    ``on_bound(host, port)`` is told the real port before the first request can come. ``sock`` is used instead of binding.
    Raises BindError when the address cannot be had.
    """
    listener = sock if sock is not None else bind(host, port, flag=flag)
    context = tls.server_context() if tls is not None and tls.serves else None
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",  # what lives longer than a request belongs to the process, which starts and stops it
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the client's address is decided by fleet.geo.client_address, in one place
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
        ssl_context_factory=(lambda _config, _default: context) if context is not None else None,
    )
    try:
        if on_bound is not None:
            name = listener.getsockname()
            on_bound(name[0], name[1])
        await _Server(config, stop).serve(sockets=[listener])
    finally:
        listener.close()


async def announce_stop(stop: asyncio.Event, readiness: Readiness, delay_seconds: float) -> asyncio.Event:
    """Wait for ``stop``, turn unready, and give balancers ``delay_seconds`` to notice; then listeners may close.

    Returns an event that is set, to hand to ``serve_http`` style functions that wait for one.
    """
    await stop.wait()
    readiness.draining()
    await asyncio.sleep(delay_seconds)
    closing = asyncio.Event()
    closing.set()
    return closing


class _Server(uvicorn.Server):
    """uvicorn that stops on an event; signals belong to the process, not to one of its ports."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._stop = stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Wake once a second for the Date header, and at once when told to stop; stock uvicorn polls ten times a second."""
        counter = 0
        while not await self.on_tick(counter):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), timeout=1.0)
            self.should_exit = self.should_exit or self._stop.is_set()
