"""Region reports come in: what is kept, what is summed, what others are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import select, text

from controlplane.intake.intake import Intake
from controlplane.intake.writer import NodeNews, write_nodes, write_unknown
from controlplane.registry.reports import LIVE_SECONDS, ReportBook, merged_rows, region_observed, summed_demand
from controlplane.tables import Event, InventoryItem, RegionReportRow, Status
from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.capacity import (
    CapacityRow,
    DemandRow,
    FleetEvent,
    InventoryNode,
    RegionObserved,
    RegionReport,
    inventory_digest,
)
from fleet.clock import ManualClock
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, EngineLoad, ServedModel
from tests.controlplane_feed.copies import Reports, Router, Store, copy, eventually


def report(router: str = "r-1", sequence: int = 1, region: str = "eu-west", **changes: Any) -> RegionReport:
    nodes = changes.pop("nodes", ())
    digest = changes.pop("inventory_digest", inventory_digest(nodes))
    base = RegionReport(
        router,
        1,
        sequence,
        region,
        (f"http://{router}:7600",),
        (f"{router}:7601",),
        True,
        1,
        1,
        inventory_digest=digest,
        inventory_full=True,
        inventory=tuple(nodes),
    )
    return replace(base, **changes)


def node(uid: str = "n-eu", sequence: int = 1, state: str = "ready", **changes: Any) -> InventoryNode:
    endpoint = EndpointReport(
        f"{uid}-e",
        "llama-a",
        EngineKind.VLLM,
        "http://10.2.0.1:9000",
        (ServedModel("llama", "meta/llama"),),
        EndpointPhase.READY,
        gpu_uuids=(f"{uid}-g0",),
        gpus_known=True,
        load=EngineLoad(running=1, waiting=0, kv_usage=0.1),
        metrics_fresh=True,
        api_key="CANARY",
    )
    gpus = tuple(AcceleratorState(f"{uid}-g{i}", i, health=DeviceHealth.OK, utilisation=0.5) for i in range(2))
    base = InventoryNode(uid, uid, "eu-west-a", 1, sequence, state, 0.1, gpus, (endpoint,))
    return replace(base, **changes)


class Desk:
    """An intake over a database, stepped by hand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock()
        self.published: list[RegionObserved] = []
        self.faults: list[tuple[str, str]] = []
        self.intake = self.another()

    def another(self) -> Intake:
        """An intake as another copy has it, over the same database."""
        return Intake(
            self.store.database,
            self.clock,
            lambda part, error: self.faults.append((part, repr(error))),
            regions=lambda: {"r-eu": "eu-west", "r-us": "us-east"},
            declared_endpoints=lambda: {"declared-e": "engine-1"},
            publish=self.published.extend,
        )

    async def step(self) -> None:
        await self.intake.flush()
        await self.intake.observe()

    async def rows(self, table: Any) -> list[Any]:
        async with self.store.database.read() as session:
            return list((await session.execute(select(table))).scalars())

    async def conditions(self, kind: str, uid: str) -> dict[str, str]:
        async with self.store.database.read() as session:
            row = await session.get(Status, (kind, uid))
            return {} if row is None else {c["type"]: c["status"] for c in row.conditions}


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


# Which reports count


async def test_one_row_per_router_and_only_the_newer_counts(desk: Desk) -> None:
    for sequence in (1, 3, 2, 3):
        desk.intake.take(report(sequence=sequence))
    await desk.step()
    [row] = await desk.rows(RegionReportRow)
    assert (row.router_uid, row.incarnation, row.sequence) == ("r-1", 1, 3)
    assert desk.intake.rejected == 2
    other = desk.another()  # an old report that reached another copy first does not win in the table either
    other.take(report(sequence=2, ready=False))
    await other.flush()
    [row] = await desk.rows(RegionReportRow)
    assert row.sequence == 3
    other.take(replace(report(sequence=1), incarnation=2))
    await other.flush()
    [row] = await desk.rows(RegionReportRow)
    assert (row.incarnation, row.sequence) == (2, 1)


async def test_a_router_of_another_region_cannot_speak_in_its_name(desk: Desk) -> None:
    desk.intake.take(report("r-1"))
    await desk.step()
    desk.intake.take(report("r-1", incarnation=9, region="us-east"))
    desk.intake.take(report("r-1", sequence=2))
    await desk.step()
    [row] = await desk.rows(RegionReportRow)
    assert (row.region, row.incarnation, row.sequence) == ("eu-west", 1, 2)
    desk.clock.advance(LIVE_SECONDS + 1)  # moved for good
    desk.intake.take(report("r-1", incarnation=9, sequence=2, region="us-east"))
    await desk.step()
    [row] = await desk.rows(RegionReportRow)
    assert row.region == "us-east"
    assert list(desk.intake.live()) == ["us-east"]


async def test_a_silent_router_counts_for_nothing_after_five_seconds(desk: Desk) -> None:
    desk.intake.take(report(rows=(CapacityRow("z", "m", 1, 1),)))
    await desk.step()
    assert list(desk.intake.live()) == ["eu-west"]
    desk.clock.advance(LIVE_SECONDS - 0.1)
    assert list(desk.intake.live()) == ["eu-west"]
    desk.clock.advance(0.2)
    assert desk.intake.live() == {}
    await desk.step()
    assert desk.published[-1].region == "eu-west"
    assert (desk.published[-1].routers, desk.published[-1].rows) == ((), ())


async def test_a_copy_that_starts_does_not_take_old_rows_for_news(desk: Desk) -> None:
    desk.intake.take(report())
    await desk.step()
    desk.clock.advance(60)
    late = desk.another()
    await late.observe()
    assert late.live() == {}
    desk.intake.take(report(sequence=2))
    await desk.intake.flush()
    await late.observe()
    assert list(late.live()) == ["eu-west"]


async def test_a_wall_clock_that_jumps_does_not_kill_a_region(desk: Desk) -> None:
    desk.intake.take(report())
    await desk.step()
    desk.clock.step_wall(3600)
    await desk.step()
    assert list(desk.intake.live()) == ["eu-west"]
    desk.clock.step_wall(-7200)
    desk.intake.take(report(sequence=2))
    await desk.step()
    assert list(desk.intake.live()) == ["eu-west"]


def test_facts_come_from_one_router_and_work_is_summed() -> None:
    book = ReportBook()
    stale = CapacityRow("a", "m", 9, 9, 900.0, None, 3, 7, 1.0, 100)
    fresh = CapacityRow("a", "m", 4, 5, 400.0, 50.0, 2, None, 2.0, None)
    demand = DemandRow("FR", "m", "interactive", 1.5, 100.0, 50.0)
    book.put(report("r-1", rows=(stale,), demand=(demand,)), now=100.0)
    book.put(report("r-2", rows=(fresh, CapacityRow("b", "m", 0, 1)), demand=(demand,)), now=101.0)
    held = book.live(102.0)["eu-west"]
    observed = region_observed("eu-west", held, 102.0)
    assert observed.rows == (replace(fresh, inflight=5), CapacityRow("b", "m", 0, 1))
    assert [r.router_uid for r in observed.routers] == ["r-1", "r-2"]
    assert observed.age_seconds == 1.0
    assert summed_demand(h.report for h in held) == (DemandRow("FR", "m", "interactive", 3.0, 200.0, 100.0),)
    uncounted = replace(demand, input_tokens_per_second=None, output_tokens_per_second=None)
    told = [report(demand=(demand,)), report(demand=(uncounted,))]
    assert summed_demand(told) == (DemandRow("FR", "m", "interactive", 3.0, 200.0, 100.0),), "as many as the others"
    assert summed_demand(told[1:]) == (uncounted,)


def test_a_ready_router_is_believed_before_one_that_is_not() -> None:
    ready, unready = CapacityRow("a", "m", 4, 5), CapacityRow("a", "m", 0, 5)
    newest_first = [report("r-2", rows=(unready,), ready=False), report("r-1", rows=(ready,))]
    assert merged_rows(newest_first) == (ready,)


# Inventory


async def test_inventory_is_kept_with_conditions_and_without_secrets(desk: Desk) -> None:
    desk.intake.take(report(nodes=[node()]))
    await desk.step()
    items = {(i.kind, i.uid): i for i in await desk.rows(InventoryItem)}
    assert set(items) == {("node", "n-eu"), ("gpu", "n-eu-g0"), ("gpu", "n-eu-g1"), ("endpoint", "n-eu-e")}
    assert items["endpoint", "n-eu-e"].name == "n-eu.llama-a"
    assert items["gpu", "n-eu-g0"].body["endpoints"] == ["n-eu-e"]
    assert items["gpu", "n-eu-g0"].body["temperature_celsius"] is None
    assert "CANARY" not in str([i.body for i in items.values()])
    assert await desk.conditions("node", "n-eu") == {"Ready": "True", "ReportsFresh": "True", "DevicesHealthy": "True"}
    assert await desk.conditions("endpoint", "n-eu-e") == {
        "Reachable": "True",
        "MetricsFresh": "True",
        "Warm": "True",
        "Saturated": "False",
        "EngineAuthFailed": "False",
        "GPUsUnknown": "False",
    }


async def test_a_declared_endpoint_keeps_the_name_of_its_resource(desk: Desk) -> None:
    [endpoint] = node().endpoints
    desk.intake.take(report(nodes=[node(endpoints=(replace(endpoint, uid="declared-e"),))]))
    await desk.step()
    assert {i.name for i in await desk.rows(InventoryItem) if i.kind == "endpoint"} == {"engine-1"}


async def test_the_freshest_report_of_a_node_wins_whoever_tells_it(desk: Desk) -> None:
    desk.intake.take(report("r-1", nodes=[node(sequence=7, state="ready")]))
    desk.intake.take(report("r-2", nodes=[node(sequence=5, state="suspect")]))
    await desk.step()
    other = desk.another()
    other.take(report("r-3", nodes=[node(sequence=6, state="dead")]))
    await other.flush()
    [item] = [i for i in await desk.rows(InventoryItem) if i.kind == "node"]
    assert (item.state, item.sequence) == ("ready", 7)
    desk.intake.take(
        report("r-2", 2, nodes=[node(sequence=7, state="dead")])
    )  # both have lost it: the same report, a later state
    await desk.step()
    [item] = [i for i in await desk.rows(InventoryItem) if i.kind == "node"]
    assert item.state == "dead"
    assert (await desk.conditions("endpoint", "n-eu-e"))["Reachable"] == "False"


async def test_what_a_node_no_longer_has_goes_and_times_of_change_are_kept(desk: Desk) -> None:
    desk.intake.take(report(nodes=[node()]))
    await desk.step()
    desk.clock.advance(10)
    shrunk = node(sequence=2)
    lost = replace(shrunk.gpus[0], health=DeviceHealth.LOST)
    desk.intake.take(report(sequence=2, nodes=[replace(shrunk, gpus=(lost,))]))
    await desk.step()
    items = {(i.kind, i.uid) for i in await desk.rows(InventoryItem)}
    assert items == {("node", "n-eu"), ("gpu", "n-eu-g0"), ("endpoint", "n-eu-e")}
    conditions = {c["type"]: c for s in await desk.rows(Status) if s.kind == "node" for c in s.conditions}
    assert conditions["DevicesHealthy"]["status"] == "False"
    assert "n-eu-g0" in conditions["DevicesHealthy"]["message"]
    assert conditions["DevicesHealthy"]["last_transition_time"] > conditions["Ready"]["last_transition_time"]
    assert await desk.conditions("gpu", "n-eu-g0") == {"Ready": "False"}
    assert await desk.conditions("gpu", "n-eu-g1") == {}


async def test_readings_are_written_seldom_and_changes_of_state_at_once(desk: Desk) -> None:
    desk.intake.take(report(nodes=[node()]))
    await desk.step()
    warmer = node(sequence=2)
    warmer = replace(warmer, gpus=tuple(replace(g, temperature_celsius=80.0) for g in warmer.gpus))

    def sequences(items: list[Any]) -> set[int]:
        return {i.sequence for i in items}

    desk.intake.take(report(sequence=2, nodes=[warmer]))
    await desk.step()
    assert sequences(await desk.rows(InventoryItem)) == {1}
    desk.clock.advance(31)
    desk.intake.take(report(sequence=3, nodes=[replace(warmer, sequence=3)]))
    await desk.step()
    assert sequences(await desk.rows(InventoryItem)) == {3}
    desk.intake.take(report(sequence=4, nodes=[replace(warmer, sequence=4, state="draining")]))
    await desk.step()
    assert sequences(await desk.rows(InventoryItem)) == {4}


async def test_the_whole_inventory_is_asked_for_when_the_digest_does_not_match(desk: Desk) -> None:
    first, second = node("n-1"), node("n-2")
    assert not desk.intake.take(report(nodes=[first, second])).want_full_inventory
    gap = report(sequence=3, inventory_full=False, inventory_digest=inventory_digest([first, second, node("n-3")]))
    assert desk.intake.take(gap).want_full_inventory
    assert not desk.intake.take(report(sequence=4, nodes=[first, second, node("n-3")])).want_full_inventory
    removed = report(
        sequence=5,
        inventory_full=False,
        inventory_removed=("n-3",),
        inventory_digest=inventory_digest([first, second]),
    )
    assert not desk.intake.take(removed).want_full_inventory
    await desk.step()
    assert {i.uid for i in await desk.rows(InventoryItem) if i.kind == "node"} == {"n-1", "n-2"}
    desk.intake.forget("eu-west", "r-1")  # its stream ended: what it told does not carry over
    assert desk.intake.take(
        report(sequence=6, inventory_full=False, inventory_digest=inventory_digest([first, second]))
    ).want_full_inventory


async def test_a_node_taken_back_by_one_router_stays_if_another_knows_better(desk: Desk) -> None:
    desk.intake.take(report("r-1", nodes=[node(sequence=5)]))
    await desk.step()
    other = desk.another()
    other.take(report("r-2", nodes=[node(sequence=9, state="draining")]))
    await other.flush()
    gone = report("r-1", 2, inventory_full=False, inventory_removed=("n-eu",), inventory_digest=inventory_digest([]))
    desk.intake.take(gone)
    await desk.step()
    assert {i.sequence for i in await desk.rows(InventoryItem)} == {9}


async def test_case_g11_a_device_of_two_nodes_is_counted_once(desk: Desk) -> None:
    desk.intake.take(report("r-1", nodes=[node("n-old")]))
    await desk.step()
    thief = node("n-new", gpus=node("n-old").gpus, endpoints=())
    desk.intake.take(report("r-1", 2, nodes=[thief]))
    await desk.step()
    await desk.step()
    gpus = {i.uid: i.node_uid for i in await desk.rows(InventoryItem) if i.kind == "gpu"}
    assert gpus == {"n-old-g0": "n-old", "n-old-g1": "n-old"}
    assert {e.reason for e in await desk.rows(Event)} >= {"DeviceConflict"}
    desk.clock.advance(61)
    desk.intake.take(report("r-1", 3, nodes=[replace(thief, sequence=2)]))
    await desk.step()
    gpus = {i.uid: i.node_uid for i in await desk.rows(InventoryItem) if i.kind == "gpu"}
    assert gpus == {"n-old-g0": "n-new", "n-old-g1": "n-new"}


async def test_a_region_tells_of_its_own_nodes_only(desk: Desk) -> None:
    desk.intake.take(report("r-1", nodes=[node("n-1")]))
    await desk.step()
    desk.intake.take(report("r-2", region="us-east", nodes=[node("n-1", incarnation=9)]))
    await desk.step()
    gone = report("r-2", 2, region="us-east", inventory_full=False, inventory_removed=("n-1",))
    desk.intake.take(gone)
    await desk.step()
    [row] = [i for i in await desk.rows(InventoryItem) if i.kind == "node"]
    assert (row.region, row.incarnation) == ("eu-west", 1)
    desk.clock.advance(61)  # it has fallen silent there
    desk.intake.take(report("r-2", 3, region="us-east", nodes=[node("n-1", incarnation=9, sequence=2)]))
    await desk.step()
    [row] = [i for i in await desk.rows(InventoryItem) if i.kind == "node"]
    assert row.region == "us-east"


async def test_what_no_table_can_hold_does_not_hold_up_the_rest(desk: Desk) -> None:
    nodes = [node("n-1"), node(""), node("x" * 65), node("nul\x00"), node("odd", state="sideways")]
    event = FleetEvent("e\x00", "R\x00", "m\x00" * 5000, "k\x00", "n" * 999, "r\x00", "\x00", 1e11)
    desk.intake.take(report(nodes=nodes, version="\x00", events=(event,)))
    await desk.step()
    assert {i.uid for i in await desk.rows(InventoryItem) if i.kind == "node"} == {"n-1"}
    assert [e.uid for e in await desk.rows(Event) if e.reason == "R"] == ["e"]
    assert list(desk.intake.live()) == ["eu-west"]


async def test_orders_and_removals_that_no_table_can_hold_hold_up_nobody_either(desk: Desk) -> None:
    """What an agent says of itself is passed on as it is: one that says too much must not cost the others."""
    odd = [node("huge", incarnation=1 << 63), node("late", sequence=1 << 63), node("nul\x00")]
    desk.intake.take(report(nodes=[node("n-1"), *odd]))
    await desk.step()
    desk.intake.take(report(sequence=2, inventory_full=False, inventory_removed=("huge", "late", "nul\x00")))
    await desk.step()
    assert {i.uid for i in await desk.rows(InventoryItem) if i.kind == "node"} == {"n-1"}
    assert [r.sequence for r in await desk.rows(RegionReportRow)] == [2]


async def test_a_report_that_another_release_wrote_is_passed_over(desk: Desk) -> None:
    desk.intake.take(report("r-1"))
    desk.intake.take(report("r-2"))
    await desk.intake.flush()
    async with desk.store.database.write() as session:
        row = await session.get(RegionReportRow, "r-1")
        assert row is not None
        row.body = {"rows": [{"zone": "only"}], "http_addresses": 7}
    await desk.intake.observe()
    assert [h.report.router_uid for h in desk.intake.live()["eu-west"]] == ["r-2"]


# Events and regions


async def test_events_are_stored_once_and_acknowledged_when_they_are_safe(desk: Desk) -> None:
    event = FleetEvent("e-1", "EngineDied", "llama-a is gone", "endpoint", "n-eu.llama-a", "eu-west", "error", 1.7e9)
    assert desk.intake.take(report(events=(event,))).acknowledged_events == ()
    await desk.step()
    assert desk.intake.take(report(sequence=2, events=(event,))).acknowledged_events == ("e-1",)
    await desk.step()
    assert [e.uid for e in await desk.rows(Event) if e.reason == "EngineDied"] == ["e-1"]


async def test_a_region_that_falls_silent_is_told_and_its_nodes_are_unknown(desk: Desk) -> None:
    desk.intake.take(report(nodes=[node()]))
    await desk.step()
    assert await desk.conditions("region", "r-eu") == {"RouterConnected": "True"}
    assert await desk.conditions("region", "r-us") == {}  # we have only just begun to listen
    desk.clock.advance(LIVE_SECONDS + 1)
    await desk.step()
    assert await desk.conditions("region", "r-us") == {"RouterConnected": "False"}
    assert await desk.conditions("region", "r-eu") == {"RouterConnected": "False"}
    assert set((await desk.conditions("node", "n-eu")).values()) == {"Unknown"}
    desk.intake.take(report(sequence=2, nodes=[node(sequence=2)]))
    await desk.step()
    assert await desk.conditions("region", "r-eu") == {"RouterConnected": "True"}
    assert (await desk.conditions("node", "n-eu"))["Ready"] == "True"
    reasons = [e.reason for e in await desk.rows(Event) if e.name == "eu-west"]
    assert reasons == ["RegionConnected", "RegionDisconnected", "RegionConnected"]


# Faults


async def test_one_report_that_cannot_be_written_keeps_nothing_else_from_being_written(desk: Desk) -> None:
    bad = FleetEvent("e-bad", "Odd", "its time is none", "node", "n", "eu-west", wall=1e300)
    good = FleetEvent("e-good", "Fine", "", "node", "n", "eu-west", wall=1.0)
    desk.intake.take(report(nodes=(node(),), events=(bad, good)))
    desk.intake.take(report("r-2"))
    await desk.step()
    assert {r.router_uid for r in await desk.rows(RegionReportRow)} == {"r-1", "r-2"}
    assert "e-good" in {e.uid for e in await desk.rows(Event)}
    assert ("node", "n-eu") in {(i.kind, i.uid) for i in await desk.rows(InventoryItem)}


async def test_a_step_that_fails_is_told_and_tried_again(desk: Desk) -> None:
    tries: list[int] = []

    def regions() -> dict[str, str]:
        tries.append(1)
        if len(tries) == 1:
            raise KeyError("once")
        return {}

    intake = Intake(
        desk.store.database, desk.clock, lambda part, error: desk.faults.append((part, repr(error))), regions=regions
    )
    running = asyncio.create_task(intake.run())
    await eventually(lambda: len(tries) > 1 or running.done())
    assert desk.faults == [("intake-observe", "KeyError('once')")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_node_is_written_while_another_copy_takes_its_region_for_silent(postgres_url: str) -> None:
    """Seen under overload: both replace the rows of the same status, and the later insert found them there."""
    store = Store(postgres_url)
    wall = 1_800_000_000.0
    async with store.database.write() as session:
        await write_nodes(session, [NodeNews("eu-west", node())], {}, wall)

    async def again() -> None:
        async with store.database.write() as session:
            await write_nodes(session, [NodeNews("eu-west", node(sequence=2))], {}, wall)

    async with store.database.write() as session:
        await write_unknown(session, "eu-west", wall)
        writing = asyncio.create_task(again())
        async with store.database.read() as reader:
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")
            while not writing.done() and not (await reader.execute(waiting)).scalar_one():
                await asyncio.wait((writing,), timeout=0.02)
    await writing
    await store.close()


# Over the wire


async def test_other_regions_see_a_report_and_its_own_does_not(store: Store, database_url: str, tmp_path: Path) -> None:
    eu, us = await store.router_token("eu-west"), await store.router_token("us-east")
    async with copy(database_url, tmp_path, report_interval_seconds=0.5) as plane:
        stream = Reports(plane.channel(), eu)
        row = CapacityRow("eu-west-a", "llama", 2, 3, inflight=4)
        directive = await stream.send(report(rows=(row,)))
        assert (directive.acknowledged_incarnation, directive.acknowledged_sequence) == (1, 1)
        assert directive.report_interval_seconds == 0.5
        watching, own = Router(plane.channel(), us, "us-east"), Router(plane.channel(), eu, "eu-west")
        await watching.until(lambda r: "eu-west" in r.observed)
        assert watching.observed["eu-west"].rows == (row,)
        assert watching.observed["eu-west"].routers[0].http_addresses == ("http://r-1:7600",)
        assert watching.observed["eu-west"].age_seconds < LIVE_SECONDS
        late = Router(plane.channel(), us, "us-east")
        await late.until(lambda r: "eu-west" in r.observed)
        await stream.send(report(sequence=2, rows=(replace(row, inflight=9),)))
        await watching.until(lambda r: r.observed["eu-west"].rows[0].inflight == 9)
        assert own.observed == {}
        for router in (watching, own, late):
            await router.close()
        stream.close()


async def test_two_copies_see_each_others_reports(postgres_url: str, tmp_path: Path) -> None:
    store = Store(postgres_url)
    eu, us = await store.router_token("eu-west"), await store.router_token("us-east")
    async with copy(postgres_url, tmp_path / "a") as one, copy(postgres_url, tmp_path / "b") as two:
        stream = Reports(one.channel(), eu)
        await stream.send(report(rows=(CapacityRow("eu-west-a", "llama", 2, 3),)))
        watching = Router(two.channel(), us, "us-east")
        await watching.until(lambda r: "eu-west" in r.observed)
        await watching.close()
        stream.close()
    await store.close()


async def test_a_router_reports_only_for_its_own_region(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path) as plane:
        for sent, status in [
            (report(region="us-east"), grpc.StatusCode.PERMISSION_DENIED),
            (report(router=""), grpc.StatusCode.INVALID_ARGUMENT),
            (report(router="x" * 65), grpc.StatusCode.INVALID_ARGUMENT),
            (report(router="nul\x00"), grpc.StatusCode.INVALID_ARGUMENT),
            (report(sequence=1 << 63), grpc.StatusCode.INVALID_ARGUMENT),
            (report(incarnation=1 << 63), grpc.StatusCode.INVALID_ARGUMENT),
        ]:
            stream = Reports(plane.channel(), token)
            with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
                await stream.send(sent)
            assert await stream.ended() is status
        stream = Reports(plane.channel(), "not a token of ours")
        with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
            await stream.send(report())
        assert await stream.ended() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_speaks_for_one_router(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path) as plane:
        stream = Reports(plane.channel(), token)
        await stream.send(report("r-1"))
        with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
            await stream.send(report("r-2"))
        assert await stream.ended() is grpc.StatusCode.INVALID_ARGUMENT


async def test_report_streams_end_with_their_token_and_with_the_process(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    first, second = await sqlite_store.router_token("eu-west"), await sqlite_store.router_token("us-east")
    async with copy(sqlite_url, tmp_path) as plane:
        revoked, stopped = Reports(plane.channel(), first), Reports(plane.channel(), second)
        await revoked.send(report())
        await stopped.send(report("r-2", region="us-east"))
        await sqlite_store.revoke(first)
        assert await revoked.ended() is grpc.StatusCode.UNAUTHENTICATED
        plane.stop.set()
        assert await stopped.ended() is grpc.StatusCode.UNAVAILABLE
        await eventually(plane.task.done)
