"""Keeps pools' columns true to their endpoints: what changed is noted, and worked out before the next decision."""

from __future__ import annotations

from collections.abc import Iterable

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.pool import Pool
from regional.fleetview.settings import ViewSettings
from regional.routing import pricing

PRICE, RATE = 1, 2
"""Levels of what has to be worked out anew: after a request was sent or ended, and after anything else."""
MARKED_AT_ONCE = 1_000
"""More than these that change for one reason are worked out over several ticks."""
LAYOUT_SECONDS, LAYOUT_SECONDS_PER_SEAT = 0.02, 2.5e-5
"""Least time between two layouts of a pool."""
REFRESH_SECONDS = 2.0
"""Every endpoint is worked out anew about this often even when nothing is heard of it..."""
REFRESH_TICKS, LEAST_REFRESHED = 40, 64
"""... a share of them with each tick, so that no tick holds up requests."""


class Columns:
    def __init__(self, settings: ViewSettings) -> None:
        self._settings = settings
        self.pools: dict[str, Pool] = {}
        """By model."""
        self.timed: dict[str, Endpoint] = {}
        """Endpoints whose standing changes with time alone: looked at with every tick."""
        self.weights_gib: dict[str, float | None] = {}
        """By model."""
        self.panic_share = 0.5
        self._dirty: list[tuple[Endpoint, int]] = []
        self._unlaid: dict[str, Pool] = {}
        self._refresh: list[Endpoint] = []
        self._refreshed_at = 0.0

    def mark(self, endpoint: Endpoint, level: int = PRICE) -> None:
        """Something about the endpoint changed."""
        if endpoint.dirty < level:
            endpoint.dirty = level
            self._dirty.append((endpoint, level))

    def changed(self, endpoint: Endpoint) -> None:
        """Something other than its load changed, perhaps for a time: look at it with every tick until that is over."""
        self.mark(endpoint, RATE)
        self.timed[endpoint.uid] = endpoint

    def seat(self, endpoint: Endpoint, model: str, served_as: str) -> None:
        """Give the endpoint a place in a model's pool."""
        pool = self.pools.get(model)
        if pool is None:
            pool = self.pools[model] = Pool(model)
        endpoint.seats.append(pool.add(endpoint, served_as))
        self._unlaid[model] = pool

    def unseat(self, endpoint: Endpoint) -> None:
        """Take the endpoint out of all pools, at once."""
        for seat in endpoint.seats:
            pricing.leave(seat)
            seat.pool.remove(seat)
            self._unlaid[seat.model] = seat.pool
        endpoint.seats = []

    def move(self, endpoint: Endpoint) -> None:
        """The endpoint is in another zone now."""
        for seat in endpoint.seats:
            seat.target = None
            self._unlaid[seat.model] = seat.pool

    def settle(self, now: float) -> None:
        """Bring all columns up to date with what has happened."""
        if self._dirty:
            self._work_off(now)
        if self._unlaid:
            self._lay_out(now)

    def refresh(self, endpoints: dict[str, Endpoint], now: float) -> None:
        """Note those that time alone has changed: all timed ones, and a share of those not looked at for a while."""
        for endpoint in self.timed.values():
            self.mark(endpoint, RATE)
        if not self._refresh:
            if now - self._refreshed_at < REFRESH_SECONDS:
                return
            self._refreshed_at = now
            self._refresh = [e for e in endpoints.values() if now - e.rated_at >= REFRESH_SECONDS]
        share = max(LEAST_REFRESHED, len(endpoints) // REFRESH_TICKS)
        for endpoint in self._refresh[-share:]:
            self.mark(endpoint, RATE)
        del self._refresh[-share:]

    def later(self, endpoints: Iterable[Endpoint]) -> None:
        """Work these out anew: at once when they are few, else over the next ticks."""
        found = list(endpoints)
        if len(found) > MARKED_AT_ONCE:
            self._refresh.extend(found)
            return
        for endpoint in found:
            self.mark(endpoint, RATE)

    def _work_off(self, now: float) -> None:
        dirty, self._dirty = self._dirty, []
        settings = self._settings
        fresh, ramp = settings.fresh_sample_seconds, settings.slow_start_seconds
        touched: dict[str, Pool] = {}
        for endpoint, level in dirty:
            if endpoint.dirty != level:
                continue  # done, or to be done by a later and larger entry
            endpoint.dirty = 0
            if level == PRICE:
                for seat in endpoint.seats:
                    pricing.price(seat)
                continue
            pricing.rate(endpoint, self.weights_gib, fresh, ramp, now)
            for seat in endpoint.seats:
                touched[seat.model] = seat.pool
            if not endpoint.timed(now):
                self.timed.pop(endpoint.uid, None)
        for pool in touched.values():
            pricing.watch_panic(pool, self.panic_share)

    def _lay_out(self, now: float) -> None:
        """Give new endpoints their columns. Many that come at once share one layout, rarer the larger the pool."""
        for pool in list(self._unlaid.values()):
            pause = LAYOUT_SECONDS + LAYOUT_SECONDS_PER_SEAT * len(pool.members)
            if not pool.seats or now - pool.laid_out_at >= pause:
                self.lay_out(pool, now)

    def lay_out(self, pool: Pool, now: float) -> None:
        """Give a pool's members their columns now: for a request that finds nothing good among those laid out before."""
        self._unlaid.pop(pool.model, None)
        for seat in pool.lay_out(now):
            pricing.price(seat)
        if not pool.members and self.pools.get(pool.model) is pool:
            del self.pools[pool.model]
