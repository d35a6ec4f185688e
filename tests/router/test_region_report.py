"""What goes up to the control plane: inventory parts, events until acknowledged, demand, over real gRPC."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.capacity import CapacityRow, InventoryNode, inventory_digest
from fleet.clock import ManualClock, SystemClock
from fleet.process.grpc_server import make_channel
from fleet.request import Usage
from fleet.snapshot import IntentVersion
from fleet.wire.headrace.v1 import region_pb2
from fleet.wire.regions import region_report_from_wire
from regional.request.steps import Outcome, RequestRecord
from regional.sync.demand import MAX_ROWS, WINDOW_SECONDS, DemandMeter
from regional.sync.events import MAX_HELD, EventOutbox
from regional.sync.inventory import REFRESH_SECONDS, InventoryTelling
from regional.sync.report import Reporter, ReportSources
from regional.sync.uplink import Uplink
from regional.sync.watch import RouterIdentity
from tests.router.scripted_controlplane import ScriptedControlPlane
from tests.router.waiting import until


def node(uid: str, sequence: int = 1, state: str = "ready", temperature: float = 50.0) -> InventoryNode:
    gpu = AcceleratorState(f"GPU-{uid}", index=0, temperature_celsius=temperature, health=DeviceHealth.OK)
    return InventoryNode(uid, uid, "z", 1, sequence, state, 0.1, gpus=(gpu,))


# Inventory


def test_the_first_part_is_everything_and_the_digest_is_the_receivers() -> None:
    telling, held = InventoryTelling(), {}
    part = telling.part([node("a"), node("b")], 0.0)
    assert part.full
    assert {n.node_uid for n in part.nodes} == {"a", "b"}
    held = {n.node_uid: n for n in part.nodes}
    assert part.digest == inventory_digest(held.values())
    changed = telling.part([node("a", 2, "suspect")], 0.1)
    assert not changed.full
    assert changed.removed == ("b",)
    held = {n.node_uid: n for n in changed.nodes}
    assert changed.digest == inventory_digest(held.values())


def test_readings_wait_and_states_do_not() -> None:
    telling = InventoryTelling()
    telling.part([node("a")], 0.0)
    assert telling.part([node("a", 2, temperature=60.0)], 1.0).nodes == ()
    assert len(telling.part([node("a", 3, "suspect")], 1.1).nodes) == 1
    assert telling.part([node("a", 4, "suspect", 70.0)], 2.0).nodes == ()
    assert len(telling.part([node("a", 5, "suspect", 70.0)], 2.0 + REFRESH_SECONDS).nodes) == 1
    assert telling.part([node("a", 5, "suspect", 70.0)], 60.0).nodes == (), "nothing new, nothing told"


def test_a_failed_gpu_is_told_at_once() -> None:
    telling, before = InventoryTelling(), node("a")
    telling.part([before], 0.0)
    failed = replace(before, gpus=(replace(before.gpus[0], health=DeviceHealth.FAILED),))
    assert telling.part([failed], 0.1).nodes == (failed,)


def test_a_large_region_is_told_in_parts() -> None:
    telling, nodes = InventoryTelling(), [node(f"n{i}") for i in range(1200)]
    held: dict[str, InventoryNode] = {}
    for round_number in range(3):
        part = telling.part(nodes, float(round_number))
        assert part.full == (round_number == 0)
        held.update((n.node_uid, n) for n in part.nodes)
        assert part.digest == inventory_digest(held.values())
    assert len(held) == 1200


# Events


def test_events_are_kept_until_acknowledged_and_bounded() -> None:
    outbox = EventOutbox("eu", ManualClock())
    outbox.add("NodeDead", "gone", "node", "n1", "error")
    (event,) = outbox.pending()
    assert outbox.pending() == (event,)
    outbox.acknowledged([event.uid, "unknown"])
    assert outbox.pending() == ()
    for i in range(MAX_HELD + 10):
        outbox.add("X", str(i), "node", "n")
    assert len(outbox) == MAX_HELD
    assert outbox.dropped == 10
    assert outbox.pending()[0].message == "10", "the oldest are dropped first"


# Demand


def record(model: str = "m", tokens: int = 100) -> RequestRecord:
    return RequestRecord(
        "r",
        "t",
        "k",
        model,
        "standard",
        Outcome.OK,
        "eu",
        "eu",
        "z",
        "n",
        "e",
        (),
        1,
        0,
        0,
        1.0,
        0.1,
        Usage(tokens, 10),
    )


def test_demand_is_a_smoothed_rate_that_fades() -> None:
    meter = DemandMeter()
    for i in range(1000):
        meter.add(record(), i / 10)
    (row,) = meter.rows(100.0)
    assert row.origin == "eu", "an unknown origin is the region the client came to"
    assert 9.0 < row.requests_per_second < 10.5
    assert 900 < row.input_tokens_per_second < 1050
    assert meter.rows(100.0 + 20 * WINDOW_SECONDS) == ()


def test_tokens_that_no_engine_counted_are_unknown_and_not_zero() -> None:
    meter = DemandMeter()
    for i in range(1000):
        meter.add(replace(record(), usage=Usage()), i / 10)
    (row,) = meter.rows(100.0)
    assert 9.0 < row.requests_per_second < 10.5
    assert (row.input_tokens_per_second, row.output_tokens_per_second) == (None, None)
    for i in range(1000, 2000):  # one in two is counted: all come to what those do
        meter.add(replace(record(), usage=Usage() if i % 2 else Usage(100, None)), i / 10)
    (row,) = meter.rows(200.0)
    assert row.input_tokens_per_second == pytest.approx(100 * row.requests_per_second)
    assert row.output_tokens_per_second is None


def test_demand_rows_are_bounded() -> None:
    meter = DemandMeter()
    for i in range(MAX_ROWS + 500):
        meter.add(record(f"m{i}"), 1.0)
    assert len(meter.rows(1.0)) <= MAX_ROWS + 1


# The stream


async def test_reports_flow_and_directives_are_obeyed() -> None:
    clock = SystemClock()
    outbox = EventOutbox("eu", clock)
    nodes = [node("a")]
    sources = ReportSources(
        rows=lambda now: [CapacityRow("z", "m", 1, 1)],
        inventory=lambda now: nodes,
        demand=lambda now: [],
        peer_rtts=lambda now: [("us", 0.08)],
        ready=lambda: True,
        applied=lambda: IntentVersion(1, 7),
        rejections=lambda: ["endpoint: empty"],
        http_addresses=lambda: ["http://r:7600"],
        grpc_addresses=lambda: ["r:7601"],
    )
    reporter = Reporter(RouterIdentity("r1", 3, "eu", "v"), sources, outbox, lambda: "hrr_t", clock)
    outbox.add("NodeDead", "gone", "node", "n1")
    async with ScriptedControlPlane().serving() as centre:
        uplink = Uplink(
            [centre.address], lambda t: make_channel(t.address), random.Random(1), lambda address, why: None
        )
        task = asyncio.create_task(uplink.run(reporter.session))
        try:
            await until(lambda: len(centre.reports) >= 2)
            first = region_report_from_wire(centre.reports[0])
            assert first.inventory_full
            assert (first.router_uid, first.incarnation, first.applied_version) == ("r1", 3, 7)
            assert first.peer_rtt_seconds == (("us", 0.08),)
            assert first.rejections == ("endpoint: empty",)
            assert not region_report_from_wire(centre.reports[1]).inventory_full
            assert centre.reports[1].events, "not acknowledged, so sent again"
            centre.directive = region_pb2.RegionDirective(
                report_interval_ms=100, want_full_inventory=True, acknowledged_events=[first.events[0].uid]
            )
            await until(lambda: len(outbox) == 0 and centre.reports[-1].inventory_full)
            sequences = [r.sequence for r in centre.reports]
            assert sequences == sorted(set(sequences))
            await centre.stop()
            centre.reports.clear()
            centre.directive = region_pb2.RegionDirective(report_interval_ms=100)
            await centre.start()
            await until(lambda: centre.reports)
            assert centre.reports[0].inventory_full, "a new stream starts with the whole"
            assert centre.reports[0].sequence > sequences[-1]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
