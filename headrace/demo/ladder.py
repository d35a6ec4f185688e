"""The failover ladder: a GPU, a node, a zone and a region are lost under load, one after the other, and come back."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.demo.layout import NodeLayout, RegionLayout, ZoneLayout
from headrace.demo.network import gpu_place, places_of_node, places_of_region, places_of_zone
from headrace.demo.stage import Stage
from headrace.demo.traffic import Served, Traffic, shares, window

_BEFORE_SECONDS = 2.0
_AFTER_SECONDS = 2.0
_HOME_SECONDS = 25.0
"""Longest wait, once a place is back, for traffic to come home."""
_POLL_SECONDS = 0.1
_DOUBLE_BIT_ECC = 48
"""The XID of an uncorrectable memory error."""


@dataclass(frozen=True, slots=True)
class RungResult:
    """What one rung showed. ``before``, ``during`` and ``after`` are shares of the home city's answered requests by place."""

    name: str
    place: str
    sent: int
    failed: int
    retried: int
    interrupted: int
    """Answers that broke off after their first byte: streams on what died. Nothing may be re-sent then."""
    seconds_to_clear: float
    before: dict[str, float]
    during: dict[str, float]
    after: dict[str, float]
    faults: tuple[str, ...]
    """Why it did not hold; empty when it did."""
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "sent": self.sent,
            "failed": self.failed,
            "retried": self.retried,
            "interrupted": self.interrupted,
            "seconds_to_clear": round(self.seconds_to_clear, 3),
            "from": self.before,
            "to": self.during,
            "after": self.after,
        }


class Rung(ABC):
    """One kind of loss: what is struck, how it comes back, and what must hold meanwhile."""

    name: str
    """Also the level at which places are told apart."""
    limit_seconds: float
    """Until no new request goes to the dead place."""
    lost_seconds: float
    minimum_requests = 500
    failed_per_thousand = 0.0

    def __init__(self, stage: Stage, region: RegionLayout) -> None:
        self.stage = stage
        self.region = region

    @abstractmethod
    def choose(self, busiest: str) -> str:
        """Take the busiest place of this level as the one to strike; what will happen to it, in words."""

    @abstractmethod
    def places(self) -> Sequence[str]:
        """Where requests to it arrive, in the network's words."""

    @abstractmethod
    async def strike(self) -> None: ...

    @abstractmethod
    async def restore(self) -> None:
        """Bring it back, and wait until it can take requests."""


class GpuRung(Rung):
    name, limit_seconds, lost_seconds = "gpu", 1.0, 2.5

    def choose(self, busiest: str) -> str:
        self._node, self._gpu = next(
            (node, engine.gpu)
            for node in self.region.nodes
            for engine in node.engines
            if gpu_place(node.name, engine.gpu) == busiest
        )
        return f"GPU {self._gpu} of {self._node.name} reports XID {_DOUBLE_BIT_ECC}"

    def places(self) -> Sequence[str]:
        return [gpu_place(self._node.name, self._gpu)]

    async def strike(self) -> None:
        await self.stage.post_fault(self._node, self._gpu, "xid", _DOUBLE_BIT_ECC)

    async def restore(self) -> None:
        await self.stage.post_fault(self._node, self._gpu, "recover")
        await self.stage.until_in_rotation([self._node])


class NodeRung(Rung):
    name, limit_seconds, lost_seconds = "node", 2.0, 3.5
    _node: NodeLayout

    def choose(self, busiest: str) -> str:
        self._node = next(node for node in self.region.nodes if node.name == busiest)
        return f"the process of node {busiest} is killed"

    def places(self) -> Sequence[str]:
        return places_of_node(self._node)

    async def strike(self) -> None:
        await self.stage.nodes[self._node.name].kill()

    async def restore(self) -> None:
        await self.stage.nodes[self._node.name].start()
        await self.stage.until_in_rotation([self._node])


class ZoneRung(Rung):
    name, limit_seconds, lost_seconds = "zone", 2.0, 4.0
    _zone: ZoneLayout

    def choose(self, busiest: str) -> str:
        self._zone = next(zone for zone in self.region.zones if zone.name == busiest)
        return f"zone {busiest} is cut off: its traffic is swallowed"

    def places(self) -> Sequence[str]:
        return places_of_zone(self._zone)

    async def strike(self) -> None:
        await self.stage.network.cut_zone(self._zone.name)

    async def restore(self) -> None:
        await self.stage.network.join_zone(self._zone.name)
        await self.stage.until_in_rotation(self._zone.nodes)


class RegionRung(Rung):
    name, limit_seconds, lost_seconds = "region", 3.0, 5.0
    minimum_requests = 2000
    failed_per_thousand = 1.0

    def choose(self, busiest: str) -> str:
        return f"region {self.region.name} is lost: router and nodes are killed"

    def places(self) -> Sequence[str]:
        return places_of_region(self.region)

    def _children(self) -> list[Any]:
        return [self.stage.routers[self.region.name], *(self.stage.nodes[node.name] for node in self.region.nodes)]

    async def strike(self) -> None:
        await asyncio.gather(*(child.kill() for child in self._children()))

    async def restore(self) -> None:
        await asyncio.gather(*(child.start() for child in self._children()))
        await self.stage.until_in_rotation(self.region.nodes)


class Ladder:
    """Climbs the rungs in order, with the traffic going on all the time."""

    def __init__(self, stage: Stage, traffic: Traffic, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._traffic = traffic
        self._say = say

    def rungs(self) -> list[Rung]:
        """Spread over the regions; a region is only lost where another can take over."""
        regions = self._stage.plan.regions
        kinds: list[type[Rung]] = [GpuRung, NodeRung, ZoneRung]
        if len(regions) > 1:
            kinds.append(RegionRung)
        return [kind(self._stage, regions[index % len(regions)]) for index, kind in enumerate(kinds)]

    async def climb(self, on_result: Callable[[RungResult], None] = lambda _: None) -> list[RungResult]:
        results = []
        for rung in self.rungs():
            result = await self._one(rung)
            on_result(result)
            results.append(result)
        return results

    async def _one(self, rung: Rung) -> RungResult:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(_BEFORE_SECONDS)
        struck = loop.time()
        before = self._of_city(rung, began, struck)
        counts = Counter(place for served in before if (place := served.place(rung.name)))
        place = max(counts, key=lambda name: (counts[name], name), default="")
        if rung.name == "region":
            place = rung.region.name
        if not place:
            return self._nothing_before(rung)
        self._say(rung.choose(place))
        struck = loop.time()
        await rung.strike()
        await asyncio.sleep(rung.lost_seconds)
        last = self._stage.network.last_request(rung.places(), struck)
        clear = (last or struck) - struck
        lost_until = loop.time()
        self._say(f"{place} comes back")
        await rung.restore()
        back = loop.time()
        came_home = await self._until_home(rung, place, back)
        while self._traffic.sent_since(began) < rung.minimum_requests:  # noqa: ASYNC110  the load is a rate, not an event
            await asyncio.sleep(_POLL_SECONDS)
        ended = loop.time()
        await self._traffic.finished_before(ended)
        return self._judge(rung, place, clear, came_home, (began, struck, lost_until, came_home or back, ended))

    async def _until_home(self, rung: Rung, place: str, back: float) -> float | None:
        """Wait for a request that the place serves again, then a little; when that request started. None: none came."""
        loop = asyncio.get_running_loop()
        while loop.time() < back + _HOME_SECONDS:
            for served in reversed(self._traffic.done):
                if served.ended < back:
                    break
                if served.outcome == "ok" and served.started >= back and served.place(rung.name) == place:
                    await asyncio.sleep(_AFTER_SECONDS)
                    return served.started
            await asyncio.sleep(_POLL_SECONDS)
        return None

    def _of_city(self, rung: Rung, since: float, until: float) -> list[Served]:
        return window(self._traffic.done, since, until, lambda served: served.city == rung.region.city)

    def _judge(
        self,
        rung: Rung,
        place: str,
        clear: float,
        came_home: float | None,
        times: tuple[float, float, float, float, float],
    ) -> RungResult:
        began, struck, lost_until, home, ended = times
        every = window(self._traffic.done, began, ended)
        failed = [served for served in every if served.outcome == "failed"]
        before = shares(self._of_city(rung, began, struck), rung.name)
        # Only what was over before the place came back: a request that waited until then may well be served there.
        lost = self._of_city(rung, struck + max(clear, 0.001), lost_until)
        during = shares((served for served in lost if served.ended < lost_until), rung.name)
        after = shares(self._of_city(rung, home, ended), rung.name)
        faults = []
        if len(every) < rung.minimum_requests:
            faults.append(f"only {len(every)} requests were sent")
        if len(failed) * 1000 > rung.failed_per_thousand * len(every):
            faults.append(f"{len(failed)} requests failed")
        if clear > rung.limit_seconds:
            faults.append(f"the last request to {place} went {clear:.2f} s after its end")
        if place in during:
            faults.append(f"{place} still answered requests after it was given up")
        if not during:
            faults.append("nobody took over")
        if came_home is None or place not in after:
            faults.append(f"traffic did not come home to {place}")
        return RungResult(
            name=rung.name,
            place=place,
            sent=len(every),
            failed=len(failed),
            retried=sum(served.retries > 0 for served in every),
            interrupted=sum(served.outcome == "interrupted" for served in every),
            seconds_to_clear=clear,
            before=before,
            during=during,
            after=after,
            faults=tuple(faults),
            examples=tuple(dict.fromkeys(served.detail for served in failed))[:3],
        )

    @staticmethod
    def _nothing_before(rung: Rung) -> RungResult:
        fault = f"clients in {rung.region.city} were not served by {rung.region.name} before anything was lost"
        return RungResult(rung.name, "", 0, 0, 0, 0, 0.0, {}, {}, {}, (fault,))
