"""Where a session lives: weighted rendezvous hashing of (session, endpoint uid), so that a change of the pool moves only the
sessions it must (case-N01). Health, holds and overload break it; the next in the session's own order takes over."""

from __future__ import annotations

import numpy as np

from fleet.intent import HoldState
from regional.fleetview.pool import Floats, Pool
from regional.fleetview.standing import OPEN, OUT, tier_ceiling
from regional.routing.asked import Asked
from regional.routing.endpoint import EndpointStep
from regional.routing.filters import STANDING
from regional.routing.filters.hold import Held

MAX_REMEMBERED = 65_536
SLOWER_FACTOR = 4.0
"""A session leaves an endpoint where it is expected to take this many times what it takes at the best one."""
CHOICES = 3
"""Endpoints of a session's order that are looked at before affinity is given up for this request."""

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def ranks(pool: Pool, session: int) -> Floats:
    """The session's preference for each position, higher first: log(u) / weight with u drawn by hash (splitmix64).

    Of the endpoints present the highest wins with a chance in proportion to its weight, whoever else is there.
    """
    z = pool.hashes ^ np.uint64(session)
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    z ^= z >> _S31
    u = ((z >> _S11).astype(np.float64) + 0.5) * 2.0**-53
    np.log(u, out=u)
    u /= pool.weights
    return u


class Affinity:
    """Remembers, within bounds, where sessions were last served: only those may stay on a cordoned endpoint."""

    def __init__(self, slack_seconds: float, step: EndpointStep) -> None:
        self.step = step
        """Whose request filters bind a session that stays on a cordoned endpoint, too."""
        self._slack = slack_seconds
        self._lives: dict[tuple[str, int], str] = {}

    def pick(self, pool: Pool, costs: Floats, asked: Asked, now: float) -> int:
        """Position of the session's endpoint, or -1 when it has to go by cost this time. ``costs`` are the request's own."""
        session = asked.session
        if session is None:
            return -1
        stays = self._on_cordoned(pool, session, asked, now)
        if stays >= 0:
            return stays
        best_cost = float(costs.min())
        if best_cost == OUT:
            return -1
        ceiling = tier_ceiling(best_cost)
        order = ranks(pool, session)
        order[costs >= ceiling] = -np.inf
        best_fixed = float(pool.fixed[costs < ceiling].min())
        for _ in range(CHOICES):
            position = int(order.argmax())
            if order[position] == -np.inf:
                return -1
            waits = float(pool.fixed[position]) - best_fixed
            if waits <= self._slack and costs[position] <= SLOWER_FACTOR * best_cost + self._slack:
                return position
            order[position] = -np.inf
        return -1

    def note(self, pool: Pool, session: int, uid: str) -> None:
        """The session is served there."""
        lives = self._lives
        key = (pool.model, session)
        if lives.get(key) != uid:
            if len(lives) >= MAX_REMEMBERED:
                lives.pop(next(iter(lives)))
            lives[key] = uid

    def _on_cordoned(self, pool: Pool, session: int, asked: Asked, now: float) -> int:
        uid = self._lives.get((pool.model, session))
        seat = pool.members.get(uid) if uid is not None else None
        if seat is None or seat.position < 0 or seat.endpoint.hold is not HoldState.CORDONED:
            return -1
        endpoint = seat.endpoint
        others = (f for f in STANDING if not isinstance(f, Held))
        if any(f.tier(endpoint, now) != OPEN for f in others):
            return -1
        if any(mask[seat.position] for mask in self.step.removed(pool, asked).values()):
            return -1
        return seat.position
