"""Metrics of a control plane, read from its parts when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from controlplane.registry.reports import Held
from fleet.snapshot import IntentVersion

MAX_REGIONS = 500
"""Regions shown by name; a fleet has tens."""


@dataclass(frozen=True, slots=True)
class MetricSources:
    """Each is quick and reads memory only. Called from a scrape's thread: plain reads of values that are swapped whole."""

    version: str
    head: Callable[[], IntentVersion]
    feed_age_seconds: Callable[[], float]
    watchers: Callable[[], int]
    live: Callable[[], Mapping[str, Sequence[Held]]]
    rejected_reports: Callable[[], int]
    connections: Callable[[], int]
    certificate_expiry: Callable[[], float | None]
    faults: Callable[[], Mapping[str, int]]
    """Failures of this process's own parts, by part."""


class ControlPlaneMetrics(Collector):
    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        s = self._sources
        build = GaugeMetricFamily("headrace_build_info", "Version of this process", labels=["version", "process"])
        build.add_metric([s.version, "controlplane"], 1)
        yield build
        head = s.head()
        yield GaugeMetricFamily("headrace_snapshot_version", "Version of intent in memory", value=head.version)
        yield GaugeMetricFamily("headrace_snapshot_epoch", "Epoch of intent in memory", value=head.epoch)
        age = s.feed_age_seconds()
        yield GaugeMetricFamily(
            "headrace_snapshot_age_seconds", "Since the intent feed was last read", value=min(age, 1e9)
        )
        yield GaugeMetricFamily("headrace_snapshot_watches", "Routers that watch this copy", value=s.watchers())
        yield CounterMetricFamily(
            "headrace_region_reports_rejected",
            "Reports that were not newer than what is held",
            value=s.rejected_reports(),
        )
        faults = CounterMetricFamily(
            "headrace_faults", "Parts of the control plane that failed and were started again", labels=["part"]
        )
        for part, times in sorted(s.faults().items()):
            faults.add_metric([part], times)
        yield faults
        yield GaugeMetricFamily("headrace_database_connections", "Database connections in use", value=s.connections())
        routers = GaugeMetricFamily("headrace_region_routers", "Routers that report", labels=["region", "state"])
        for region, held in sorted(s.live().items())[:MAX_REGIONS]:
            ready = sum(h.report.ready for h in held)
            routers.add_metric([region, "ready"], ready)
            routers.add_metric([region, "not_ready"], len(held) - ready)
        yield routers
        expiry = s.certificate_expiry()
        if expiry is not None:
            yield GaugeMetricFamily(
                "headrace_certificate_expiry_timestamp_seconds", "When the serving certificate expires", value=expiry
            )


def registry_of(sources: MetricSources) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ControlPlaneMetrics(sources))
    return registry
