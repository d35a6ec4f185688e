"""Third step: the endpoint, and with it the GPUs."""

from __future__ import annotations

import numpy as np

from regional.fleetview.pool import Bools, Floats, Pool, ZoneSlice
from regional.fleetview.standing import OUT
from regional.routing.asked import Asked
from regional.routing.candidates import Candidates
from regional.routing.chance import Chance
from regional.routing.filters.context import ContextLength
from regional.routing.interfaces import Policy, RequestFilter
from regional.routing.policies.expected_cost import ExpectedCost

NEAR_TIE_SHARE = 0.1
"""Expected times are no surer than this: places that differ by less are drawn by lot, so that equals share and routers do not
herd."""
_WINDOWS = 256
_MAX_SIZES = 64


class EndpointStep:
    """Costs of all endpoints of a pool for one request, and the choice among those of a zone."""

    def __init__(self, filters: tuple[RequestFilter, ...], rng: Chance) -> None:
        self._filters = filters
        self._open_filters = tuple(f for f in filters if f.name == ContextLength.name)
        """What is left to ask for a tenant without rules of its own."""
        self._rng = rng
        self._lots: dict[int, list[Floats]] = {}
        """By pool size: windows onto one long row of lots, of which each request draws one."""

    def costs(self, pool: Pool, asked: Asked) -> Floats:
        """Expected seconds of the request at each position, tier included. Overwritten by the next call for this pool."""
        n = len(pool.seats)
        costs, work = pool.scratch_a, pool.scratch_b
        np.multiply(pool.per_input, asked.input_tokens, out=costs)
        if asked.output_tokens:
            np.multiply(pool.per_output, asked.output_tokens, out=work)
            costs += work
        if n > 1:
            costs *= (self._lots.get(n) or self._draw_lots(n))[int(self._rng.random() * _WINDOWS)]
        costs += pool.fixed
        for one in self._open_filters if asked.unrestricted else self._filters:
            mask = one.removes(pool, asked)
            if mask is not None:
                costs[mask] = OUT
        for endpoint in asked.tried:
            seat = pool.members.get(endpoint.uid)
            if seat is not None and seat.position >= 0:
                costs[seat.position] = OUT
        return costs

    def choose(self, pool: Pool, costs: Floats, zone: ZoneSlice, cheapest: int, policy: Policy) -> int:
        """Position in the pool. ``cheapest`` is the cheapest of the zone, which the zone step has found already."""
        if isinstance(policy, ExpectedCost):
            return cheapest
        return zone.start + policy.choose(Candidates(pool, costs, zone.start, zone.stop), self._rng)

    def removed(self, pool: Pool, asked: Asked) -> dict[str, Bools]:
        """What each filter takes out, by its name; for explanations."""
        found = {f.name: mask for f in self._filters if (mask := f.removes(pool, asked)) is not None}
        tried = np.array([s.endpoint in asked.tried for s in pool.seats], dtype=np.bool_)
        if tried.any():
            found["tried"] = tried
        return found

    def _draw_lots(self, n: int) -> list[Floats]:
        if len(self._lots) > _MAX_SIZES:
            self._lots.clear()
        lots = np.array([1.0 + NEAR_TIE_SHARE * self._rng.random() for _ in range(n + _WINDOWS)], dtype=np.float64)
        windows = self._lots[n] = [lots[start : start + n] for start in range(_WINDOWS)]
        return windows
