"""Redis that is slow, gone, demoted, wrong, or asked by somebody who gave up: noticed here, never by a request (rel-R9)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping

import pytest

from fleet.clock import SystemClock
from fleet.errors import InvalidInput, Unavailable
from regional.routing.affinity import SessionMove
from regional.shared.base import RouterLoad
from regional.shared.redis import CONNECT_BUDGET_SECONDS, EXCHANGE_BUDGET_SECONDS, RedisShared, _encode_load
from regional.shared.siblings import Myself, Siblings
from tests.router.waiting import until


class FakeRedis:
    """Speaks just enough of the protocol to misbehave: each command is answered by ``answers`` under its name."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {
            "SET": b"+OK\r\n",
            "SADD": b":1\r\n",
            "SMEMBERS": b"*0\r\n",
            "XRANGE": b"*0\r\n",
            "CLIENT": b"+OK\r\n",
            "SELECT": b"+OK\r\n",
            "DEL": b":1\r\n",
            "SREM": b":1\r\n",
        }
        self.delay = 0.0
        self.connections = 0
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeRedis]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._open:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while head := await reader.readline():
                words = []
                for _ in range(int(head[1:])):
                    length = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(length + 2))[:-2])
                await asyncio.sleep(self.delay)
                writer.write(self.answers.get(words[0].decode().upper(), b"-ERR unknown command\r\n"))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


ME = RouterLoad("me", 1, 1)


@pytest.fixture
async def fake() -> AsyncIterator[FakeRedis]:
    async with FakeRedis().serving() as server:
        yield server


@pytest.fixture
async def state(fake: FakeRedis) -> AsyncIterator[RedisShared]:
    shared = RedisShared(f"redis://127.0.0.1:{fake.port}/0", "r")
    yield shared
    await shared.close()


async def test_case_y02_a_read_only_reply_discards_the_connection(fake: FakeRedis, state: RedisShared) -> None:
    await state.exchange(ME, ())
    fake.answers["SET"] = b"-READONLY You can't write against a read only replica.\r\n"
    with pytest.raises(Unavailable):
        await state.exchange(ME, ())
    before = fake.connections
    fake.answers["SET"] = b"+OK\r\n"
    await state.exchange(ME, ())
    assert fake.connections == before + 1


async def test_case_y04_a_slow_redis_costs_one_time_budget(fake: FakeRedis, state: RedisShared) -> None:
    await state.exchange(ME, ())
    fake.delay = 2.0
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await state.exchange(ME, ())
    assert time.monotonic() - started < EXCHANGE_BUDGET_SECONDS + CONNECT_BUDGET_SECONDS + 0.5
    fake.delay = 0.0
    await state.exchange(ME, ())


async def test_a_cancelled_exchange_never_hands_its_replies_to_the_next(fake: FakeRedis, state: RedisShared) -> None:
    await state.exchange(ME, ())
    fake.delay = 0.05
    asked = asyncio.create_task(state.exchange(ME, ()))
    await asyncio.sleep(0.03)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    fake.delay = 0.0
    before = fake.connections
    exchange = await state.exchange(ME, ())
    assert exchange.siblings == ()
    assert fake.connections == before + 1, "the connection with unread replies must not be used again"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("SMEMBERS", b":5\r\n"),
        ("SMEMBERS", b"$-1\r\n"),
        ("XRANGE", b"+what\r\n"),
        ("XRANGE", b"*1\r\n*1\r\n$1\r\nx\r\n"),
        ("SET", b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("SADD", b"garbage that is no protocol\r\n"),
        ("SADD", b"-LOADING Redis is loading the dataset in memory\r\n"),
    ],
)
async def test_wrong_answers_are_unavailable_and_nothing_else(
    fake: FakeRedis, state: RedisShared, command: str, answer: bytes
) -> None:
    await state.exchange(ME, ())
    right = fake.answers[command]
    fake.answers[command] = answer
    with pytest.raises(Unavailable):
        await state.exchange(ME, ())
    fake.answers[command] = right
    await state.exchange(ME, ())


async def test_one_siblings_nonsense_hides_only_that_sibling(fake: FakeRedis, state: RedisShared) -> None:
    good = RedisShared(f"redis://127.0.0.1:{fake.port}/0", "r")
    payload = _encode_load(RouterLoad("b", 1, 1, outstanding={"e": (2, 3.0)}))
    fake.answers["SMEMBERS"] = b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"
    fake.answers["MGET"] = b"*2\r\n$3\r\nhey\r\n$%d\r\n%s\r\n" % (len(payload), payload)
    await good.exchange(ME, ())
    exchange = await good.exchange(ME, ())
    assert [s.router_uid for s in exchange.siblings] == ["b"]
    await good.close()


class View:
    """The part of the fleet view that the loop feeds."""

    def __init__(self) -> None:
        self.loads: dict[str, Mapping[str, tuple[int, float]]] = {}

    def own_load(self) -> Mapping[str, tuple[int, float]]:
        return {"e": (1, 10.0)}

    def own_bans(self, now: float) -> Mapping[str, float]:
        return {}

    def set_sibling_load(self, router_uid: str, load: Mapping[str, tuple[int, float]], now: float) -> None:
        self.loads[router_uid] = load

    def set_sibling_bans(self, router_uid: str, bans: Mapping[str, float], now: float) -> None:
        return None


class NoSessions:
    """No session has ever moved."""

    def moved_sessions(self, limit: int) -> list[SessionMove]:
        return []

    def learn_sessions(self, moves: Iterable[SessionMove]) -> None:
        assert not list(moves)


async def test_the_loop_survives_an_outage_and_recovers_within_five_seconds(redis_url: str) -> None:
    def loop(uid: str, view: View, url: str, seen: list[bool]) -> Siblings:
        me = Myself(uid, 1, lambda: [f"{uid}:1"], list)
        shared = RedisShared(url, "outage")
        return Siblings(
            shared,
            me,
            view,
            NoSessions(),
            SystemClock(),
            random.Random(1),
            lambda: None,
            lambda ok, why: seen.append(ok),
        )

    host, _, port = redis_url.removeprefix("redis://").partition("/")[0].partition(":")
    proxy = Proxy(host, int(port))
    async with proxy.serving():
        database = redis_url.rpartition("/")[2]
        a_view, b_view, a_seen, b_seen = View(), View(), [], []
        a = loop("a", a_view, f"redis://127.0.0.1:{proxy.port}/{database}", a_seen)
        b = loop("b", b_view, redis_url, b_seen)
        tasks = [asyncio.create_task(a.run()), asyncio.create_task(b.run())]
        try:
            await until(lambda: "b" in a_view.loads and "a" in b_view.loads)
            assert [r.grpc_addresses for r in a.routers()] == [("b:1",)]
            proxy.cut()
            await until(lambda: a_seen[-1:] == [False])
            a_view.loads.clear()
            proxy.heal()
            await until(lambda: a_seen[-1:] == [True] and "b" in a_view.loads)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Proxy:
    """Forwards TCP until cut; then refuses, until healed."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        self._cut = True
        for writer in self._writers:
            writer.close()

    def heal(self) -> None:
        self._cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("url", ["http://x", "redis+sentinel://h:26379", "redis+sentinel://h:port/m", "redis://h:port"])
def test_a_url_that_is_none_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidInput, match="redis_url"):
        RedisShared(url, "r")
