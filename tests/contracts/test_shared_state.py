"""One suite over every implementation of the state that a region's routers share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from fleet.clock import SystemClock
from regional.shared.base import TTL_SECONDS, MovedSession, RouterLoad, SharedState
from regional.shared.memory import MemoryHub, MemoryShared
from regional.shared.redis import RedisShared
from tests.router.waiting import until

Maker = Callable[[], SharedState]
"""Another router's access to the same region."""


@pytest.fixture(params=["memory", "redis"])
async def router(request: pytest.FixtureRequest) -> AsyncIterator[Maker]:
    made: list[SharedState] = []
    if request.param == "memory":
        hub = MemoryHub()

        def make() -> SharedState:
            made.append(MemoryShared(hub, SystemClock()))
            return made[-1]
    else:
        url, region = request.getfixturevalue("redis_url"), f"region-{uuid.uuid4().hex[:8]}"

        def make() -> SharedState:
            made.append(RedisShared(url, region))
            return made[-1]

    yield make
    for state in made:
        await state.close()


def word(uid: str, sequence: int = 1, **outstanding: tuple[int, float]) -> RouterLoad:
    return RouterLoad(uid, 1, sequence, (f"{uid}:7601",), (f"http://{uid}:7600",), outstanding, {"e-banned": 2.5})


async def test_siblings_learn_each_others_load(router: Maker) -> None:
    a, b = router(), router()
    await a.exchange(word("a", e1=(3, 120.5), e2=(1, 0.0)), ())

    async def b_sees_a() -> bool:
        exchange = await b.exchange(word("b"), ())
        await a.exchange(word("a", 2, e1=(3, 120.5), e2=(1, 0.0)), ())
        return any(s.router_uid == "a" for s in exchange.siblings)

    await until(b_sees_a)
    exchange = await b.exchange(word("b", 2), ())
    (seen,) = exchange.siblings
    assert dict(seen.outstanding) == {"e1": (3, 120.5), "e2": (1, 0.0)}
    assert dict(seen.bans) == {"e-banned": 2.5}
    assert seen.grpc_addresses == ("a:7601",)
    assert seen.http_addresses == ("http://a:7600",)
    assert seen.order == (1, 2)


async def test_own_word_is_never_a_siblings(router: Maker) -> None:
    a = router()
    for sequence in range(1, 4):
        exchange = await a.exchange(word("a", sequence, e1=(1, 1.0)), ())
        assert exchange.siblings == ()


async def test_a_silent_router_lapses_within_its_ttl(router: Maker) -> None:

    a, b = router(), router()
    await a.exchange(word("a", e1=(5, 5.0)), ())
    await b.exchange(word("b"), ())
    assert (await b.exchange(word("b", 2), ())).siblings
    await asyncio.sleep(TTL_SECONDS + 0.2)
    assert (await b.exchange(word("b", 3), ())).siblings == ()


async def test_withdraw_takes_the_word_back_at_once(router: Maker) -> None:
    a, b = router(), router()
    await a.exchange(word("a", e1=(5, 5.0)), ())
    await b.exchange(word("b"), ())
    assert (await b.exchange(word("b", 2), ())).siblings
    await a.withdraw("a")
    assert (await b.exchange(word("b", 3), ())).siblings == ()


async def test_moved_sessions_reach_siblings_once_and_in_order(router: Maker) -> None:
    a, b = router(), router()
    moves = [MovedSession(f"s{i}", "m", f"e{i}") for i in range(5)]
    await a.exchange(word("a"), moves)
    assert list((await b.exchange(word("b"), ())).moved) == moves
    assert (await b.exchange(word("b", 2), ())).moved == ()
    assert (await a.exchange(word("a", 2), ())).moved == (), "a router is not told what it said itself"


async def test_a_router_that_starts_later_learns_earlier_moves(router: Maker) -> None:
    a = router()
    await a.exchange(word("a"), [MovedSession("s", "m", "e")])
    late = router()
    assert [m.session for m in (await late.exchange(word("late"), ())).moved] == ["s"]


async def test_many_routers_see_all_others(router: Maker) -> None:
    states = {f"r{i}": router() for i in range(6)}
    for sequence in (1, 2):
        for uid, state in states.items():
            exchange = await state.exchange(word(uid, sequence, e=(1, 1.0)), ())
    assert {s.router_uid for s in exchange.siblings} == {f"r{i}" for i in range(5)}
