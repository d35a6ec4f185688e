"""What one router of a region knows binds its siblings: pauses that endpoints asked for, sessions that live elsewhere."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.clock import ManualClock, SystemClock
from fleet.errors import Unavailable
from fleet.intent import HoldState
from fleet.request import Usage
from regional.request.steps import AttemptResult, Outcome, SendToEndpoint
from regional.routing import affinity
from regional.routing.affinity import SessionMove
from regional.settings import RouterSettings
from regional.shared.base import Exchange, MovedSession, RouterLoad, SharedState
from regional.shared.memory import MemoryHub, MemoryShared
from regional.shared.redis import RedisShared
from regional.shared.siblings import INTERVAL_SECONDS, SYNC_SECONDS, Myself, Siblings
from tests.regional_decisions.fleets import MODEL, Rig, endpoint, facts, gpu, hold, intent, no_revoke, rig
from tests.router.engines import BareEngine
from tests.router.routers import RunningRouter, fleet_file, router
from tests.router.waiting import until


class RigClock(ManualClock):
    """The time of a rig."""

    def __init__(self, of: Rig) -> None:
        super().__init__()
        self._of = of

    def monotonic(self) -> float:
        return self._of.now


@dataclass
class Sibling:
    """One router's decisions and its loop."""

    rig: Rig
    loop: Siblings

    def place(self, session: str = "", *, outcome: Outcome = Outcome.OK, retry_after: float | None = None) -> str:
        """Name of the endpoint that a request is sent to first; its attempt there ends with ``outcome``."""
        life, step = self.rig.core.begin(facts(session=session), self.rig.now, no_revoke)
        assert isinstance(step, SendToEndpoint), step
        if outcome is not Outcome.OK:
            life.on_attempt_failed(AttemptResult(outcome, retry_after_seconds=retry_after), self.rig.now)
            outcome = Outcome.ABORTED
        life.on_end(outcome, NO_USAGE, self.rig.now)
        return step.target.name


NO_USAGE = Usage()
NAMES = ("a1", "a2", "a3")
PRODUCTS = {"a1": "h200-141", "a2": "a100-sxm-80", "a3": "a100-sxm-80"}


class Region:
    """Two sibling routers over one shared state, on one clock of their own making."""

    def __init__(self, states: Sequence[SharedState], names: Sequence[str] = NAMES) -> None:
        self.names = names
        self.routers: list[Sibling] = []
        for i, state in enumerate(states):
            made = rig(seed=i)
            loop = Siblings(
                state,
                Myself(f"r{i}", 1, list, list),
                made.view,
                made.core.placing,
                RigClock(made),
                random.Random(i),
                lambda: None,
                lambda ok, why: None,
            )
            self.routers.append(Sibling(made, loop))
        self.pass_time(8.0)

    def pass_time(self, seconds: float) -> None:
        """All nodes go on reporting to both."""
        for sibling in self.routers:
            made, end = sibling.rig, sibling.rig.now + seconds
            while made.now < end - 1e-9:
                for name in self.names:
                    made.report(
                        f"node-{name}",
                        [endpoint(name, [f"GPU-{name}"])],
                        gpus=[gpu(f"GPU-{name}", product=PRODUCTS[name])],
                    )
                made.tick(min(0.4, end - made.now))

    async def sync(self) -> None:
        """As much as happens within the documented time."""
        for _ in range(int(SYNC_SECONDS / INTERVAL_SECONDS)):
            for sibling in self.routers:
                await sibling.loop.once()
            self.pass_time(INTERVAL_SECONDS)

    def hold(self, name: str, state: HoldState, version: int = 2) -> None:
        for sibling in self.routers:
            sibling.rig.view.set_intent(intent(version, holds=hold("endpoint", name, state)), sibling.rig.now)


@pytest.fixture(params=["memory", "redis"])
async def region(request: pytest.FixtureRequest) -> AsyncIterator[Region]:
    states: list[SharedState]
    if request.param == "memory":
        hub, clock = MemoryHub(), ManualClock()
        states = [MemoryShared(hub, clock), MemoryShared(hub, clock)]
    else:
        url, name = request.getfixturevalue("redis_url"), f"region-{uuid.uuid4().hex[:8]}"
        states = [RedisShared(url, name), RedisShared(url, name)]
    yield Region(states)
    for state in states:
        await state.close()


async def test_case_r09_a_ban_is_obeyed_by_the_router_that_did_not_see_it(region: Region) -> None:
    """One call every five seconds to alternating routers; the refusing endpoint is by far the better one, and asks for 15 s."""
    one, two = region.routers
    await region.sync()
    assert (one.place(), two.place()) == ("a1", "a1")
    assert one.place(outcome=Outcome.OVERLOADED, retry_after=15.0) == "a1"
    refused_at = one.rig.now
    assert one.place() != "a1", "the one that saw it obeys at once"
    await region.sync()
    calls = 0
    while two.rig.now < refused_at + 15.0:
        assert region.routers[calls % 2].place() != "a1"
        assert region.routers[(calls + 1) % 2].place() != "a1"
        await region.sync()
        region.pass_time(min(5.0 - SYNC_SECONDS, max(0.1, refused_at + 15.0 - two.rig.now)))
        calls += 1
    assert calls >= 3
    region.pass_time(1.0)
    await region.sync()
    assert (one.place(), two.place()) == ("a1", "a1"), "and no longer than it was asked for"


def living_on(sibling: Sibling, name: str) -> str:
    """A session whose home is this endpoint."""
    for i in range(1000):
        session = f"{i:016x}" * 4
        if sibling.place(session) == name:
            return session
    raise AssertionError("no session lives there")


async def test_a_session_stays_on_a_cordoned_endpoint_at_the_sibling_too(region: Region) -> None:
    one, two = region.routers
    session = living_on(one, "a2")
    await region.sync()
    region.hold("a2", HoldState.CORDONED)
    stranger = next(s for i in range(1000) if home_of(region, s := f"{i + 5000:016x}" * 4) == "a2")
    await region.sync()
    assert two.place(session) == "a2", "it has never served that session, and was told"
    assert two.place(stranger) != "a2", "nobody lives there who did not before"
    region.hold("a2", HoldState.DRAINING, 3)
    assert two.place(session) != "a2"


def home_of(region: Region, session: str) -> str:
    """Where its hash says, worked out apart from the routers in the test."""
    apart = Region([], region.names)
    apart.routers = [Sibling(rig(), region.routers[0].loop)]
    apart.pass_time(8.0)
    return apart.routers[0].place(session)


async def test_a_session_that_moved_off_a_held_endpoint_is_found_by_the_sibling(region: Region) -> None:
    one, two = region.routers
    session = living_on(one, "a2")
    region.hold("a2", HoldState.DRAINING)
    await region.sync()
    usual = two.place(session)
    other = next(n for n in NAMES if n not in ("a2", usual))
    # The first router sees more work at the usual second choice, and serves the session at the third.
    seat = one.rig.view.pools[MODEL].members[usual]
    one.rig.view.set_sibling_load("x", {usual: (1, 5.0 / seat.prefill_per_token)}, one.rig.now)
    assert one.place(session) == other
    one.rig.view.set_sibling_load("x", {}, one.rig.now)
    await region.sync()
    assert two.place(session) == other, "its cache is there"
    for sibling in region.routers:
        sibling.rig.view.set_intent(intent(4), sibling.rig.now)
    assert one.place(session) == "a2", "home again"
    await region.sync()
    assert two.place(session) == "a2"


class Failing:
    """A shared state that cannot be reached the first time."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self.failures = 1

    async def exchange(self, own: RouterLoad, moved: Sequence[MovedSession]) -> Exchange:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        return await self._state.exchange(own, moved)

    async def withdraw(self, router_uid: str) -> None:
        await self._state.withdraw(router_uid)

    async def close(self) -> None:
        await self._state.close()


async def test_moves_survive_an_exchange_that_fails() -> None:
    hub, clock = MemoryHub(), ManualClock()
    region = Region([Failing(MemoryShared(hub, clock)), MemoryShared(hub, clock)])
    one, two = region.routers
    session = living_on(one, "a2")
    region.hold("a2", HoldState.CORDONED)
    with pytest.raises(Unavailable):
        await one.loop.once()
    await region.sync()
    assert two.place(session) == "a2"


def test_what_is_remembered_and_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "MAX_REMEMBERED", 50)
    monkeypatch.setattr(affinity, "MAX_AWAY", 20)
    region = Region([MemoryShared(MemoryHub(), ManualClock())])
    placing = region.routers[0].rig.core.placing
    for i in range(200):
        region.routers[0].place(f"{i:016x}" * 4)
    region.hold("a1", HoldState.CORDONED)
    region.hold("a2", HoldState.DRAINING, 3)
    placing.learn_sessions(SessionMove(f"{i:016x}", MODEL, "a3") for i in range(500))
    placing.learn_sessions([SessionMove("nonsense", MODEL, "a3"), SessionMove("f" * 40, MODEL, "a3")])
    assert len(placing.moved_sessions(5)) <= 5
    assert len(placing.moved_sessions(1000)) <= 20
    assert placing.moved_sessions(1000) == []


async def _knows_ban(running: RunningRouter) -> bool:
    return any(s["bans"] for s in (await running.page("/debug/siblings"))["routers"])


@pytest.mark.parametrize("over", ["memory", "redis"])
async def test_case_r09_with_real_routers(over: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    hub = MemoryHub()
    url = request.getfixturevalue("redis_url") if over == "redis" else ""
    async with BareEngine("busy").serving() as busy, BareEngine("free").serving() as free:
        path = fleet_file(tmp_path / "f.yaml", ("busy", busy.url), ("free", free.url))
        settings = RouterSettings.embedded(fleet=str(path), redis_url=url)
        shared = [None if url else MemoryShared(hub, SystemClock()) for _ in range(2)]
        async with router(settings, shared=shared[0]) as a, router(settings, shared=shared[1]) as b:
            for one in (a, b):
                await until(lambda one=one: _spreads(one, busy, free))
            busy.retry_after = 15
            refused = busy.requests
            await until(lambda: _refused(a, busy, refused))
            await until(lambda: _knows_ban(b), what="the sibling knows of the pause")
            refused = busy.requests
            assert [(await b.chat())[0] for _ in range(20)] == [200] * 20
            assert [(await a.chat())[0] for _ in range(5)] == [200] * 5
            assert busy.requests == refused


async def _spreads(running: RunningRouter, *engines: BareEngine) -> bool:
    """A few requests reach every engine: this router has them all in rotation."""
    before = [engine.requests for engine in engines]
    for _ in range(8):
        await running.serves()
    return all(engine.requests > count for engine, count in zip(engines, before, strict=True))


async def _refused(running: RunningRouter, busy: BareEngine, before: int) -> bool:
    assert (await running.chat())[0] == 200, "another endpoint serves it"
    return busy.requests > before
