"""A router that does not read is given up and holds up nobody; what is queued for it is bounded."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from controlplane.identity import Joins
from controlplane.intake.intake import Intake
from controlplane.intake.router_tokens import RouterTokens
from controlplane.intake.service import RegionService
from controlplane.publish.publisher import Publisher
from controlplane.publish.service import SnapshotService
from controlplane.publish.subscription import Closed, Subscription
from controlplane.registry.catalogue import ObjectChange
from fleet.clock import SystemClock
from fleet.process.grpc_server import make_channel, make_server
from fleet.snapshot import IntentObject, IntentVersion
from fleet.wire.headrace.v1 import snapshot_pb2, snapshot_pb2_grpc
from tests.controlplane_feed.copies import Router, Store, eventually, obj


class MemoryFeed:
    """A feed without a database."""

    def __init__(self) -> None:
        self.at = IntentVersion(1, 1, b"1")
        self._history: list[tuple[IntentVersion, list[ObjectChange]]] = []
        self._news = asyncio.Condition()

    async def push(self, *objects: IntentObject) -> IntentVersion:
        number = self.at.version + 1
        self.at = IntentVersion(1, number, str(number).encode())
        self._history.append((self.at, [ObjectChange(o.key, o) for o in objects]))
        async with self._news:
            self._news.notify_all()
        return self.at

    async def load(self) -> tuple[IntentVersion, list[IntentObject]]:
        return self.at, []

    async def changes_since(self, at: IntentVersion) -> list[tuple[IntentVersion, list[ObjectChange]]]:
        return [h for h in self._history if h[0].version > at.version]

    async def head(self) -> IntentVersion:
        return self.at

    async def wait(self, at: IntentVersion, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds), self._news:
                while self.at == at:
                    await self._news.wait()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def serving(feed: MemoryFeed, store: Store, **limits: float) -> AsyncIterator[tuple[Publisher, grpc.aio.Channel]]:
    clock = SystemClock()
    publisher = Publisher(feed, store.secrets.published(), clock, queue_bytes=int(limits.get("queue_bytes", 2**20)))
    tokens = RouterTokens(store.database, store.secrets, clock)
    service = SnapshotService(
        publisher, tokens, lambda event: None, clock, write_seconds=limits.get("write_seconds", 60.0)
    )
    server = make_server(service.register, host="127.0.0.1", port=0)
    await server.raw.start()
    running = asyncio.create_task(publisher.run())
    await publisher.catch_up(feed.at)
    channel = make_channel(f"127.0.0.1:{server.port}")
    try:
        yield publisher, channel
    finally:
        await channel.close(None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop(1)


async def _status(call: grpc.aio.UnaryStreamCall) -> grpc.StatusCode:
    """Read to the end; the status it ends with."""
    async with asyncio.timeout(30):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()


def _watch(channel: grpc.aio.Channel, token: str) -> grpc.aio.UnaryStreamCall:
    stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)
    request = snapshot_pb2.WatchRequest(router_uid="slow", region="eu-west")
    return stub.Watch(request, metadata=(("authorization", f"Bearer {token}"),))


def _big(number: int) -> IntentObject:
    return obj("model", "m-big", "m-big", number, pad="x" * 500_000)


async def test_a_full_queue_ends_the_watch_of_the_slow_and_no_other(sqlite_store: Store) -> None:
    token = await sqlite_store.router_token("eu-west")
    feed = MemoryFeed()
    async with serving(feed, sqlite_store, queue_bytes=2_000_000) as (publisher, channel):
        slow = _watch(channel, token)
        await slow.read()
        quick = Router(channel, token, "eu-west")
        await quick.until(lambda r: r.fulls == 1)
        assert publisher.watchers == 2
        number = 0
        while publisher.watchers == 2 and number < 200:
            number += 1
            await quick.until_version(await feed.push(_big(number)))
        assert publisher.watchers == 1
        assert (quick.fulls, quick.deltas) == (1, number)
        assert await _status(slow) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await quick.close()


async def test_a_message_that_is_not_taken_in_time_ends_the_watch(sqlite_store: Store) -> None:
    token = await sqlite_store.router_token("eu-west")
    feed = MemoryFeed()
    async with serving(feed, sqlite_store, queue_bytes=2**30, write_seconds=0.2) as (publisher, channel):
        slow = _watch(channel, token)
        await slow.read()
        for number in range(40):
            await feed.push(_big(number))
        await eventually(lambda: publisher.watchers == 0)
        assert await _status(slow) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_fifty_routers_share_one_small_message(sqlite_store: Store) -> None:
    token = await sqlite_store.router_token("eu-west")
    feed = MemoryFeed()
    async with serving(feed, sqlite_store) as (publisher, channel):
        for number in range(200):
            await feed.push(obj("tenant", f"t-{number}", f"tenant-{number}", weight=number))
        await publisher.catch_up(feed.at)
        routers = [Router(channel, token, "eu-west") for _ in range(50)]
        for router in routers:
            await router.until(lambda r: r.held is not None and len(r.held.objects) == 201)
            router.max_message = 0
        at = await feed.push(obj("tenant", "t-7", "tenant-7", 2, weight=1000))
        for router in routers:
            held = await router.until_version(at)
            assert held.objects["tenant", "t-7"].spec["weight"] == 1000
            assert (router.fulls, router.deltas) == (1, 1)
            assert router.max_message <= 2048
            await router.close()


async def test_a_watch_that_its_router_drops_is_released(sqlite_store: Store) -> None:
    token = await sqlite_store.router_token("eu-west")
    feed = MemoryFeed()
    async with serving(feed, sqlite_store) as (publisher, channel):
        for _ in range(20):
            router = Router(channel, token, "eu-west")
            await router.until(lambda r: r.fulls == 1)
            await router.close()
        await eventually(lambda: publisher.watchers == 0)


async def test_an_outbox_keeps_deltas_in_order_and_only_the_latest_of_the_rest() -> None:
    outbox = Subscription("eu-west", max_messages=10, max_bytes=100)
    for number in range(3):
        outbox.offer_observed("us-east", b"observed %d" % number)
        outbox.offer_heartbeat(b"heartbeat %d" % number)
        outbox.offer_delta(b"delta %d" % number)
    got = [await outbox.next() for _ in range(5)]
    assert got == [b"delta 0", b"delta 1", b"delta 2", b"heartbeat 2", b"observed 2"]
    waiting = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    outbox.offer_delta(b"d")
    assert await waiting == b"d"


async def test_an_outbox_that_overflows_is_closed_once() -> None:
    outbox = Subscription("eu-west", max_messages=2, max_bytes=100)
    for _ in range(5):
        outbox.offer_delta(b"x")
    assert await outbox.next() is None
    assert outbox.closed.result() is Closed.SLOW
    outbox.close(Closed.STOPPING)
    assert outbox.closed.result() is Closed.SLOW
    by_size = Subscription("eu-west", max_messages=100, max_bytes=10)
    by_size.offer_delta(b"x" * 11)
    assert by_size.closed.result() is Closed.SLOW


@pytest.mark.parametrize("side", ["sending", "reading"])
async def test_a_call_that_ends_in_the_moment_in_which_it_fails_leaves_no_failure_behind(
    sqlite_store: Store, side: str
) -> None:
    """Seen under overload: `Task exception was never retrieved`, as the message failed while its call was cancelled."""
    left: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, about: left.append(about["message"]))
    failing = asyncio.Event()

    class Broken:
        async def write(self, _message: object) -> None:
            await failing.wait()
            raise RuntimeError("ExecuteBatchError")

        async def read(self) -> None:
            await self.write(None)

    clock = SystemClock()
    tokens = RouterTokens(sqlite_store.database, sqlite_store.secrets, clock)
    publisher = Publisher(MemoryFeed(), sqlite_store.secrets.published(), clock)
    context: Any = Broken()
    if side == "sending":
        service = SnapshotService(publisher, tokens, lambda event: None, clock)
        step: Any = service._send(b"", Subscription("eu-west"), context)
    else:
        joins = Joins(sqlite_store.database, sqlite_store.feed, sqlite_store.secrets, clock)
        intake = Intake(sqlite_store.database, clock, lambda part, error: None)
        step = RegionService(intake, joins, tokens, clock)._next(context, asyncio.get_running_loop().create_future())
    call = asyncio.create_task(step)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    failing.set()
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    del call, step
    gc.collect()
    await asyncio.sleep(0)
    assert left == []
