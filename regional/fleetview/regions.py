"""Other regions as seen now: who answers, what they have, where they are reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fleet.capacity import CapacityRow, RegionObserved
from regional.fleetview.peers import PeerProbe
from regional.fleetview.settings import ViewSettings

RTT_WEIGHT = 0.2
MAX_ADDRESSES = 16
ADDRESS_KEPT_SECONDS = 60.0
"""A router's address that nobody probes any more (it has moved) is forgotten, and its distance with it."""


class PeerRegion:
    """One other region. Rows come from whoever spoke last: its own router when probed, or the centre."""

    __slots__ = (
        "address_rtt",
        "failing",
        "last_ok_at",
        "observed_addresses",
        "pending",
        "ready_at",
        "rows",
        "rows_at",
        "rtt_seconds",
        "version",
    )

    def __init__(self) -> None:
        self.last_ok_at: float | None = None
        """Last live probe of any of its routers that takes requests; None never."""
        self.ready_at: dict[str, float] = {}
        """By router address: when it last answered as ready."""
        self.address_rtt: dict[str, float] = {}
        self.failing: dict[str, float] = {}
        """By router address: when a probe or a hop last failed."""
        self.observed_addresses: tuple[str, ...] = ()
        self.rtt_seconds: float | None = None
        self.rows: tuple[CapacityRow, ...] = ()
        self.rows_at: float | None = None
        self.version = 0
        """Rises when rows or life change."""
        self.pending: dict[Callable[[], None], None] = {}
        """Hops there without a first byte; to be revoked when the region is declared down."""

    def up(self, now: float, down_after_seconds: float) -> bool:
        return self.last_ok_at is not None and now - self.last_ok_at <= down_after_seconds

    def forget_addresses(self, before: float) -> None:
        """Those that have not answered since ``before``, and what was measured of them."""
        for address in [a for a, at in self.ready_at.items() if at < before]:
            del self.ready_at[address]
        for address in self.address_rtt.keys() - self.ready_at.keys() - self.failing.keys():
            del self.address_rtt[address]

    def rows_age(self, now: float) -> float | None:
        return None if self.rows_at is None else max(0.0, now - self.rows_at)

    def ready_endpoints(self, model: str) -> int:
        return sum(r.endpoints_ready for r in self.rows if r.model == model)


class PeerRegions:
    """All other regions that intent names or that have been heard of."""

    def __init__(self, settings: ViewSettings) -> None:
        self._settings = settings
        self._regions: dict[str, PeerRegion] = {}
        self.patience = 0.0
        """Seconds that a silent region is given on top, because this router itself is late."""

    def __iter__(self) -> Iterable[str]:
        return iter(self._regions)

    def get(self, name: str) -> PeerRegion | None:
        return self._regions.get(name)

    def up(self, name: str, now: float) -> bool:
        """Whether one of its routers that takes requests answered a probe lately."""
        seen = self._regions.get(name)
        return seen is not None and seen.up(now, self._down_after)

    @property
    def _down_after(self) -> float:
        return self._settings.peer_down_after_seconds + self.patience

    def keep(self, names: Iterable[str]) -> None:
        """Only these exist; others are forgotten."""
        wanted = set(names)
        for name in list(self._regions):
            if name not in wanted:
                del self._regions[name]
        for name in sorted(wanted):
            self._regions.setdefault(name, PeerRegion())

    def observe(self, observed: RegionObserved, now: float) -> None:
        """The centre's word. Older rows than those held are dropped; it never makes a region live, only probes do."""
        seen = self._regions.setdefault(observed.region, PeerRegion())
        ready = [a for r in observed.routers if r.ready for a in r.http_addresses]
        seen.observed_addresses = tuple(dict.fromkeys(ready))[:MAX_ADDRESSES]
        told_at = now - max(0.0, observed.age_seconds)
        if seen.rows_at is None or told_at > seen.rows_at:
            seen.rows, seen.rows_at = observed.rows, told_at
            seen.version += 1

    def probed(self, region: str, probe: PeerProbe, now: float) -> None:
        seen = self._regions.setdefault(region, PeerRegion())
        if not probe.ok or not probe.ready:
            seen.failing[probe.address] = now
            seen.ready_at.pop(probe.address, None)
            if len(seen.failing) > 4 * MAX_ADDRESSES:
                seen.failing.pop(next(iter(seen.failing)))
            return
        if not seen.up(now, self._down_after):
            seen.version += 1
        seen.last_ok_at = now
        seen.failing.pop(probe.address, None)
        seen.ready_at[probe.address] = now
        seen.forget_addresses(now - ADDRESS_KEPT_SECONDS)
        if probe.rtt_seconds is not None:
            before = seen.address_rtt.get(probe.address)
            rtt = probe.rtt_seconds if before is None else before + RTT_WEIGHT * (probe.rtt_seconds - before)
            seen.address_rtt[probe.address] = rtt
            seen.rtt_seconds = min(seen.address_rtt[a] for a in seen.ready_at if a in seen.address_rtt)
        if probe.rows is not None:
            seen.rows, seen.rows_at = probe.rows, now
            seen.version += 1

    def addresses(self, region: str, public_url: str, now: float) -> tuple[str, ...]:
        """Base URLs of a region's routers, best first: those that answered lately, nearest first, then the rest."""
        seen = self._regions.get(region)
        if seen is None:
            return (public_url,) if public_url else ()
        fresh = self._down_after
        live = sorted(
            (a for a, at in seen.ready_at.items() if now - at <= fresh),
            key=lambda a: (seen.address_rtt.get(a, 1e9), a),
        )
        others = (*seen.observed_addresses, *((public_url,) if public_url else ()))
        rest = [a for a in others if a not in live and now - seen.failing.get(a, -1e18) > fresh]
        return tuple(dict.fromkeys((*live, *rest)))[:MAX_ADDRESSES]

    def tick(self, now: float) -> list[str]:
        """Regions that went down just now; hops there without a first byte have been revoked."""
        down: list[str] = []
        for name, seen in self._regions.items():
            if seen.last_ok_at is not None and not seen.up(now, self._down_after):
                seen.last_ok_at = None
                seen.ready_at.clear()
                seen.version += 1
                down.append(name)
                for revoke in list(seen.pending):
                    revoke()
        return down
