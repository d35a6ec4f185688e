"""The headrace client over several servers, and the fault proxy that tests what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import uvloop

from headrace.client import AnswerBroken, Attempt, Client, Limits, Ranking, RoutersFailed
from headrace.faultproxy import FaultProxy, Mode
from headrace.simulated_engine.http import Connection, Exchange
from headrace.simulated_engine.server import EngineSettings, SimulatedEngine

MODEL = "m"
ASK = {"model": MODEL, "prompt": "hello there", "max_tokens": 3}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "ignore_eos": True}
QUICK = Limits(connect_seconds=0.3, first_byte_seconds=0.4, idle_seconds=0.5, probe_seconds=0.05, probe_max_seconds=0.1)


class Place:
    """An engine that stands for a router, behind a fault proxy."""

    def __init__(self) -> None:
        self.engine = SimulatedEngine(EngineSettings(models=(MODEL,)))
        self.seen: list[bytes] = []

    async def start(self) -> None:
        await self.engine.start()
        self.proxy = FaultProxy("127.0.0.1", self.engine.port, observe=self.seen.append)
        await self.proxy.start()

    @property
    def url(self) -> str:
        return f"http://{self.proxy.address}"

    @property
    def posts(self) -> int:
        return sum(data.startswith(b"POST ") for data in self.seen)

    async def close(self) -> None:
        await self.proxy.close()
        await self.engine.close()


@asynccontextmanager
async def places(count: int) -> AsyncIterator[list[Place]]:
    async with AsyncExitStack() as stack:
        started = [Place() for _ in range(count)]
        for place in started:
            await place.start()
            stack.push_async_callback(place.close)
        yield started


@asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[tuple[str, list[Exchange]]]:
    """A server that answers with raw bytes, one after the other, and then closes."""
    got: list[Exchange] = []
    connections: set[Connection] = set()
    script = iter(answers)

    def handle(exchange: Exchange) -> None:
        got.append(exchange)
        exchange._connection.write(next(script))
        exchange._connection.close()

    server = await asyncio.get_running_loop().create_server(lambda: Connection(handle, connections), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", got
    finally:
        server.close()
        for connection in tuple(connections):
            connection.abort()


async def failed_is_empty(client: Client) -> None:
    async with asyncio.timeout(5):
        while client.failed_routers:  # noqa: ASYNC110  the client's own prober changes it
            await asyncio.sleep(0.01)


def test_ranking_asks_failed_routers_last_and_remembers_who_works() -> None:
    ranking = Ranking(["a/", "b", "c", "b"])
    assert ranking.order() == ("a", "b", "c")
    ranking.failed("a")
    ranking.failed("b")
    assert ranking.order() == ("c", "a", "b")
    ranking.failed("a")
    assert ranking.order() == ("c", "b", "a")
    ranking.works("a")
    assert ranking.order() == ("a", "c", "b")
    with pytest.raises(ValueError, match="at least one"):
        Ranking([])


async def test_a_dead_router_is_passed_over_and_comes_home() -> None:
    async with places(2) as (near, far), Client([near.url, far.url], limits=QUICK) as client:
        assert (await client.post("/v1/completions", ASK)).attempts == (Attempt(near.url, "answered"),)
        await near.proxy.set_mode(Mode.REFUSE)
        near.proxy.cut()
        answer = await client.post("/v1/completions", ASK)
        assert answer.status == 200
        assert [a.router for a in answer.attempts] == [near.url, far.url]
        assert answer.retries == 1
        assert client.failed_routers == (near.url,)
        # Remembered: the next request does not try it.
        assert (await client.post("/v1/completions", ASK)).retries == 0
        await near.proxy.set_mode(Mode.FORWARD)
        # The engine has no /readyz; a probe wants 200, so the stand-in is asked at a path it has.
        assert near.posts == 1


async def test_a_router_that_is_ready_again_is_first_again() -> None:
    ready = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    async with (
        places(1) as (far,),
        scripted(b"", ready, ready) as (near, got),
        Client([near, far.url], limits=QUICK) as client,
    ):
        assert [a.outcome for a in (await client.post("/v1/completions", ASK)).attempts] == ["closed", "answered"]
        await failed_is_empty(client)
        assert got[1].path == "/readyz"
        assert (await client.post("/x", ASK)).attempts == (Attempt(near, "answered"),)


async def test_silence_without_a_byte_moves_on() -> None:
    async with places(2) as (near, far), Client([near.url, far.url], limits=QUICK) as client:
        await near.proxy.set_mode(Mode.SWALLOW)
        answer = await client.post("/v1/completions", ASK)
        assert answer.attempts == (Attempt(near.url, "silent"), Attempt(far.url, "answered"))
        assert near.posts == 1, "the proxy sees what it swallows"


async def test_busy_503_moves_on_but_is_not_a_failure_of_the_router() -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nretry-after: 1\r\n\r\nbusy"
    async with places(1) as (far,), scripted(busy) as (near, _), Client([near, far.url], limits=QUICK) as client:
        answer = await client.post("/v1/completions", ASK)
        assert [a.outcome for a in answer.attempts] == ["unavailable", "answered"]
        assert client.failed_routers == ()


async def test_503_that_says_do_not_retry_is_the_answer() -> None:
    never = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nx-should-retry: false\r\n\r\nno"
    async with places(1) as (far,), scripted(never) as (near, _), Client([near, far.url], limits=QUICK) as client:
        answer = await client.post("/v1/completions", ASK)
        assert (answer.status, answer.retries, far.posts) == (503, 0, 0)


async def test_errors_of_the_request_are_answers() -> None:
    async with places(2) as (near, far), Client([near.url, far.url], limits=QUICK) as client:
        answer = await client.post("/v1/completions", ASK | {"model": "nope"})
        assert (answer.status, answer.json()["error"]["type"], far.posts) == (404, "NotFoundError", 0)


async def test_tries_are_bounded_and_the_error_says_what_was_tried() -> None:
    limits = Limits(connect_seconds=0.3, first_byte_seconds=0.1, attempts=3)
    async with places(2) as (near, far), Client([near.url, far.url], limits=limits) as client:
        for place in (near, far):
            await place.proxy.set_mode(Mode.SWALLOW)
        with pytest.raises(RoutersFailed) as failed:
            await client.post("/v1/completions", ASK)
        assert [a.outcome for a in failed.value.attempts] == ["silent"] * 3


async def test_a_stream_is_whole_or_broken_never_started_twice() -> None:
    async with places(2) as (near, far), Client([near.url, far.url], limits=QUICK) as client:
        await near.proxy.set_mode(Mode.SWALLOW)
        async with client.stream("/v1/chat/completions", CHAT | {"stream": True}) as stream:
            assert stream.retries == 1
            text = b"".join([chunk async for chunk in stream])
        assert text.endswith(b"data: [DONE]\n\n")
        posts = far.posts
        far.engine.slow(0.2)
        with pytest.raises(AnswerBroken):  # noqa: PT012  the break comes while reading
            async with client.stream("/v1/chat/completions", CHAT | {"stream": True}) as stream:
                async for _ in stream:
                    far.proxy.cut()
        assert far.posts == posts + 1


async def test_leaving_a_stream_aborts_it_at_the_engine() -> None:
    async with places(1) as (place,), Client([place.url], limits=QUICK) as client:
        place.engine.slow(0.1)
        async with client.stream("/v1/chat/completions", CHAT | {"stream": True}) as stream:
            async for _ in stream:
                break
        async with asyncio.timeout(2):
            while place.engine.scheduler.running:  # noqa: ASYNC110  it falls in the server's callbacks
                await asyncio.sleep(0.005)


async def test_case_r10_a_pooled_connection_closed_unseen_is_not_a_failure() -> None:
    async with places(1) as (place,), Client([place.url], limits=QUICK) as client:
        for _ in range(3):
            assert (await client.post("/v1/completions", ASK)).retries == 0
            # The server closes idle connections at the very moment the client uses one again.
            for connection in tuple(place.engine._connections):
                connection.close()
            answer = await client.post("/v1/completions", ASK)
            assert (answer.status, answer.retries) == (200, 0)
        assert client.failed_routers == ()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_proxy_holds_delays_and_goes_on(factory: object) -> None:
    async def story() -> None:
        received = bytearray()
        closed = asyncio.Event()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                received.extend(data)
                writer.write(data)
            closed.set()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1])
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        await proxy.set_mode(Mode.SWALLOW)
        writer.write(b"two")
        # A new connection during a partition is accepted and stays silent.
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        late_writer.write(b"late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(1)
        assert received == b"one"
        await proxy.set_mode(Mode.FORWARD)
        assert await reader.readexactly(3) == b"two"
        assert await late_reader.readexactly(4) == b"late"
        late_writer.close()
        # Delay keeps the order, also when it shrinks.
        loop = asyncio.get_running_loop()
        proxy.delay_seconds = 0.06
        started = loop.time()
        writer.write(b"slow")
        await asyncio.sleep(0.01)
        proxy.delay_seconds = 0.0
        writer.write(b"fast")
        assert await reader.readexactly(8) == b"slowfast"
        assert loop.time() - started >= 0.06
        # Large data both ways, with a reader that takes its time.
        blob = bytes(range(256)) * 8192
        writer.write(blob)
        assert await reader.readexactly(len(blob)) == blob
        closed.clear()
        writer.write_eof()
        assert await reader.read() == b""
        await closed.wait()
        writer.close()
        # Refused, then reset when the target is gone.
        await proxy.set_mode(Mode.REFUSE)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.set_mode(Mode.FORWARD)
        server.close()
        await server.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):  # noqa: PT012  at whichever of the two comes first
            writer.write(b"x")
            await reader.readexactly(1)
        writer.close()
        await proxy.close()
        assert proxy.connections == 0

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        runner.run(asyncio.wait_for(story(), 20))
