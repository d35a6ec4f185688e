"""The watch on a control plane: resync, reconnection, staleness, and what a router is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from fleet.clock import SystemClock
from fleet.delta import diff
from fleet.errors import InvalidInput
from fleet.process.grpc_server import make_channel
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion
from regional.sync import watch as watch_module
from regional.sync.addresses import Target, resolve, split_host_port
from regional.sync.backoff import Backoff
from regional.sync.held import HeldSnapshot
from regional.sync.keeper import SnapshotKeeper
from regional.sync.snapshot_file import SnapshotFile
from regional.sync.uplink import Uplink
from regional.sync.watch import Freshness, RouterIdentity, Watch
from tests.router.scripted_controlplane import ScriptedControlPlane, delta, full, heartbeat
from tests.router.waiting import until

WHO = RouterIdentity("router-1", 7, "eu", "test")


def at(version: int, endpoints: int = 5, epoch: int = 1) -> IntentSnapshot:
    objects = [IntentObject("endpoint", f"e{n}", f"e{n}", version if n == 0 else 1, {"n": n}) for n in range(endpoints)]
    return IntentSnapshot.of(IntentVersion(epoch, version, b"chain%d" % version), "eu", objects)


class Router:
    """A watch with everything it needs, and what it told."""

    def __init__(self, *addresses: str) -> None:
        self.clock = SystemClock()
        self.held = HeldSnapshot("eu")
        self.freshness = Freshness(self.clock)
        self.applied: list[tuple[int, int]] = []
        self.refused: list[str] = []
        self.observed: list[str] = []
        self.failures: list[str] = []
        self.token = "hrr_test"
        watch = Watch(
            WHO,
            self.held,
            self.freshness,
            lambda: self.token,
            self._changed,
            lambda o: self.observed.append(o.region),
            self.refused.append,
        )
        uplink = Uplink(addresses, _channel, random.Random(1), lambda address, why: self.failures.append(why))
        self.task = asyncio.create_task(uplink.run(watch.session))

    async def _changed(self) -> None:
        self.applied.append(self.held.at.order)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Router]:
        try:
            yield self
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


def _channel(target: Target) -> grpc.aio.Channel:
    return make_channel(target.address)


@pytest.fixture
async def centre() -> AsyncIterator[ScriptedControlPlane]:
    async with ScriptedControlPlane().serving() as plane:
        yield plane


async def test_full_then_deltas(centre: ScriptedControlPlane) -> None:
    history = [at(v) for v in (1, 2, 3)]
    centre.opening = full(history[0])
    async with Router(centre.address).running() as router:
        await until(lambda: router.applied == [(1, 1)])
        assert router.freshness.connected
        centre.say([delta(diff(history[0], history[1])), delta(diff(history[1], history[2]))])
        await until(lambda: router.applied == [(1, 1), (1, 2), (1, 3)])
    assert centre.tokens == ["Bearer hrr_test"]
    assert not router.freshness.connected


async def test_case_x01_a_gap_costs_one_resync_and_deltas_go_on(centre: ScriptedControlPlane) -> None:
    history = {v: at(v) for v in (5, 8, 9, 10, 11)}
    centre.opening = full(history[5])
    async with Router(centre.address).running() as router:
        await until(lambda: router.applied == [(1, 5)])
        centre.opening = full(history[9])
        centre.say([delta(diff(history[8], history[9]))])
        await until(lambda: router.applied == [(1, 5), (1, 9)])
        centre.say([delta(diff(history[9], history[10])), delta(diff(history[10], history[11]))])
        await until(lambda: router.applied[-2:] == [(1, 10), (1, 11)])
    assert [h.version for h in centre.haves] == [0, 0], "asked anew once, with nothing in hand"
    assert router.refused == ["stale"]


async def test_a_router_that_was_cut_off_says_what_it_has(centre: ScriptedControlPlane) -> None:
    one, two = at(1), at(2)
    centre.opening = full(one)
    async with Router(centre.address).running() as router:
        await until(lambda: router.applied)
        await centre.stop()
        await until(lambda: not router.freshness.connected)
        assert router.held.at.version == 1, "it keeps what it has"
        centre.opening = [delta(diff(one, two))]
        await centre.start()
        await until(lambda: router.applied[-1] == (1, 2))
    assert centre.haves[-1] == one.at


async def test_rel_r7_a_wrong_digest_and_a_truncated_snapshot_are_refused(centre: ScriptedControlPlane) -> None:
    good, chunks = at(2), full(at(2, 3000))
    wrong = full(good)
    wrong[-1].full.content = bytes(32)
    centre.opening = wrong
    async with Router(centre.address).running() as router:
        await until(lambda: "digest" in router.refused)
        assert router.held.empty
        torn = full(at(3))
        torn[0].full.index = 1
        centre.opening = torn
        await until(lambda: "stale" in router.refused)
        assert router.held.empty
        centre.opening = full(good)
        await until(lambda: router.applied == [(1, 2)])
    assert chunks[-1].full.last


async def test_nonsense_from_a_control_plane_never_ends_the_watch(centre: ScriptedControlPlane) -> None:
    from fleet.wire.headrace.v1 import snapshot_pb2

    def first(spec: bytes, **fields: object) -> list[snapshot_pb2.SnapshotUpdate]:
        chunk = snapshot_pb2.SnapshotChunk(
            region="eu", last=True, objects=[snapshot_pb2.IntentObject(kind="endpoint", spec_json=spec)]
        )
        return [snapshot_pb2.SnapshotUpdate(full=chunk)]

    async with Router(centre.address).running() as router:
        for spec in (b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": NaN}'):
            centre.opening = first(spec)
            before = len(router.failures)
            await until(lambda before=before: len(router.failures) > before + 1)
        assert router.held.empty
        centre.opening = full(at(1))
        await until(lambda: router.applied == [(1, 1)])


async def test_an_older_history_is_refused_until_its_epoch_rises(centre: ScriptedControlPlane) -> None:
    centre.opening = full(at(9))
    async with Router(centre.address).running() as router:
        await until(lambda: router.applied == [(1, 9)])
        centre.opening = full(at(4))
        await centre.stop()
        await centre.start()
        await until(lambda: "stale" in router.refused)
        assert router.held.at.order == (1, 9)
        centre.opening = full(at(4, epoch=2))
        await until(lambda: router.applied[-1] == (2, 4))


async def test_freshness_grows_while_the_head_is_ahead_or_unknown(centre: ScriptedControlPlane) -> None:
    one = at(1)
    centre.opening = full(one)
    async with Router(centre.address).running() as router:
        await until(lambda: router.applied)
        await until(lambda: router.freshness.connected)
        centre.say([heartbeat(IntentVersion(1, 2, b"x"))])
        await asyncio.sleep(0.3)
        behind = router.freshness.age_seconds()
        assert behind is not None
        assert behind >= 0.3, "a head that is ahead does not make what is held current"
        centre.say([heartbeat(one.at)])
        await until(lambda: (router.freshness.age_seconds() or 9) < 0.2)


async def test_a_silent_control_plane_is_left_for_another(
    centre: ScriptedControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "SILENCE_SECONDS", 0.3)
    async with ScriptedControlPlane().serving() as other:
        other.opening = full(at(1))
        async with Router(centre.address, other.address).running() as router:
            await until(lambda: router.applied == [(1, 1)])


async def test_a_rotated_token_is_used_at_the_next_attempt(centre: ScriptedControlPlane) -> None:
    centre.refuse_with = grpc.StatusCode.UNAUTHENTICATED
    centre.opening = full(at(1))
    async with Router(centre.address).running() as router:
        await until(lambda: centre.tokens)
        router.token = "hrr_new"
        centre.refuse_with = None
        await until(lambda: router.applied)
    assert centre.tokens[-1] == "Bearer hrr_new"
    assert not any("hrr_" in why for why in router.failures)


async def test_observed_and_unknown_messages(centre: ScriptedControlPlane) -> None:
    from fleet.wire.headrace.v1 import region_pb2, snapshot_pb2

    centre.opening = [
        snapshot_pb2.SnapshotUpdate(),
        snapshot_pb2.SnapshotUpdate(observed=region_pb2.RegionObserved(region="us")),
    ]
    async with Router(centre.address).running() as router:
        await until(lambda: router.observed == ["us"])


async def test_the_keeper_writes_the_newest_and_tries_again(tmp_path: Path) -> None:
    held, clock = HeldSnapshot("eu"), SystemClock()
    errors: list[OSError] = []
    blocked = tmp_path / "state"
    blocked.write_text("a file where the directory should be")
    keeper = SnapshotKeeper(SnapshotFile(blocked / "snapshot"), held, Freshness(clock), errors.append)
    held.offer_full(at(1))
    keeper.changed()
    assert not await keeper.flush()
    assert errors
    blocked.unlink()
    held.offer_full(at(2))
    assert await keeper.flush()
    loaded = SnapshotFile(blocked / "snapshot").load()
    assert loaded is not None
    assert loaded[0].published.at == at(2).at


# Where control planes are


def test_addresses_in_every_spelling() -> None:
    assert split_host_port("cp", 7611) == ("cp", 7611)
    assert split_host_port("cp:1", 7611) == ("cp", 1)
    assert split_host_port("[::1]:9", 7611) == ("::1", 9)
    assert split_host_port("[::1]", 7611) == ("::1", 7611)
    assert split_host_port("https://cp:5/", 7611) == ("cp", 5)
    for wrong in ("", "cp:", "cp:x", "cp:70000", "[::1", "[::1]9"):
        with pytest.raises(InvalidInput):
            split_host_port(wrong, 7611)


async def test_every_address_of_a_name_is_used() -> None:
    targets = await resolve(["localhost:5", "127.0.0.1:6", "no-such-name.invalid"], 7611, random.Random(1))
    assert {"127.0.0.1:5", "127.0.0.1:6"} <= {t.address for t in targets}
    assert {t.name for t in targets} == {"localhost", "127.0.0.1"}


def test_backoff_is_full_jitter_below_a_rising_ceiling() -> None:
    backoff = Backoff(0.2, 5.0, random.Random(3))
    delays = [backoff.failed() for _ in range(200)]
    assert all(d <= 0.2 for d in delays[:1])
    assert max(delays) <= 5.0
    assert min(delays[10:]) < 0.5, "full jitter starts at zero"
    backoff.succeeded()
    assert backoff.failed() <= 0.2


def test_a_snapshot_from_disk_is_as_old_as_its_last_confirmation() -> None:
    from fleet.clock import ManualClock

    clock = ManualClock()
    freshness = Freshness(clock)
    assert freshness.age_seconds() is None
    freshness.restored(clock.wall() - 60)
    clock.advance(5)
    assert freshness.age_seconds() == pytest.approx(65)
    clock.step_wall(-7200)
    assert freshness.age_seconds() == pytest.approx(65), "a jump of the wall clock is no news (rel-R19)"
    freshness.confirmed()
    assert freshness.age_seconds() == 0
