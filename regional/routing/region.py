"""First step: the region. Home is the region nearest to the client; a request leaves it only for a good reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fleet.capacity import CapacityRow
from fleet.intent import Intent
from fleet.locality import Coordinates, Origin, great_circle_km, rtt_prior_seconds
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
PRICES_KEPT_SECONDS = 0.1
DISTANCES_KEPT_SECONDS = 2.0
_MAX_PLACES = 10_000
_MAX_MODELS = 10_000


@dataclass(frozen=True, slots=True)
class RegionChoice:
    region: str
    """Empty when no region may or can serve."""
    home: str
    costs: tuple[tuple[str, float], ...]
    """Expected seconds in each region in play, cheapest first."""
    forbidden: bool = False
    """Nothing is left because residency or the tenant's regions allow none that exists."""


class _There(NamedTuple):
    """What a region's aggregates come to for one model, network left out. Seconds; None where nothing is ready."""

    wait: float
    step: float
    """For each token of the answer."""


class _Peers:
    """Prices of all live peer regions for one model, for as long as they are taken at their word."""

    __slots__ = ("at", "least_step", "least_wait", "prices")

    def __init__(self, at: float, prices: dict[str, _There]) -> None:
        self.at = at
        self.prices = prices
        self.least_wait = min((p.wait for p in prices.values()), default=OUT)
        self.least_step = min((p.step for p in prices.values()), default=0.0)


class _Near(NamedTuple):
    """Distances from one place."""

    home: str
    rtt: dict[str, float]
    """Round trip to each region, in seconds."""
    least: float
    """The shortest to a region other than this router's."""


class RegionStep:
    def __init__(self, view: FleetView, border: ResidencyBorder, spill_seconds: float, spill_share: float) -> None:
        self._view = view
        self._border = border
        self._spill_seconds = spill_seconds
        self._spill_share = spill_share
        self._near: dict[Coordinates | None, _Near] = {}
        self._near_at = -1e18
        self._peers: dict[str, _Peers] = {}
        self._intent = view.intent

    def set_intent(self, intent: Intent, border: ResidencyBorder) -> None:
        self._intent = intent
        self._border = border
        self._near.clear()
        self._peers.clear()

    def home_of(self, origin: Origin, now: float) -> str:
        """The region nearest to a client; this region for one whose place is not known."""
        return self._distances(origin.coordinates, now).home

    def choose(self, asked: Asked, model: str, own_cost: float, excluded: tuple[str, ...], now: float) -> RegionChoice:
        """``own_cost`` is what the best endpoint here costs, infinite when there is none. ``excluded`` have refused already."""
        while True:
            choice = self._choose(asked, model, own_cost, excluded, now)
            if choice.region in ("", self._view.region) or self._addressed(choice.region, now):
                return choice
            excluded = (*excluded, choice.region)  # its last address has failed since its price was worked out

    def _choose(self, asked: Asked, model: str, own_cost: float, excluded: tuple[str, ...], now: float) -> RegionChoice:
        facts = asked.facts
        own = self._view.region
        near = self._distances(facts.origin.coordinates, now)
        peers = self._prices(model, now)
        home = near.home
        own_in = own_cost < OUT and own not in excluded and self.permits(facts, own)
        if own_in and home == own:
            # No region can do better than the best of each term.
            least = near.least + peers.least_wait + asked.output_tokens * peers.least_step
            if own_cost + near.rtt.get(own, 0.0) <= least + max(self._spill_seconds, self._spill_share * least):
                return RegionChoice(own, home, ((own, own_cost),))
        costs: dict[str, float] = {}
        if own_in:
            costs[own] = own_cost + near.rtt.get(own, 0.0)
        for name, price in peers.prices.items():
            if name in excluded or not self.permits(facts, name):
                continue
            if facts.residency.allow and not self._ready_inside(asked, model, name):
                continue
            costs[name] = near.rtt[name] + price.wait + asked.output_tokens * price.step
        if not costs:
            return RegionChoice("", home, (), forbidden=not any(self.permits(facts, n) for n in self._known_regions()))
        ranked = tuple(sorted(costs.items(), key=lambda item: (item[1], item[0])))
        best, least = ranked[0]
        stays = home in costs and (
            not facts.spill or costs[home] <= least + max(self._spill_seconds, self._spill_share * least)
        )
        return RegionChoice(home if stays else best, home, ranked)

    def _known_regions(self) -> tuple[str, ...]:
        return (self._view.region, *self._intent.regions)

    def permits(self, facts: RequestFacts, name: str) -> bool:
        """The tenant's regions, and residency of at least one of the region's zones as far as they are known."""
        if facts.allowed_regions != ("*",) and not matches(facts.allowed_regions, name):
            return False
        if not facts.residency.allow:
            return True
        # Zones of other regions may be known summarily or not at all; then the region's own jurisdictions count.
        return any(facts.residency.permits(j) for j in self._jurisdictions(name))

    def _jurisdictions(self, name: str) -> list[frozenset[str]]:
        zones = [z.jurisdictions for z in self._intent.zones.values() if z.region == name]
        region = self._intent.regions.get(name)
        return zones or [region.jurisdictions if region is not None else frozenset()]

    def _held(self, name: str) -> bool:
        region = self._intent.regions.get(name)
        return region is not None and ("region", region.uid) in self._intent.holds

    def _prices(self, model: str, now: float) -> _Peers:
        """Prices of the regions that are up, not held, and have something ready for the model."""
        found = self._peers.get(model)
        if found is not None and 0.0 <= now - found.at < PRICES_KEPT_SECONDS:
            return found
        if found is None and len(self._peers) >= _MAX_MODELS:
            self._peers.clear()
        priced = {
            name: price
            for name in self._intent.regions
            if name != self._view.region and not self._held(name) and (price := self._price_of(name, model, now))
        }
        found = self._peers[model] = _Peers(now, priced)
        return found

    def _price_of(self, name: str, model: str, now: float) -> _There | None:
        peer = self._view.peers.get(name)
        settings = self._view.settings
        if peer is None or not self._view.peers.up(name, now) or not self._addressed(name, now):
            return None
        rows = [r for r in peer.rows if r.model == model and r.endpoints_ready > 0]
        if not rows:
            return None
        waits = [r.expected_wait_seconds for r in rows if r.expected_wait_seconds is not None]
        wider = widening(peer.rows_age(now), settings.observed_fresh_seconds)
        return _There((min(waits) if waits else UNKNOWN_WAIT_SECONDS) * wider, min(_step(r) for r in rows) * wider)

    def _addressed(self, name: str, now: float) -> bool:
        """Whether one of its routers can be reached at all; a region without such an address is down."""
        region = self._intent.regions.get(name)
        return bool(self._view.peers.addresses(name, region.public_url if region is not None else "", now))

    def _ready_inside(self, asked: Asked, model: str, name: str) -> bool:
        """Whether the region has something ready in a zone that residency allows."""
        peer = self._view.peers.get(name)
        rows = peer.rows if peer is not None else ()
        return any(r.model == model and r.endpoints_ready > 0 and self._zone_permits(asked, name, r) for r in rows)

    def _zone_permits(self, asked: Asked, name: str, row: CapacityRow) -> bool:
        residency = asked.facts.residency
        if not residency.allow:
            return True
        if row.zone in self._intent.zones:
            return residency.permits(self._border.jurisdictions(row.zone))
        region = self._intent.regions.get(name)
        return region is not None and residency.permits(region.jurisdictions)

    def _distances(self, where: Coordinates | None, now: float) -> _Near:
        if now - self._near_at > DISTANCES_KEPT_SECONDS or len(self._near) > _MAX_PLACES:
            self._near.clear()
            self._near_at = now
        found = self._near.get(where)
        if found is None:
            found = self._near[where] = self._measure(where)
        return found

    def _measure(self, where: Coordinates | None) -> _Near:
        own = self._view.region
        home, home_rtt = own, 0.0
        if where is not None:
            ranked = sorted(
                (great_circle_km(where, r.coordinates), r.name)
                for r in self._intent.regions.values()
                if r.coordinates is not None and not r.edge_parent
            )
            if ranked:
                home = ranked[0][1]
                coordinates = self._intent.regions[home].coordinates
                home_rtt = rtt_prior_seconds(where, coordinates) if coordinates is not None else 0.0
        rtt = {name: self._rtt(home, home_rtt, name, where) for name in self._known_regions()}
        return _Near(home, rtt, min((v for n, v in rtt.items() if n != own), default=OUT))

    def _rtt(self, home: str, home_rtt: float, name: str, where: Coordinates | None) -> float:
        """From the client, not from this router: to its home and on from there where that is measured, else the prior."""
        if name == home:
            return home_rtt
        link = self._intent.links.get((home, name)) or self._intent.links.get((name, home))
        if link is not None and link.rtt_seconds is not None:
            return home_rtt + link.rtt_seconds
        if self._view.region in (home, name):
            peer = self._view.peers.get(name if home == self._view.region else home)
            if peer is not None and peer.rtt_seconds is not None:
                return home_rtt + peer.rtt_seconds
        here, there = self._intent.regions.get(home), self._intent.regions.get(name)
        start = where or (here.coordinates if here is not None else None)
        if start is None or there is None or there.coordinates is None:
            return home_rtt + UNMEASURED_RTT_SECONDS
        return rtt_prior_seconds(start, there.coordinates)


def _step(row: CapacityRow) -> float:
    """Seconds of one decode step at a full batch, from a zone's aggregate."""
    if not row.decode_tokens_per_second or not row.endpoints_ready:
        return UNKNOWN_STEP_SECONDS
    return REGION_BATCH * row.endpoints_ready / row.decode_tokens_per_second
