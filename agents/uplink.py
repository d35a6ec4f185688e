"""Reports to every router of the region, and the directives that come back.

A link holds no queue: it sends the newest report there is, so a slow router only gets fewer of them.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import grpc

from agents.backoff import Backoff, retry_after_seconds
from agents.membership import Membership
from agents.state import StoredIdentity, split_host_port
from fleet.clock import Clock
from fleet.process.grpc_server import grpc_address, make_channel
from fleet.process.logs import get_logger
from fleet.process.tls import TlsFiles
from fleet.report import NodeDirective, NodeReport
from fleet.wire.headrace.v1 import agent_pb2, agent_pb2_grpc
from fleet.wire.reports import directive_from_wire, node_report_to_wire

log = get_logger("agents.uplink")

_Call = grpc.aio.StreamStreamCall[agent_pb2.NodeReport, agent_pb2.NodeDirective]

RESOLVE_EVERY_SECONDS = 15.0
SETTLED_SECONDS = 5.0
"""A stream that lived this long starts its back-off anew."""
WRITE_TIMEOUT_SECONDS = 5.0
"""A router that takes nothing for this long is given up; its connection swallows what is sent."""
FAREWELL_SECONDS = 1.0
GREETING_SECONDS = 0.25
"""Routers greet with a directive on connect; one that does not gets its first report after this long."""


@dataclass(frozen=True, slots=True)
class Destination:
    """One router: ``key`` tells routers apart whatever they are called, ``address`` is what is dialled."""

    key: str
    address: str
    server_name: str | None = None
    """The name that its certificate carries, when an address is dialled."""


async def destinations(addresses: Iterable[str]) -> list[Destination]:
    """Every router behind ``addresses``: a name with several addresses is several routers. Raises nothing.

    A name that does not resolve (now) stays a destination by its name.
    """
    found: dict[str, Destination] = {}
    for resolved in await asyncio.gather(*(_resolve(a) for a in dict.fromkeys(addresses))):
        for destination in resolved:
            found.setdefault(destination.key, destination)
    return list(found.values())


async def _resolve(address: str) -> list[Destination]:
    try:
        host, port = split_host_port(address)
    except ValueError as error:
        log.error("bad_router_address", reason=str(error))
        return []
    scheme, mark, _ = address.partition("://")
    prefix = scheme + mark if mark else ""
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return [Destination(f"{host}:{port}", prefix + grpc_address(host, port))]
    v4 = list(dict.fromkeys(str(i[4][0]) for i in infos if i[0] == socket.AF_INET))
    v6 = list(dict.fromkeys(str(i[4][0]) for i in infos if i[0] == socket.AF_INET6))
    # A machine with an address of either kind is one router, not two.
    chosen = v6 if len(v6) > len(v4) else v4
    if len(chosen) <= 1:
        return [Destination(grpc_address(ip, port), prefix + grpc_address(host, port)) for ip in chosen]
    return [Destination(grpc_address(ip, port), prefix + grpc_address(ip, port), host) for ip in chosen]


class Uplink:
    """Links to all routers. One event loop; ``publish`` never blocks."""

    def __init__(
        self,
        routers: Sequence[str],
        membership: Membership,
        *,
        clock: Clock,
        on_directive: Callable[[NodeDirective], None],
        tls: TlsFiles | None = None,
        backoff_max_seconds: float = 10.0,
        resolve_every_seconds: float = RESOLVE_EVERY_SECONDS,
        dial: Callable[[str], str] | None = None,
    ) -> None:
        """``dial`` says under which address a router is reached from here, where that is not the one it is known by."""
        self._dial = dial or str
        self._configured = tuple(routers)
        self._membership = membership
        self._clock = clock
        self._on_directive = on_directive
        self._tls = tls
        self._backoff_max_seconds = backoff_max_seconds
        self._resolve_every_seconds = resolve_every_seconds
        self.directive: NodeDirective | None = None
        """The highest (epoch, version) seen on any stream; lower ones are ignored."""
        self.newest: NodeReport | None = None
        self.closing = False
        self.reports_sent = 0
        self.reconnects = 0
        self._links: dict[str, Link] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._routers_changed = asyncio.Event()

    def publish(self, report: NodeReport) -> None:
        """Make ``report`` the one that links send next."""
        self.newest = report
        for link in self._links.values():
            link.fresh.set()

    @property
    def connected(self) -> list[str]:
        """Keys of the routers that have answered on their present stream."""
        return [key for key, link in self._links.items() if link.answered]

    def addresses(self) -> list[str]:
        """All known routers, those that answer first."""
        links = sorted(self._links.values(), key=lambda link: not link.answered)
        return list(dict.fromkeys([*(link.destination.address for link in links), *map(self._dial, self._configured)]))

    async def run(self) -> None:
        """Keep one link to each router until cancelled."""
        try:
            while True:
                self._routers_changed.clear()
                await self._reconcile()
                try:
                    # Not wait_for: before Python 3.12 it may swallow a cancellation.
                    async with asyncio.timeout(self._resolve_every_seconds):
                        await self._routers_changed.wait()
                except TimeoutError:
                    pass  # look at names again: they may mean other addresses now
                for task in self._tasks.values():
                    if task.done() and not task.cancelled():
                        task.result()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.clear()
            self._links.clear()

    async def finish(self, last: NodeReport) -> None:
        """Send ``last`` on every stream, end the streams in good order, and give routers a moment to take it."""
        self.closing = True
        self.publish(last)
        tasks = [t for key, t in self._tasks.items() if self._links[key].open]
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL_SECONDS)

    async def _reconcile(self) -> None:
        wanted = {d.key: d for d in await destinations(map(self._dial, (*self._configured, *self._learned())))}
        for key in self._links.keys() - wanted.keys():
            self._tasks.pop(key).cancel()
            del self._links[key]
        for key, destination in wanted.items():
            if key not in self._links:
                link = Link(destination, self, self._membership, self._clock, self._tls, self._backoff_max_seconds)
                self._links[key] = link
                self._tasks[key] = asyncio.get_running_loop().create_task(link.run(), name=f"uplink-{key}")

    def _learned(self) -> tuple[str, ...]:
        """Routers named by the directives in force: of those that stand equally high, all of them."""
        if self.directive is None:
            return ()
        order = (self.directive.epoch, self.directive.version)
        live = [d for link in self._links.values() if (d := link.directive) and (d.epoch, d.version) == order]
        return tuple(dict.fromkeys(r for d in (live or [self.directive]) for r in d.routers))

    def take(self, directive: NodeDirective) -> None:
        """A directive came in on some stream."""
        if directive.rejoin:
            self._membership.rejoin()
        held = self.directive
        if held is None or (directive.epoch, directive.version) >= (held.epoch, held.version):
            self.directive = replace(directive, rejoin=False)
            self._on_directive(self.directive)
            self._routers_changed.set()


class Link:
    """The stream to one router, opened again whenever it ends."""

    def __init__(
        self,
        destination: Destination,
        uplink: Uplink,
        membership: Membership,
        clock: Clock,
        tls: TlsFiles | None,
        backoff_max_seconds: float,
    ) -> None:
        self.destination = destination
        self.fresh = asyncio.Event()
        self.answered = False
        """A directive has come in on the present stream."""
        self.open = False
        self.directive: NodeDirective | None = None
        """The newest on the present stream."""
        self.problem = ""
        self._uplink = uplink
        self._membership = membership
        self._clock = clock
        self._tls = tls
        self._backoff = Backoff(backoff_max_seconds)

    async def run(self) -> None:
        """Until cancelled, or until the farewell is said."""
        while not self._uplink.closing:
            identity = await self._membership.joined()
            opened = self._clock.monotonic()
            wait_at_least = 0.0
            try:
                await self._stream(identity)
                self._note("the router closed the stream")
            except grpc.aio.AioRpcError as error:
                self._note(f"{error.code().name}: {error.details()}")
                wait_at_least = retry_after_seconds(error)
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._membership.identity is identity:
                    self._membership.rejoin()
            except TimeoutError:
                self._note("the router takes nothing any more")
            finally:
                self.answered = self.open = False
                self.directive = None
            if self._uplink.closing:
                return
            if self._clock.monotonic() - opened >= SETTLED_SECONDS:
                self._backoff.reset()
            self._uplink.reconnects += 1
            await asyncio.sleep(self._backoff.next_delay(random, wait_at_least))

    async def _stream(self, identity: StoredIdentity) -> None:
        """One stream from beginning to end. Raises AioRpcError when it ends with an error."""
        where = self.destination
        async with make_channel(where.address, tls=self._tls, server_name=where.server_name) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)  # type: ignore[no-untyped-call]
            call: _Call = stub.Report(metadata=(("authorization", f"Bearer {identity.token}"),))
            reader = asyncio.get_running_loop().create_task(self._read(call))
            try:
                self.open = True
                if await self._write(call, reader, identity):
                    await reader  # how it ended
            finally:
                reader.cancel()
                call.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    async def _write(self, call: _Call, reader: asyncio.Task[None], identity: StoredIdentity) -> bool:
        """Send the newest report whenever there is one; True when the stream has ended, or all has been said.

        False: the node has another identity now, and this stream is to be replaced by one in its name.
        """
        await self._greeted(call, reader)
        while not reader.done():
            if self._membership.identity is not identity:
                return False
            report = self._uplink.newest
            closing = self._uplink.closing
            self.fresh.clear()
            if report is not None and report.node_uid == identity.node_uid:
                try:
                    async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                        await call.write(node_report_to_wire(report))
                except asyncio.InvalidStateError:
                    return True  # it ended under our hands; the reader knows how
                self._uplink.reports_sent += 1
            if closing:
                await call.done_writing()
                return True
            waiter = asyncio.get_running_loop().create_task(self.fresh.wait())
            try:
                await asyncio.wait({waiter, reader}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()
        return True

    async def _greeted(self, call: _Call, reader: asyncio.Task[None]) -> None:
        """Until the router has answered, in whatever way, or a moment has passed.

        grpc.aio loses the status of a call (and with it the retry delay) that is refused while a message is being written.
        """
        head = asyncio.get_running_loop().create_task(call.initial_metadata())
        try:
            await asyncio.wait({head, reader}, timeout=GREETING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            head.cancel()
            await asyncio.gather(head, return_exceptions=True)

    async def _read(self, call: _Call) -> None:
        async for message in call:
            directive = directive_from_wire(message)
            self.directive = directive
            if not self.answered:
                self.answered = True
                self._note("")
            self._uplink.take(directive)

    def _note(self, problem: str) -> None:
        if problem == self.problem or self._uplink.closing:
            return
        self.problem = problem
        if problem:
            log.warning("router_lost", router=self.destination.key, reason=problem)
        else:
            log.info("router_connected", router=self.destination.key)
