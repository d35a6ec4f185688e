"""Joining and reporting over real gRPC: identity, renewal, back-off, directives, and routers that come and go."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from agents.backoff import BASE_SECONDS, Backoff
from agents.membership import Joining, Membership
from agents.state import IDENTITY, StateFiles, StoredIdentity, split_host_port
from agents.uplink import Destination, Uplink, destinations
from fleet.clock import Clock, ManualClock, SystemClock
from fleet.report import AgentPhase, NodeDirective, NodeReport
from tests.agents.fake_router import NODE_UID, FakeRouter

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Sender:
    """The parts of an agent that talk to routers, with a report a tenth of a second."""

    def __init__(self, routers: list[str], state_dir: Path, clock: Clock | None = None, token: str = "token") -> None:  # noqa: S107
        self.clock = clock or SystemClock()
        self.files = StateFiles(state_dir)
        self.directives: list[NodeDirective] = []
        self.membership = Membership(
            Joining("node-1", "zone-1", "region-1"),
            self.files,
            join_token=lambda: token,
            gpu_uuids=lambda: ["GPU-1", "GPU-2"],
            routers=lambda: self.uplink.addresses(),
            clock=self.clock,
            backoff_max_seconds=0.5,
        )
        self.uplink = Uplink(
            routers,
            self.membership,
            clock=self.clock,
            on_directive=self.directives.append,
            backoff_max_seconds=0.5,
            resolve_every_seconds=0.5,
        )
        self.sequence = 0
        self._tasks: list[asyncio.Task[None]] = []

    def report(self, phase: AgentPhase = AgentPhase.RUNNING) -> NodeReport:
        self.sequence += 1
        uid = self.membership.identity.node_uid if self.membership.identity else ""
        return NodeReport(uid, "node-1", "zone-1", 1, self.sequence, phase, 0.1)

    async def _publish(self) -> None:
        while True:
            self.uplink.publish(self.report())
            await asyncio.sleep(0.02)

    def start(self) -> None:
        parts = (self.membership.run(), self.uplink.run(), self._publish())
        self._tasks = [asyncio.create_task(p) for p in parts]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results), results


Make = Callable[..., Sender]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    senders: list[Sender] = []

    def made(*routers: str, **more: object) -> Sender:
        sender = Sender(list(routers), tmp_path, **more)  # type: ignore[arg-type]
        senders.append(sender)
        sender.start()
        return sender

    yield made
    for sender in senders:
        await sender.stop()


async def test_joins_keeps_its_identity_and_reports(router: FakeRouter, make: Make, tmp_path: Path) -> None:
    sender = make(router.address)
    await router.until(lambda: len(router.reports()) >= 3)
    join = router.joins[0]
    assert (join.join_token, join.node_name, join.zone, join.region) == ("token", "node-1", "zone-1", "region-1")
    assert (list(join.gpu_uuids), join.node_uid, join.identity) == (["GPU-1", "GPU-2"], "", "")
    assert router.streams[0].authorization == "Bearer identity-1"
    assert router.newest is not None
    assert router.newest.node_uid == NODE_UID
    sequences = [r.sequence for r in router.streams[0].reports]
    assert sequences == sorted(set(sequences))
    assert os.stat(tmp_path / IDENTITY).st_mode & 0o777 == 0o600
    assert "identity-1" not in repr(sender.membership.identity)


async def test_a_join_is_tried_again_under_the_same_number_and_the_next_one_under_another(
    router: FakeRouter, make: Make
) -> None:
    router.refuse_join = (grpc.StatusCode.UNAVAILABLE, "the answer is lost")
    sender = make(router.address)
    await router.until(lambda: len(router.joins) >= 2)
    router.refuse_join = None
    await router.until(lambda: bool(router.reports()))
    first = {join.attempt for join in router.joins}
    assert len(first) == 1
    assert len(next(iter(first))) >= 32
    count = len(router.joins)
    sender.membership.rejoin()
    await router.until(lambda: len(router.joins) > count)
    assert router.joins[-1].attempt not in first


async def test_a_disk_that_keeps_nothing_does_not_cost_the_identity_a_token_was_spent_on(
    router: FakeRouter, make: Make, tmp_path: Path
) -> None:
    (tmp_path / IDENTITY).mkdir()  # nothing can be put in its place
    sender = make(router.address)
    await router.until(lambda: len(router.reports()) >= 3)
    assert len(router.joins) == 1
    await sender.stop()  # which finds no part of it failed


@pytest.mark.parametrize(
    ("token", "second"), [("token", ("old", "token", NODE_UID)), ("", ("", "", NODE_UID))], ids=["token", "none"]
)
async def test_an_identity_that_is_not_renewed_leads_to_joining_anew(
    router: FakeRouter, make: Make, tmp_path: Path, token: str, second: tuple[str, str, str]
) -> None:
    """Beside a token the identity proves who it was; without one a router may let it in again all the same (loopback)."""
    wall = SystemClock().wall()
    StateFiles(tmp_path).keep_identity(StoredIdentity(NODE_UID, "old", wall - 900.0, wall + 100.0))
    router.refuse_join = (grpc.StatusCode.UNAUTHENTICATED, "moved to another zone; it has to join again")
    make(router.address, token=token)
    await router.until(lambda: len(router.joins) >= 2)
    asked = [(j.identity, j.join_token, j.node_uid) for j in router.joins[:2]]
    assert asked == [("old", "", NODE_UID), second]


async def test_case_g11_a_kept_state_directory_is_the_same_node_and_a_lost_one_asks_anew(
    router: FakeRouter, make: Make, tmp_path: Path
) -> None:
    first = make(router.address)
    await router.until(lambda: bool(router.reports()))
    await first.stop()
    make(router.address)
    await router.until(lambda: len(router.streams) == 2 and bool(router.streams[1].reports))
    assert len(router.joins) == 1, "no second join: the identity was kept"
    (tmp_path / IDENTITY).unlink()
    router.node_uid = "0b5c1f7e-4a77-4b6e-9a0e-5a1f3c1f0002"
    make(router.address)
    await router.until(lambda: len(router.joins) == 2 and len(router.streams) == 3 and bool(router.streams[2].reports))
    again = router.joins[1]
    assert (again.node_uid, list(again.gpu_uuids)) == ("", ["GPU-1", "GPU-2"]), "the centre adopts it by its GPUs"
    assert router.streams[2].reports[0].node_uid == router.node_uid


async def test_renews_at_two_thirds_of_its_life_without_the_token(
    router: FakeRouter, make: Make, tmp_path: Path, until: Until
) -> None:
    clock = ManualClock(wall=10_000.0)
    StateFiles(tmp_path).keep_identity(StoredIdentity(NODE_UID, "old", 10_000.0 - 799.0, 10_000.0 + 401.0))
    sender = make(router.address, clock=clock)
    await router.until(lambda: bool(router.reports()))
    assert router.joins == []
    await sender.stop()
    clock.step_wall(2.0)
    sender = make(router.address, clock=clock)
    await router.until(lambda: len(router.joins) == 1)
    assert (router.joins[0].identity, router.joins[0].join_token, router.joins[0].node_uid) == ("old", "", NODE_UID)
    await router.until(lambda: router.streams[-1].authorization == "Bearer identity-1")


async def test_joining_is_tried_again_with_growing_pauses(router: FakeRouter, make: Make) -> None:
    router.refuse_join = (grpc.StatusCode.PERMISSION_DENIED, "the token is spent")
    sender = make(router.address)
    await router.until(lambda: len(router.joins) >= 4)
    assert "the token is spent" in sender.membership.problem
    router.refuse_join = None
    await router.until(lambda: bool(router.reports()))
    assert sender.membership.problem == ""


async def test_told_to_join_again_it_does_so_and_a_router_never_content_makes_no_storm(
    router: FakeRouter, make: Make
) -> None:
    router.first_directive = NodeDirective(1, 1, rejoin=True)
    make(router.address)
    await router.until(lambda: len(router.joins) >= 3)
    await asyncio.sleep(1.0)
    assert len(router.joins) < 20
    assert router.joins[1].identity == "identity-1", "first with what it has, the token is for once"
    router.first_directive = NodeDirective(1, 1)
    await router.until(lambda: len(router.streams[-1].reports) >= 20)


async def test_an_identity_that_a_router_refuses_leads_to_joining_again(router: FakeRouter, make: Make) -> None:
    router.refuse_stream = (grpc.StatusCode.UNAUTHENTICATED, "unknown node", None)
    make(router.address)
    await router.until(lambda: len(router.joins) >= 2)
    router.refuse_stream = None
    await router.until(lambda: bool(router.reports()))


async def test_every_router_gets_every_report_and_learned_ones_too(
    router: FakeRouter, make: Make, until: Until
) -> None:
    second, third = FakeRouter(), FakeRouter()
    await second.start()
    await third.start()
    try:
        sender = make(router.address, second.address)
        await router.until(lambda: len(router.reports()) > 3)
        await second.until(lambda: len(second.reports()) > 3)
        router.streams[0].directives.put_nowait(NodeDirective(1, 2, (third.address, router.address)))
        await third.until(lambda: len(third.reports()) > 3)
        assert len(router.streams) == 1, "a router known twice has one stream"
        assert len(sender.uplink.connected) == 3
        router.streams[0].directives.put_nowait(NodeDirective(1, 3, ()))
        await until(lambda: len(sender.uplink.connected) == 2)
    finally:
        await second.stop()
        await third.stop()


async def test_the_highest_directive_is_obeyed_whatever_the_order(router: FakeRouter, make: Make, until: Until) -> None:
    second = FakeRouter()
    second.first_directive = NodeDirective(2, 1, draining=True)
    await second.start()
    try:
        sender = make(router.address, second.address)
        await until(lambda: sender.uplink.directive is not None and sender.uplink.directive.epoch == 2)
        for older in (NodeDirective(1, 99), NodeDirective(2, 0), NodeDirective(1, 1)):
            router.streams[0].directives.put_nowait(older)
        await asyncio.sleep(0.2)
        assert sender.uplink.directive == NodeDirective(2, 1, draining=True)
        router.streams[0].directives.put_nowait(NodeDirective(2, 2))
        await until(lambda: sender.uplink.directive == NodeDirective(2, 2))
    finally:
        await second.stop()


async def test_a_router_that_restarts_gets_reports_again(router: FakeRouter, make: Make) -> None:
    make(router.address)
    await router.until(lambda: bool(router.reports()))
    port = router.port
    await router.stop()
    await asyncio.sleep(0.3)
    again = FakeRouter()
    await again.start(port)
    try:
        await again.until(lambda: bool(again.reports()))
    finally:
        await again.stop()


async def test_reconnects_are_bounded_and_wait_as_long_as_asked(router: FakeRouter, make: Make) -> None:
    router.refuse_stream = (grpc.StatusCode.RESOURCE_EXHAUSTED, "later", 600)
    make(router.address)
    await router.until(lambda: len(router.opened) >= 4, 20.0)
    pauses = [b - a for a, b in zip(router.opened, router.opened[1:], strict=False)]
    assert min(pauses) >= 0.6, "never sooner than the router asked for"
    router.refuse_stream = (grpc.StatusCode.UNAVAILABLE, "no", None)
    before = len(router.opened)
    await asyncio.sleep(2.0)
    assert len(router.opened) - before < 40


async def test_a_dead_router_does_not_hold_up_the_others(router: FakeRouter, make: Make) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent:
        make(f"127.0.0.1:{port}", router.address)
        await router.until(lambda: len(router.reports()) > 20, 15.0)


async def test_the_last_report_says_goodbye_and_closes_the_stream_in_good_order(router: FakeRouter, make: Make) -> None:
    sender = make(router.address)
    await router.until(lambda: bool(router.reports()))
    await sender.uplink.finish(sender.report(AgentPhase.RESTARTING))
    await router.until(lambda: router.streams[0].half_closed)
    assert router.streams[0].reports[-1].phase is AgentPhase.RESTARTING


def test_full_jitter_within_a_ceiling_that_doubles() -> None:
    rng = random.Random(1)
    backoff = Backoff(10.0)
    delays = [backoff.next_delay(rng) for _ in range(200)]
    for failures, delay in enumerate(delays):
        assert 0 <= delay <= min(10.0, BASE_SECONDS * 2**failures)
    late = delays[20:]
    assert min(late) < 2
    assert max(late) > 8, "the whole range is used: agents do not come back together"
    backoff.reset()
    assert backoff.next_delay(rng) <= BASE_SECONDS
    asked = [Backoff(10.0).next_delay(rng, 3.0) for _ in range(100)]
    assert min(asked) >= 3.0
    assert max(asked) - min(asked) > 1.0, "what was asked for is spread too"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("router:7601", ("router", 7601)),
        ("router", ("router", 7601)),
        ("[fd00::1]:9", ("fd00::1", 9)),
        ("fd00::1", ("fd00::1", 7601)),
        ("https://router:9/", ("router", 9)),
    ],
)
def test_addresses(written: str, found: tuple[str, int]) -> None:
    assert split_host_port(written) == found


@pytest.mark.parametrize("written", ["", ":7", "a:0", "a:70000", "a:b"])
def test_addresses_that_are_none(written: str) -> None:
    with pytest.raises(ValueError, match=r"port|host|int"):
        split_host_port(written)


async def test_one_router_under_two_names_is_one_destination() -> None:
    found = await destinations(["127.0.0.1:7601", "localhost:7601", "127.0.0.1:7602", ":bad"])
    assert [d.key for d in found] == ["127.0.0.1:7601", "127.0.0.1:7602"]
    assert found[0] == Destination("127.0.0.1:7601", "127.0.0.1:7601")
