"""The router's side of ``RegionService.Report``: aggregates, inventory and events up; acknowledgements and a pace down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from fleet.capacity import CapacityRow, DemandRow, InventoryNode, RegionReport
from fleet.clock import Clock
from fleet.errors import Unavailable
from fleet.snapshot import IntentVersion
from fleet.wire.headrace.v1 import region_pb2, region_pb2_grpc
from fleet.wire.regions import region_directive_from_wire, region_report_to_wire
from regional.sync.events import EventOutbox
from regional.sync.inventory import InventoryTelling
from regional.sync.watch import RouterIdentity

FIRST_INTERVAL_SECONDS = 1.0
SILENCE_SECONDS = 10.0
"""Without any directive for this long the stream is taken for dead."""

_Call: TypeAlias = "grpc.aio.StreamStreamCall[region_pb2.RegionReport, region_pb2.RegionDirective]"


@dataclass(frozen=True, slots=True)
class ReportSources:
    """Where the parts of a report come from. All are quick and free of side effects."""

    rows: Callable[[float], Iterable[CapacityRow]]
    inventory: Callable[[float], Iterable[InventoryNode]]
    demand: Callable[[float], Iterable[DemandRow]]
    peer_rtts: Callable[[float], Iterable[tuple[str, float]]]
    ready: Callable[[], bool]
    applied: Callable[[], IntentVersion]
    rejections: Callable[[], Iterable[str]]
    http_addresses: Callable[[], Iterable[str]]
    grpc_addresses: Callable[[], Iterable[str]]


class Reporter:
    """Reports over one stream after another. ``session`` is handed to an :class:`~regional.sync.uplink.Uplink`."""

    def __init__(
        self,
        who: RouterIdentity,
        sources: ReportSources,
        events: EventOutbox,
        token: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._who = who
        self._sources = sources
        self._events = events
        self._token = token
        self._clock = clock
        self._sequence = 0
        self._interval = FIRST_INTERVAL_SECONDS
        self._telling = InventoryTelling()

    async def session(self, channel: grpc.aio.Channel) -> None:
        """Report over ``channel`` until it breaks; the first report goes at once and tells the whole inventory."""
        self._telling.start_over()
        stub = region_pb2_grpc.RegionServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Report(metadata=(("authorization", f"Bearer {self._token()}"),))
        sender = asyncio.ensure_future(self._send(call))
        receiver = asyncio.ensure_future(self._receive(call))
        try:
            await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
            for task in (receiver, sender):  # the receiver knows the status of the call
                if task.done():
                    task.result()
        finally:
            call.cancel()
            for task in (sender, receiver):
                task.cancel()
            await asyncio.gather(sender, receiver, return_exceptions=True)

    def next_report(self) -> RegionReport:
        """The next report of this router, in order after all before."""
        now = self._clock.monotonic()
        part = self._telling.part(self._sources.inventory(now), now)
        applied = self._sources.applied()
        self._sequence += 1
        return RegionReport(
            router_uid=self._who.uid,
            incarnation=self._who.incarnation,
            sequence=self._sequence,
            region=self._who.region,
            http_addresses=tuple(self._sources.http_addresses()),
            grpc_addresses=tuple(self._sources.grpc_addresses()),
            ready=self._sources.ready(),
            applied_epoch=applied.epoch,
            applied_version=applied.version,
            rows=tuple(self._sources.rows(now)),
            demand=tuple(self._sources.demand(now)),
            peer_rtt_seconds=tuple(self._sources.peer_rtts(now)),
            inventory_digest=part.digest,
            inventory_full=part.full,
            inventory=part.nodes,
            inventory_removed=part.removed,
            events=self._events.pending(),
            rejections=tuple(self._sources.rejections()),
            version=self._who.version,
        )

    async def _send(self, call: _Call) -> None:
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                await call.write(region_report_to_wire(self.next_report()))
            await asyncio.sleep(self._interval)

    async def _receive(self, call: _Call) -> None:
        while True:
            async with asyncio.timeout(max(SILENCE_SECONDS, 3 * self._interval)):
                message = await call.read()
            if not isinstance(message, region_pb2.RegionDirective):
                raise Unavailable("the control plane ended the report stream")
            directive = region_directive_from_wire(message)
            self._interval = directive.report_interval_seconds
            self._events.acknowledged(directive.acknowledged_events)
            if directive.want_full_inventory:
                self._telling.start_over()
