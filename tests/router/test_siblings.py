"""Routers of one region that share a Redis, or a process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

from fleet.clock import ManualClock, SystemClock
from regional.settings import RouterSettings
from regional.shared.memory import MemoryHub, MemoryShared
from regional.shared.siblings import Myself, Siblings
from tests.regional_decisions.fleets import rig
from tests.router.engines import BareEngine
from tests.router.routers import RunningRouter, fleet_file, router
from tests.router.scripted_agent import ScriptedAgent
from tests.router.waiting import until


async def _siblings(running: RunningRouter) -> list[dict[str, object]]:
    return list((await running.page("/debug/siblings"))["routers"])


async def _knows(running: RunningRouter, inflight: int) -> bool:
    outstanding = [pair for s in await _siblings(running) for pair in s["outstanding"].values()]  # type: ignore[attr-defined]
    return [pair[0] for pair in outstanding] == ([inflight] if inflight else [])


async def test_two_routers_see_each_others_in_flight_over_redis(tmp_path: Path, redis_url: str) -> None:
    async with BareEngine("one").serving() as one:
        path = fleet_file(tmp_path / "f.yaml", ("one", one.url))
        settings = RouterSettings.embedded(fleet=str(path), redis_url=redis_url)
        async with router(settings) as a, router(settings) as b:
            await until(a.serves)
            await until(b.serves)
            await until(lambda: _siblings(a))
            one.hold.clear()
            requests = [asyncio.create_task(a.chat()) for _ in range(3)]
            await until(lambda: _knows(b, 3))
            rows = (await b.page("/debug/capacity"))["rows"]
            assert [row["inflight"] for row in rows] == [0], "a region's in-flight is summed over routers by the centre"
            one.hold.set()
            assert {s for s, _, _ in await asyncio.gather(*requests)} == {200}
            await until(lambda: _knows(b, 0))


async def test_requests_never_wait_for_a_redis_that_is_away(tmp_path: Path) -> None:
    silent = await asyncio.start_server(lambda r, w: asyncio.sleep(60), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with BareEngine("one").serving() as one:
        path = fleet_file(tmp_path / "f.yaml", ("one", one.url))
        for url in (f"redis://127.0.0.1:{port}/0", "redis://127.0.0.1:1/0"):
            async with router(RouterSettings.embedded(fleet=str(path), redis_url=url)) as running:
                await until(running.serves)
                loop = asyncio.get_running_loop()
                began = loop.time()
                for _ in range(10):
                    assert await running.serves()
                assert loop.time() - began < 2.0
                assert (await running.page("/readyz"))["status"] == "ok"
                assert await running.metric("headrace_shared_state_connected") == 0
    silent.close()


async def test_agents_are_told_all_routers_of_their_region(tmp_path: Path) -> None:
    """A router that starts later reaches every agent through the directive of the first."""
    hub, clock = MemoryHub(), SystemClock()
    settings = RouterSettings.embedded(
        fleet=str(fleet_file(tmp_path / "f.yaml")), secret_key=["a key shared by both routers"]
    )
    async with (
        BareEngine("one").serving() as one,
        router(settings, shared=MemoryShared(hub, clock)) as a,
    ):
        agent = ScriptedAgent(a.grpc, "node-one", one)
        async with agent.running():
            await until(lambda: agent.directives)
            assert agent.directives[-1].routers == (a.grpc,)
            async with router(settings, shared=MemoryShared(hub, clock)) as b:
                await until(lambda: set(agent.directives[-1].routers) == {a.grpc, b.grpc})
                elsewhere = ScriptedAgent(b.grpc, "node-one", one)
                elsewhere.uid, elsewhere.identity = agent.uid, agent.identity
                call = elsewhere.open()
                directive = await call.read()
                assert not directive.rejoin, "one identity is good at every router of the region"
                call.cancel()


class BanView:
    """The part of the fleet view that holds pauses, as the real one keeps them."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}

    def own_load(self) -> dict[str, tuple[int, float]]:
        return {}

    def own_bans(self, now: float) -> dict[str, float]:
        return {uid: until - now for uid, until in self.until.items() if until > now}

    def set_sibling_load(self, router_uid: str, load: object, now: float) -> None:
        return None

    def set_sibling_bans(self, router_uid: str, bans: Mapping[str, float], now: float) -> None:
        for uid, seconds in bans.items():
            self.until[uid] = max(self.until.get(uid, 0.0), now + seconds)


async def test_case_r09_a_pause_reaches_siblings_and_does_not_echo_for_ever() -> None:
    hub, clock, rng = MemoryHub(), ManualClock(), random.Random(1)
    views = {uid: BanView() for uid in ("a", "b", "c")}
    loops = {
        uid: Siblings(
            MemoryShared(hub, clock),
            Myself(uid, 1, list, list),
            view,
            rig().core.placing,
            clock,
            rng,
            lambda: None,
            lambda ok, why: None,
        )
        for uid, view in views.items()
    }
    views["a"].until["e"] = clock.monotonic() + 2.0
    for _ in range(3):
        for loop in loops.values():
            await loop.once()
            clock.advance(0.2)
    assert views["b"].own_bans(clock.monotonic())
    assert views["c"].own_bans(clock.monotonic())
    for _ in range(10):
        for loop in loops.values():
            await loop.once()
            clock.advance(0.2)
    assert [view.own_bans(clock.monotonic()) for view in views.values()] == [{}, {}, {}]
