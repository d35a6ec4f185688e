"""The demo's network: every zone's traffic and every region's front door go through fault proxies, which also see all requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.errors import Unavailable
from headrace.demo.layout import HOST, Layout, NodeLayout, RegionLayout, ZoneLayout
from headrace.faultproxy import FaultProxy, Mode

_REQUEST = b"POST /v1/"
_REMEMBERED = 512


@dataclass(slots=True)
class _Seen:
    """When requests went to one place, newest last, on the loop's clock."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def observe(self, data: bytes) -> None:
        # One write of a client begins one request: neither routers nor our client pipeline.
        if data.startswith(_REQUEST):
            self.times.append(asyncio.get_running_loop().time())


class Network:
    """All proxies of the demo. ``start`` and ``close`` it."""

    def __init__(self, plan: Layout) -> None:
        self._plan = plan
        self._seen: dict[str, _Seen] = {}
        self._zones: dict[str, list[FaultProxy]] = {}
        self._all: list[FaultProxy] = []
        for region in plan.regions:
            self._proxy(region.router_port, region.front_port, region.name)
            for zone in region.zones:
                proxies = [self._proxy(region.router_grpc_port, zone.grpc_port, "")]
                proxies += [
                    self._proxy(engine.port, engine.advertised_port, gpu_place(node.name, engine.gpu))
                    for node in zone.nodes
                    for engine in node.engines
                ]
                self._zones[zone.name] = proxies

    def _proxy(self, target: int, port: int, place: str) -> FaultProxy:
        observe = self._seen.setdefault(place, _Seen()).observe if place else None
        proxy = FaultProxy(HOST, target, host=HOST, port=port, observe=observe)
        self._all.append(proxy)
        return proxy

    async def start(self) -> None:
        """Raises Unavailable when a port is taken."""
        for proxy in self._all:
            try:
                await proxy.start()
            except OSError as error:
                raise Unavailable(f"cannot listen on {proxy.address}: {error.strerror or error}") from None

    async def close(self) -> None:
        for proxy in self._all:
            await proxy.close()

    async def cut_zone(self, zone: str) -> None:
        """Swallow all traffic from and to the zone: its agents' reports and the requests to its engines."""
        for proxy in self._zones[zone]:
            await proxy.set_mode(Mode.SWALLOW)

    async def join_zone(self, zone: str) -> None:
        for proxy in self._zones[zone]:
            await proxy.set_mode(Mode.FORWARD)

    def last_request(self, places: Iterable[str], since: float) -> float | None:
        """When, after ``since``, the last request was sent to any of the places, also if nothing took it; None for never."""
        times = [seen.times[-1] for place in places if (seen := self._seen.get(place)) is not None and seen.times]
        latest = max(times, default=since)
        return latest if latest > since else None


def gpu_place(node: str, gpu: int) -> str:
    return f"{node}/gpu{gpu}"


def places_of_node(node: NodeLayout) -> list[str]:
    """Where requests to a node arrive."""
    return [gpu_place(node.name, engine.gpu) for engine in node.engines]


def places_of_zone(zone: ZoneLayout) -> list[str]:
    return [place for node in zone.nodes for place in places_of_node(node)]


def places_of_region(region: RegionLayout) -> list[str]:
    """Its engines, and its front door, where clients and peer regions come in."""
    return [region.name, *(place for zone in region.zones for place in places_of_zone(zone))]
