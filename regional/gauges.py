"""Once a second, what the router sees goes into its gauges: the metrics page is rendered in a thread and reads no live state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fleet.clock import Clock
from fleet.intent import Intent
from fleet.process.tls import TlsFiles
from regional.fleetview.view import FleetView
from regional.metrics import RouterMetrics
from regional.sync.events import EventOutbox
from regional.sync.peers import Peers
from regional.sync.watch import Freshness

INTERVAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """Sources of the gauges. ``siblings`` counts other routers of the region that were heard lately; ``late`` says how many
    seconds late this router's own ticks are now."""

    metrics: RouterMetrics
    view: FleetView
    intent: Callable[[], Intent]
    freshness: Freshness
    peers: Peers
    events: EventOutbox
    siblings: Callable[[], int]
    late: Callable[[float], float]
    tls: TlsFiles
    clock: Clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.update()
            await asyncio.sleep(INTERVAL_SECONDS)

    def update(self) -> None:
        metrics, now = self.metrics, self.clock.monotonic()
        counts = self.view.counts(now)
        metrics.set_counts(counts.nodes, counts.endpoints, counts.gpus)
        ages = [node.report_age_seconds for node in self.view.inventory(now) if node.state not in ("dead", "declared")]
        metrics.agent_report_age_seconds.set(max(ages, default=0.0))
        at = self.intent().at
        metrics.snapshot_epoch.set(at.epoch)
        metrics.snapshot_version.set(at.version)
        age = self.freshness.age_seconds()
        metrics.snapshot_age_seconds.set(float("nan") if age is None else age)
        metrics.controlplane_connected.set(self.freshness.connected)
        metrics.set_peer_rtts(dict(self.peers.rtts(now)))
        metrics.siblings.set(self.siblings())
        metrics.late_seconds.set(self.late(now))
        metrics.events_dropped.set(self.events.dropped)
        expiry = self.tls.expiry()
        if expiry is not None:
            metrics.certificate_expiry.set(expiry)
