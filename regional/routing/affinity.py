"""Where a session lives: weighted rendezvous hashing of (session, endpoint uid), so that a change of the pool moves only the
sessions it must (case-N01). Health, holds and overload break it; the next in the session's own order takes over.

Every router works the hash out by itself. Sibling routers are told of what the hash does not say: sessions that are served
elsewhere, those that have come home from there, and those that live on an endpoint that has just been cordoned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fleet.intent import HoldState
from regional.fleetview.pool import Floats, Pool
from regional.fleetview.standing import OPEN, OUT, tier_ceiling
from regional.routing.asked import Asked
from regional.routing.endpoint import EndpointStep
from regional.routing.filters import STANDING
from regional.routing.filters.hold import Held

MAX_REMEMBERED = 65_536
MAX_AWAY = 10_000
"""Sessions known to live elsewhere than their hash says, and moves that siblings have still to be told of."""
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


class SessionMove(NamedTuple):
    """A session lives there now. ``session`` is the hash that affinity goes by, as 16 hex digits."""

    session: str
    model: str
    endpoint_uid: str


class Affinity:
    """Remembers, within bounds, where sessions were last served: only those may stay on a cordoned endpoint."""

    def __init__(self, slack_seconds: float, step: EndpointStep) -> None:
        self.step = step
        """Whose request filters bind a session that stays on a cordoned endpoint, too."""
        self._slack = slack_seconds
        self._lives: dict[tuple[str, int], str] = {}
        """Uid of the endpoint that served a session last."""
        self._homes: dict[tuple[str, int], tuple[int, int]] = {}
        """(layout, position) of a session's first choice."""
        self._away: dict[tuple[str, int], str] = {}
        """Sessions that live elsewhere than at home, as far as this router or a sibling has said so."""
        self._untold: dict[tuple[str, int], str] = {}
        """Moves that siblings do not know of yet; only the latest of each session."""
        self._cordoned: frozenset[str] = frozenset()

    def pick(self, pool: Pool, costs: Floats, cheapest: int, asked: Asked, now: float) -> int:
        """Position of the session's endpoint, or -1 when it has to go by cost this time.

        ``costs`` are the request's own, and ``cheapest`` is where they are least.
        """
        session = asked.session
        if session is None:
            return -1
        stays = self._on_cordoned(pool, session, asked, now)
        if stays >= 0:
            return stays
        best_cost = float(costs[cheapest])
        if best_cost == OUT:
            return -1
        home = self._home(pool, session)
        if self._holds(pool, costs, cheapest, home):
            return home
        moved = self._moved_to(pool, session)
        if moved >= 0 and self._holds(pool, costs, cheapest, moved):
            return moved
        order = ranks(pool, session)
        order[costs >= tier_ceiling(best_cost)] = -np.inf
        order[home] = -np.inf
        for _ in range(CHOICES - 1):
            position = int(order.argmax())
            if order[position] == -np.inf:
                return -1
            if self._holds(pool, costs, cheapest, position):
                return position
            order[position] = -np.inf
        return -1

    def _home(self, pool: Pool, session: int) -> int:
        """First in the session's order, whatever its state; kept while the pool's layout is."""
        key = (pool.model, session)
        known = self._homes.get(key)
        if known is not None and known[0] == pool.layout:
            return known[1]
        if len(self._homes) >= MAX_REMEMBERED:
            self._homes.pop(next(iter(self._homes)))
        home = int(ranks(pool, session).argmax())
        self._homes[key] = (pool.layout, home)
        return home

    def _holds(self, pool: Pool, costs: Floats, cheapest: int, position: int) -> bool:
        """Whether affinity to this endpoint is worth its price: same tier as the best, and not much longer a wait."""
        cost, best = float(costs[position]), float(costs[cheapest])
        waits = float(pool.fixed[position]) - float(pool.fixed[cheapest])
        return cost < tier_ceiling(best) and waits <= self._slack and cost <= SLOWER_FACTOR * best + self._slack

    def note(self, pool: Pool, session: int, uid: str) -> None:
        """The session is served there."""
        lives = self._lives
        key = (pool.model, session)
        if lives.get(key) != uid:
            _remember(lives, key, uid, MAX_REMEMBERED)
            if pool.seats[self._home(pool, session)].endpoint.uid != uid:
                _remember(self._away, key, uid, MAX_AWAY)
                _remember(self._untold, key, uid, MAX_AWAY)
            elif self._away.pop(key, None) is not None:
                _remember(self._untold, key, uid, MAX_AWAY)

    # Between sibling routers

    def on_cordoned(self, uids: frozenset[str]) -> None:
        """Just these endpoints are cordoned now. Where sessions may stay on one, siblings have to know which."""
        fresh, self._cordoned = uids - self._cordoned, uids
        if not fresh:
            return
        for key, uid in self._lives.items():
            if uid in fresh:
                _remember(self._untold, key, uid, MAX_AWAY)

    def moves(self, limit: int) -> list[SessionMove]:
        """Up to so many moves that siblings have not been told of, oldest first. They count as told from now on."""
        keys = list(self._untold)[:limit]
        return [SessionMove(f"{key[1]:016x}", key[0], self._untold.pop(key)) for key in keys]

    def learn(self, moves: Iterable[SessionMove]) -> None:
        """Siblings served these sessions there."""
        for move in moves:
            try:
                session = int(move.session, 16)
            except ValueError:
                continue  # not a word of ours
            if not 0 <= session < 2**64:
                continue
            key = (move.model, session)
            _remember(self._lives, key, move.endpoint_uid, MAX_REMEMBERED)
            _remember(self._away, key, move.endpoint_uid, MAX_AWAY)

    def _moved_to(self, pool: Pool, session: int) -> int:
        """Position of where the session lives when that is not its home, or -1."""
        uid = self._away.get((pool.model, session))
        seat = pool.members.get(uid) if uid is not None else None
        return -1 if seat is None else seat.position

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


def _remember(table: dict[tuple[str, int], str], key: tuple[str, int], uid: str, limit: int) -> None:
    """Write an entry as the newest; the oldest makes room for it."""
    table.pop(key, None)
    if len(table) >= limit:
        table.pop(next(iter(table)))
    table[key] = uid
