"""First step: the region. Home is the region nearest to the client; a request leaves it only for a good reason."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.capacity import CapacityRow
from fleet.intent import Intent
from fleet.locality import Coordinates, Origin, rtt_prior_seconds
from fleet.request import RequestFacts
from fleet.tenancy import matches
from regional.fleetview.standing import OUT
from regional.fleetview.view import FleetView
from regional.routing.asked import Asked
from regional.routing.cost import widening
from regional.routing.filters.residency import ResidencyBorder

UNKNOWN_WAIT_SECONDS = 0.5
"""Stands for the wait in a region that does not say."""
UNKNOWN_STEP_SECONDS = 0.02
REGION_BATCH = 64
"""Batch that capacity rows reckon decode speed at (``fleetview/rows.py``)."""
UNMEASURED_RTT_SECONDS = 0.15
"""Between two regions of which nothing is known, not even where they are."""
_MAX_HOMES = 10_000


@dataclass(frozen=True, slots=True)
class RegionChoice:
    region: str
    """Empty when no region may or can serve."""
    home: str
    costs: tuple[tuple[str, float], ...]
    """Expected seconds in each region in play, cheapest first."""
    forbidden: bool = False
    """Nothing is left because residency or the tenant's regions allow none that exists."""


class RegionStep:
    def __init__(self, view: FleetView, border: ResidencyBorder, spill_seconds: float, spill_share: float) -> None:
        self._view = view
        self._border = border
        self._spill_seconds = spill_seconds
        self._spill_share = spill_share
        self._homes: dict[Coordinates, tuple[str, float]] = {}
        self._intent = view.intent

    def set_intent(self, intent: Intent, border: ResidencyBorder) -> None:
        self._intent = intent
        self._border = border
        self._homes.clear()

    def home_of(self, origin: Origin) -> tuple[str, float]:
        """(region, round trip in seconds) nearest to a client; this region for one whose place is not known."""
        where = origin.coordinates
        if where is None:
            return self._view.region, 0.0
        found = self._homes.get(where)
        if found is None:
            if len(self._homes) >= _MAX_HOMES:
                self._homes.clear()
            found = self._homes[where] = self._nearest(where)
        return found

    def choose(self, asked: Asked, model: str, own_cost: float, excluded: tuple[str, ...], now: float) -> RegionChoice:
        """``own_cost`` is what the best endpoint here costs, infinite when there is none. ``excluded`` have refused already."""
        facts = asked.facts
        own = self._view.region
        home, home_rtt = self.home_of(facts.origin)
        own_in = own_cost < OUT and own not in excluded and self._permits(facts, own)
        if own_in and home == own and own_cost <= self._spill_seconds:
            return RegionChoice(own, home, ((own, own_cost),))  # nowhere can be so much better
        costs: dict[str, float] = {}
        allowed = self._permits(facts, own)
        if own_in:
            costs[own] = own_cost + self._rtt(home, home_rtt, own, facts.origin)
        for name in self._intent.regions:
            if name == own:
                continue
            if not self._permits(facts, name):
                continue
            allowed = True
            if name in excluded or self._held(name):
                continue
            cost = self._cost_there(asked, model, name, now)
            if cost is not None:
                costs[name] = cost + self._rtt(home, home_rtt, name, facts.origin)
        if not costs:
            return RegionChoice("", home, (), forbidden=not allowed)
        ranked = tuple(sorted(costs.items(), key=lambda item: (item[1], item[0])))
        best, least = ranked[0]
        stays = home in costs and (
            not facts.spill or costs[home] <= least + max(self._spill_seconds, self._spill_share * least)
        )
        return RegionChoice(home if stays else best, home, ranked)

    def _permits(self, facts: RequestFacts, name: str) -> bool:
        """The tenant's regions, and residency of at least one of the region's zones as far as they are known."""
        if facts.allowed_regions != ("*",) and not matches(facts.allowed_regions, name):
            return False
        if not facts.residency.allow:
            return True
        return any(facts.residency.permits(j) for j in self._jurisdictions(name))

    def _jurisdictions(self, name: str) -> list[frozenset[str]]:
        zones = [z.jurisdictions for z in self._intent.zones.values() if z.region == name]
        region = self._intent.regions.get(name)
        return zones or [region.jurisdictions if region is not None else frozenset()]

    def _held(self, name: str) -> bool:
        region = self._intent.regions.get(name)
        return region is not None and ("region", region.uid) in self._intent.holds

    def _cost_there(self, asked: Asked, model: str, name: str, now: float) -> float | None:
        """Seconds in another region by its aggregates, network left out; None when it is down or has nothing for this."""
        peer = self._view.peers.get(name)
        settings = self._view.settings
        if peer is None or not peer.up(now, settings.peer_down_after_seconds):
            return None
        rows = [
            r for r in peer.rows if r.model == model and r.endpoints_ready > 0 and self._zone_permits(asked, name, r)
        ]
        if not rows:
            return None
        waits = [r.expected_wait_seconds for r in rows if r.expected_wait_seconds is not None]
        wait = min(waits) if waits else UNKNOWN_WAIT_SECONDS
        step = min((_step(r) for r in rows), default=UNKNOWN_STEP_SECONDS)
        return (wait + asked.output_tokens * step) * widening(peer.rows_age(now), settings.observed_fresh_seconds)

    def _zone_permits(self, asked: Asked, name: str, row: CapacityRow) -> bool:
        residency = asked.facts.residency
        if not residency.allow:
            return True
        if row.zone in self._intent.zones:
            return residency.permits(self._border.jurisdictions(row.zone))
        region = self._intent.regions.get(name)
        return region is not None and residency.permits(region.jurisdictions)

    def _nearest(self, where: Coordinates) -> tuple[str, float]:
        ranked = sorted(
            (rtt_prior_seconds(where, r.coordinates), r.name)
            for r in self._intent.regions.values()
            if r.coordinates is not None and not r.edge_parent
        )
        return (ranked[0][1], ranked[0][0]) if ranked else (self._view.region, 0.0)

    def _rtt(self, home: str, home_rtt: float, name: str, origin: Origin) -> float:
        """From the client, not from this router: to its home and on from there where that is measured, else the prior."""
        if name == home:
            return home_rtt
        link = self._intent.links.get((home, name)) or self._intent.links.get((name, home))
        if link is not None and link.rtt_seconds is not None:
            return home_rtt + link.rtt_seconds
        peer = self._view.peers.get(name if home == self._view.region else home)
        if peer is not None and peer.rtt_seconds is not None and self._view.region in (home, name):
            return home_rtt + peer.rtt_seconds
        here, there = self._intent.regions.get(home), self._intent.regions.get(name)
        start = origin.coordinates or (here.coordinates if here is not None else None)
        if start is None or there is None or there.coordinates is None:
            return home_rtt + UNMEASURED_RTT_SECONDS
        return rtt_prior_seconds(start, there.coordinates)


def _step(row: CapacityRow) -> float:
    """Seconds of one decode step at a full batch, from a zone's aggregate."""
    if not row.decode_tokens_per_second or not row.endpoints_ready:
        return UNKNOWN_STEP_SECONDS
    return REGION_BATCH * row.endpoints_ready / row.decode_tokens_per_second
