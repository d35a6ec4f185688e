"""The fleet as routers report it: which reports count, and how those of one region become one picture.

Facts about nodes and endpoints come from one router, the freshest, and are never added up; what each router does on its own
(demand, requests in flight) is summed over the routers that are alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fleet.capacity import CapacityRow, DemandRow, RegionObserved, RegionReport, RouterObserved

LIVE_SECONDS = 5.0
"""A router that has not reported for this long counts for nothing."""


@dataclass(frozen=True, slots=True)
class Held:
    """A router's latest report. ``renewed_at`` is our own monotonic time of first seeing it; nobody's clock is compared."""

    report: RegionReport
    renewed_at: float

    def age_seconds(self, now: float) -> float:
        return max(0.0, now - self.renewed_at)


class ReportBook:
    """Latest report of each router. Bounded by the number of rows its owner feeds it from (:meth:`forget`)."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def put(self, report: RegionReport, now: float, age_seconds: float = 0.0) -> bool:
        """Take a report in; False when it is not newer than what is held (``age_seconds`` is its age when found)."""
        held = self._held.get(report.router_uid)
        if held is not None and report.order <= held.report.order:
            return False
        self._held[report.router_uid] = Held(report, now - max(0.0, age_seconds))
        return True

    def forget(self, keep: Iterable[str]) -> None:
        """Drop the routers that are not in ``keep``."""
        wanted = set(keep)
        for uid in [u for u in self._held if u not in wanted]:
            del self._held[uid]

    def order_of(self, router_uid: str) -> tuple[int, int]:
        held = self._held.get(router_uid)
        return held.report.order if held is not None else (0, -1)

    def live(self, now: float) -> dict[str, list[Held]]:
        """Reports that count, by region, freshest first."""
        regions: dict[str, list[Held]] = {}
        for held in list(self._held.values()):  # a scrape reads from its own thread
            if held.age_seconds(now) <= LIVE_SECONDS:
                regions.setdefault(held.report.region, []).append(held)
        for members in regions.values():
            members.sort(key=lambda h: (h.renewed_at, h.report.router_uid), reverse=True)
        return regions


def merged_rows(reports: Sequence[RegionReport]) -> tuple[CapacityRow, ...]:
    """One row per zone and model from reports given freshest first; a router that is ready beats one that is not."""
    rows: dict[tuple[str, str], CapacityRow] = {}
    inflight: dict[tuple[str, str], int] = {}
    for report in sorted(reports, key=lambda r: not r.ready):  # stable: freshest first among equals
        for row in report.rows:
            key = (row.zone, row.model)
            rows.setdefault(key, row)
            inflight[key] = inflight.get(key, 0) + row.inflight
    return tuple(replace(rows[key], inflight=inflight[key]) for key in sorted(rows))


def summed_demand(reports: Iterable[RegionReport]) -> tuple[DemandRow, ...]:
    """Demand per origin, model and class over all live routers."""
    by_key: dict[tuple[str, str, str], list[DemandRow]] = {}
    for report in reports:
        for row in report.demand:
            by_key.setdefault((row.origin, row.model, row.sla_class), []).append(row)
    return tuple(
        DemandRow(
            *key,
            sum(r.requests_per_second for r in rows),
            _tokens([(r.requests_per_second, r.input_tokens_per_second) for r in rows]),
            _tokens([(r.requests_per_second, r.output_tokens_per_second) for r in rows]),
        )
        for key, rows in sorted(by_key.items())
    )


def _tokens(rates: Sequence[tuple[float, float | None]]) -> float | None:
    """Tokens per second over (requests, tokens) of several routers: those that do not know count as many as the others do."""
    known = [(requests, tokens) for requests, tokens in rates if tokens is not None]
    requests = sum(requests for requests, _ in known)
    tokens = sum(tokens for _, tokens in known)
    if len(known) == len(rates):
        return tokens
    return tokens * sum(requests for requests, _ in rates) / requests if requests > 0 else None


def region_observed(region: str, held: Sequence[Held], now: float) -> RegionObserved:
    """What other regions are told of ``region``. ``held`` are its live reports, freshest first; none gives an empty picture."""
    routers = tuple(
        RouterObserved(r.router_uid, r.incarnation, r.sequence, r.ready, r.http_addresses, r.grpc_addresses)
        for r in sorted((h.report for h in held), key=lambda r: r.router_uid)
    )
    age = min((h.age_seconds(now) for h in held), default=LIVE_SECONDS)
    return RegionObserved(region, routers, merged_rows([h.report for h in held]), age)
