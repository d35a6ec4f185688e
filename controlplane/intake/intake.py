"""Takes reports in from this process's streams, writes them down, and keeps the picture of all regions that every copy sees.

A report is answered from memory; what it brought is written a moment later, many routers in one transaction. What other copies
were told comes back from the database, so the picture is the same whichever copy a router talks to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4, uuid5

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.intake.rows import report_from_body
from controlplane.intake.told import Told, valid_node
from controlplane.intake.writer import (
    Conflict,
    NodeNews,
    purge,
    remove_nodes,
    write_events,
    write_nodes,
    write_reports,
    write_status,
    write_unknown,
)
from controlplane.registry.inventory import items_of, signature
from controlplane.registry.reports import LIVE_SECONDS, Held, ReportBook, region_observed
from controlplane.registry.status import region_conditions
from controlplane.store.database import Database
from controlplane.tables import RegionReportRow
from fleet.capacity import FleetEvent, InventoryNode, RegionDirective, RegionObserved, RegionReport
from fleet.clock import Clock
from fleet.errors import Unavailable
from fleet.process.logs import get_logger

WRITE_SECONDS = 0.25
OBSERVE_SECONDS = 0.5
REFRESH_SECONDS = 30.0
"""Readings of a node are written down at most this often; a change of state at once."""
PURGE_SECONDS = 60.0
NODES_PER_TRANSACTION = 200
MAX_DIRTY_NODES = 50_000

_EVENTS = UUID("7f0f5a0e-0b55-5e0c-9c57-2f6f3f1f0a11")
"""Namespace of event uids that must come out the same for the same thing."""
_log = get_logger("intake")

_Item = TypeVar("_Item")
_Speaker = tuple[str, str]
"""Region and router uid: a token is good for one region, so nobody's uid is believed beyond that."""


@dataclass(frozen=True, slots=True)
class _Written:
    """What was last written of a node."""

    region: str
    order: tuple[int, int]
    signature: bytes
    at: float


class Intake:
    """One per process; its state belongs to the event loop it runs on."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        on_fault: Callable[[str, BaseException | None], None],
        *,
        report_interval_seconds: float = 1.0,
        regions: Callable[[], Mapping[str, str]] = dict,
        declared_endpoints: Callable[[], Mapping[str, str]] = dict,
        publish: Callable[[Iterable[RegionObserved]], None] = lambda observed: None,
    ) -> None:
        """``on_fault(part, error)`` is told of each step that failed for another reason than the database being away.

        ``regions`` and ``declared_endpoints`` map uids of the region and endpoint resources to names.
        ``publish`` is given each region's aggregate when there is news of it.
        """
        self._database = database
        self._clock = clock
        self._on_fault = on_fault
        self._interval = report_interval_seconds
        self._regions = regions
        self._declared = declared_endpoints
        self._publish = publish
        self._told: dict[_Speaker, Told] = {}
        self._reports: dict[_Speaker, RegionReport] = {}
        """Newest of each router that is not written yet."""
        self._nodes: dict[str, NodeNews] = {}
        """Told and not written yet, by node uid."""
        self._removed: dict[str, NodeNews] = {}
        self._events: dict[str, FleetEvent] = {}
        """Our own, not written yet."""
        self._written: dict[str, _Written] = {}
        """By node uid."""
        self._observing_since: float | None = None
        self._book = ReportBook()
        self._seen_regions: dict[str, tuple[tuple[str, tuple[int, int]], ...]] = {}
        self._region_states: dict[str, tuple[int, int]] = {}
        """Routers alive and ready as last written, by region uid."""
        self.rejected = 0
        """Reports that were not newer than what is held."""

    def live(self) -> dict[str, list[Held]]:
        """Reports that count now, by region, freshest first, whichever copy they came to."""
        return self._book.live(self._clock.monotonic())

    def take(self, report: RegionReport) -> RegionDirective:
        """Take in a report of this process's streams. One that is not newer changes nothing."""
        speaker = report.region, report.router_uid
        told = self._told.setdefault(speaker, Told())
        if report.order <= told.order:
            self.rejected += 1
            return RegionDirective(*told.order, self._interval)
        new, removed, want_full = told.take(report)
        self._reports[speaker] = report
        for node in removed:
            if valid_node(node):  # else it was never written
                self._removed[node.node_uid] = NodeNews(report.region, node)
                self._nodes.pop(node.node_uid, None)
        for node in new:
            self._note(report.region, node)
        return RegionDirective(*report.order, self._interval, want_full, told.acknowledge())

    def forget(self, region: str, router_uid: str) -> None:
        """The router's stream has ended; what it told is written, and its next stream tells everything anew."""
        told = self._told.get((region, router_uid))
        if told is not None:
            told.nodes.clear()

    def record(self, event: FleetEvent) -> None:
        """Keep an event of our own; it is written with the next transaction."""
        if len(self._events) < 1000:
            self._events[event.uid] = event

    async def run(self) -> None:
        """Write and observe until cancelled; what is left is written on the way out, if the database answers."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._every(WRITE_SECONDS, "intake-write", self.flush))
                group.create_task(self._every(OBSERVE_SECONDS, "intake-observe", self.observe))
                group.create_task(self._every(PURGE_SECONDS, "intake-purge", self._purge))
        finally:
            try:
                async with asyncio.timeout(2.0):
                    await self.flush()
            except (Unavailable, TimeoutError) as error:
                _log.warning("last_reports_not_written", error=str(error) or "too slow")
            except Exception as error:  # noqa: BLE001  # whatever it is, the process ends in good order
                self._on_fault("intake-write", error)

    async def flush(self) -> None:
        """Write what was told since the last time. On failure everything is kept for the next; nothing is acknowledged."""
        if not (
            self._reports or self._nodes or self._removed or self._events or any(t.events for t in self._told.values())
        ):
            return
        reports, removed = dict(self._reports), dict(self._removed)
        own = dict(self._events)
        theirs = {uid: dict(told.events) for uid, told in self._told.items() if told.events}
        wall = self._clock.wall()
        happened = [*own.values(), *(e for events in theirs.values() for e in events.values())]
        try:
            async with self._database.write() as session:
                await write_reports(session, reports.values(), wall)
                await remove_nodes(session, removed.values())
                await write_events(session, happened, wall)
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001  # something in it: each kind by itself, so that one item keeps nothing else out
            await self._what_can_be_written(list(reports.values()), partial(write_reports, wall=wall))
            await self._what_can_be_written(list(removed.values()), remove_nodes)
            await self._what_can_be_written(happened, partial(write_events, wall=wall))
        self._reports = {k: r for k, r in self._reports.items() if reports.get(k) is not r}
        self._removed = {k: n for k, n in self._removed.items() if removed.get(k) is not n}
        for uid in removed:
            self._written.pop(uid, None)
        for uid in own:
            self._events.pop(uid, None)
        for router, events in theirs.items():
            if router in self._told:
                self._told[router].written(events)
        while self._nodes:
            await self._flush_nodes(list(self._nodes.values())[:NODES_PER_TRANSACTION])

    async def _flush_nodes(self, news: Sequence[NodeNews]) -> None:
        wall, now = self._clock.wall(), self._clock.monotonic()
        declared = self._declared()
        conflicts: list[Conflict] = []

        async def write(session: AsyncSession, part: Sequence[NodeNews]) -> None:
            conflicts.extend(await write_nodes(session, part, declared, wall))

        await self._what_can_be_written(news, write)
        for item in news:
            uid = item.node.node_uid
            if self._nodes.get(uid) is item:
                del self._nodes[uid]
            order = (item.node.incarnation, item.node.sequence)
            self._written[uid] = _Written(item.region, order, signature(items_of(item.node, declared)), now)
        for conflict in conflicts:
            self.record(
                FleetEvent(
                    str(uuid5(_EVENTS, f"{conflict.uid} {conflict.claimant} {conflict.holder} {wall // 3600}")),
                    "DeviceConflict",
                    f"node {conflict.claimant} reports {conflict.uid}, which node {conflict.holder} still reports",
                    "gpu",
                    conflict.uid,
                    severity="warning",
                    wall=wall,
                )
            )

    async def _what_can_be_written(
        self, items: Sequence[_Item], write: Callable[[AsyncSession, Sequence[_Item]], Awaitable[None]]
    ) -> None:
        """Raises Unavailable when the database is away. What it refuses for its content would be refused again: it is dropped,
        and found by halves so that nothing else is."""
        if not items:
            return
        try:
            async with self._database.write() as session:
                await write(session, items)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001  # the database refuses it, or it cannot be put into words for it
            if len(items) == 1:
                why = error.orig if isinstance(error, DBAPIError) else error
                _log.error("report_refused_by_database", error=type(why).__name__)
                return
            half = len(items) // 2
            await self._what_can_be_written(items[:half], write)
            await self._what_can_be_written(items[half:], write)

    async def observe(self) -> None:
        """Read what all copies were told, and pass on what is new of each region."""
        row = RegionReportRow
        async with self._database.read() as session:
            keys = (await session.execute(select(row.router_uid, row.incarnation, row.sequence))).all()
            new = [k.router_uid for k in keys if (k.incarnation, k.sequence) > self._book.order_of(k.router_uid)]
            rows = (await session.execute(select(row).where(row.router_uid.in_(new)))).scalars().all() if new else []
        now, wall = self._clock.monotonic(), self._clock.wall()
        for found in rows:
            # Only at first sight is another machine's clock believed, and never into the future.
            first = self._book.order_of(found.router_uid) == (0, -1)
            age = max(0.0, wall - found.received_at.timestamp()) if first else 0.0
            try:
                report = report_from_body(found.router_uid, found.region, found.incarnation, found.sequence, found.body)
            except (TypeError, ValueError, AttributeError) as error:
                _log.warning("report_of_another_release", router=found.router_uid, error=str(error))
                continue
            self._book.put(report, now, age)
        self._book.forget(k.router_uid for k in keys)
        await self._tell(self._book.live(now), now)

    async def _tell(self, live: dict[str, list[Held]], now: float) -> None:
        news = []
        for region in live.keys() | self._seen_regions.keys():
            held = live.get(region, [])
            seen = tuple(sorted((h.report.router_uid, h.report.order) for h in held))
            if self._seen_regions.get(region) != seen:
                news.append(region_observed(region, held, now))
            if held:
                self._seen_regions[region] = seen
            else:
                self._seen_regions.pop(region, None)
        if news:
            self._publish(news)
        if self._observing_since is None:
            self._observing_since = now
        # A copy that has just started has not heard anybody yet; that says nothing about the regions.
        judging = now - self._observing_since > LIVE_SECONDS
        for uid, region in list(self._regions().items()):
            held = live.get(region, [])
            state = (len(held), sum(h.report.ready for h in held))
            if (held or judging) and self._region_states.get(uid) != state:
                await self._write_region(region, uid, *state)
                self._region_states[uid] = state

    async def _write_region(self, region: str, uid: str, alive: int, ready: int) -> None:
        wall = self._clock.wall()
        async with self._database.write() as session:
            changed = await write_status(session, "region", uid, region_conditions(alive, ready), wall)
            if any(c["type"] == "RouterConnected" for c in changed):
                reason = "RegionConnected" if alive else "RegionDisconnected"
                message = f"{alive} routers of {region} report" if alive else f"no router of {region} reports"
                severity = "info" if alive else "warning"
                event = FleetEvent(str(uuid4()), reason, message, "region", region, region, severity, wall)
                await write_events(session, [event], wall)
            if not alive:
                await write_unknown(session, region, wall)
        if not alive:
            # Its nodes are written down anew as soon as somebody reports them again.
            self._written = {uid: w for uid, w in self._written.items() if w.region != region}

    async def _purge(self) -> None:
        async with self._database.write() as session:
            await purge(session, self._clock.wall())
        counted = {(h.report.region, h.report.router_uid) for held in self.live().values() for h in held}
        self._told = {key: told for key, told in self._told.items() if key in counted or told.events or told.nodes}
        silent = self._clock.monotonic() - PURGE_SECONDS * 60
        self._written = {k: w for k, w in self._written.items() if w.at > silent}

    def _note(self, region: str, node: InventoryNode) -> None:
        """Mark a node for writing when it is fresher than what is held, and worth it."""
        if not valid_node(node) or len(self._nodes) >= MAX_DIRTY_NODES:
            return
        order = (node.incarnation, node.sequence)
        pending = self._nodes.get(node.node_uid)
        if pending is not None:
            if (pending.node.incarnation, pending.node.sequence) <= order:
                self._nodes[node.node_uid] = NodeNews(region, node)
            return
        written = self._written.get(node.node_uid)
        if written is not None:
            if order < written.order:
                return
            recent = self._clock.monotonic() - written.at < REFRESH_SECONDS
            if recent and signature(items_of(node, self._declared())) == written.signature:
                return
        self._removed.pop(node.node_uid, None)
        self._nodes[node.node_uid] = NodeNews(region, node)

    async def _every(self, seconds: float, part: str, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except Unavailable as error:
                _log.warning("intake_waits_for_database", error=str(error))
            except Exception as error:  # noqa: BLE001  # a fault of ours: told, and the next turn tries again
                self._on_fault(part, error)
            await asyncio.sleep(seconds)
