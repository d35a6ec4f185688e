"""Keeps this router and its siblings informed of one another, five times a second, over whatever state they share.

What one learns the others obey within ``SYNC_SECONDS``: load, pauses that endpoints asked for (case-R09), sessions that live
elsewhere than their hash says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleet.clock import Clock
from fleet.errors import Unavailable
from regional.routing.affinity import SessionMove
from regional.shared.base import MAX_ENDPOINTS, MAX_MOVED, MovedSession, RouterLoad, SharedState

INTERVAL_SECONDS = 0.2
SYNC_SECONDS = 0.5
"""Two intervals and an exchange: by then what one router knows binds its siblings, while the shared state is well."""
LONGEST_PAUSE_SECONDS = 2.0
"""Between attempts while the shared state cannot be reached."""
ECHO_SECONDS = 0.05
"""A pause that ends at most this much later than the one a sibling imposed is that one."""


class LoadView(Protocol):
    """What of the fleet view is shared."""

    def own_load(self) -> Mapping[str, tuple[int, float]]: ...
    def own_bans(self, now: float) -> Mapping[str, float]: ...
    def set_sibling_load(self, router_uid: str, load: Mapping[str, tuple[int, float]], now: float) -> None: ...
    def set_sibling_bans(self, router_uid: str, bans: Mapping[str, float], now: float) -> None: ...


class SessionBook(Protocol):
    """Where sessions live, as (session, model, endpoint uid)."""

    def moved_sessions(self, limit: int) -> Sequence[SessionMove]: ...
    def learn_sessions(self, moves: Iterable[SessionMove]) -> None: ...


@dataclass(frozen=True, slots=True)
class Myself:
    """How this router introduces itself."""

    router_uid: str
    incarnation: int
    grpc_addresses: Callable[[], Sequence[str]]
    http_addresses: Callable[[], Sequence[str]]


class Siblings:
    """The exchange loop. A shared state that is slow, away or wrong is only ever noticed here, never by a request."""

    def __init__(
        self,
        state: SharedState,
        me: Myself,
        view: LoadView,
        sessions: SessionBook,
        clock: Clock,
        rng: random.Random,
        on_routers_changed: Callable[[], None],
        on_reachable: Callable[[bool, str], None],
    ) -> None:
        """``on_reachable(ok, why)`` is called when it changes."""
        self._state = state
        self._me = me
        self._view = view
        self._sessions = sessions
        self._untold: list[MovedSession] = []
        """Moves of the last exchange that failed: told again with the next."""
        self._clock = clock
        self._rng = rng
        self._on_routers_changed = on_routers_changed
        self._on_reachable = on_reachable
        self._sequence = 0
        self._order: dict[str, tuple[int, int]] = {}
        self._heard: dict[str, tuple[float, RouterLoad]] = {}
        self._imposed: dict[str, float] = {}
        """Until when siblings keep this router off endpoints."""
        self._reachable: bool | None = None

    def routers(self) -> list[RouterLoad]:
        """Siblings heard within the last ten seconds, by uid."""
        now = self._clock.monotonic()
        return [load for _, (at, load) in sorted(self._heard.items()) if now - at < 10.0]

    async def run(self) -> None:
        """Exchange until cancelled, then take our word back."""
        failures = 0
        try:
            while True:
                try:
                    await self.once()
                    failures = 0
                    pause = INTERVAL_SECONDS * self._rng.uniform(0.9, 1.1)
                except Unavailable as error:
                    failures += 1
                    self._note_reachable(False, str(error))
                    pause = min(LONGEST_PAUSE_SECONDS, INTERVAL_SECONDS * 2.0 ** min(failures, 10))
                    pause *= self._rng.uniform(0.5, 1.0)
                await asyncio.sleep(pause)
        finally:
            try:
                await self._state.withdraw(self._me.router_uid)
            except Unavailable:
                pass  # it lapses by itself within a second
            await self._state.close()

    async def once(self) -> None:
        """One exchange. Raises Unavailable."""
        self._sequence += 1
        own = RouterLoad(
            self._me.router_uid,
            self._me.incarnation,
            self._sequence,
            tuple(self._me.grpc_addresses()),
            tuple(self._me.http_addresses()),
            dict(self._view.own_load()),
            self._own_bans(self._clock.monotonic()),
        )
        if not self._untold:
            self._untold = [MovedSession(*move) for move in self._sessions.moved_sessions(MAX_MOVED)]
        exchange = await self._state.exchange(own, self._untold)
        self._untold = []
        self._sessions.learn_sessions(SessionMove(m.session, m.model, m.endpoint_uid) for m in exchange.moved)
        self._note_reachable(True, "")
        now = self._clock.monotonic()
        before = {uid: load.grpc_addresses for uid, (_, load) in self._heard.items()}
        for load in exchange.siblings:
            # A word seen before is not news: its age keeps growing at the view until it no longer counts.
            if load.order > self._order.get(load.router_uid, (-1, -1)):
                self._order[load.router_uid] = load.order
                self._view.set_sibling_load(load.router_uid, load.outstanding, now)
                self._view.set_sibling_bans(load.router_uid, load.bans, now)
                for uid, seconds in list(load.bans.items())[:MAX_ENDPOINTS]:
                    self._imposed[uid] = max(self._imposed.get(uid, now), now + seconds)
                self._heard[load.router_uid] = (now, load)
        for uid in [uid for uid, (at, _) in self._heard.items() if now - at > 60.0]:
            del self._heard[uid], self._order[uid]
        if before != {uid: load.grpc_addresses for uid, (_, load) in self._heard.items()}:
            self._on_routers_changed()

    def _own_bans(self, now: float) -> dict[str, float]:
        """Pauses to pass on. One that a sibling imposed is not said back to it: two routers would keep it up for ever."""
        self._imposed = {uid: until for uid, until in self._imposed.items() if until > now}
        return {
            uid: seconds
            for uid, seconds in self._view.own_bans(now).items()
            if now + seconds > self._imposed.get(uid, now) + ECHO_SECONDS
        }

    def _note_reachable(self, ok: bool, why: str) -> None:
        if ok != self._reachable:
            self._reachable = ok
            self._on_reachable(ok, why)
