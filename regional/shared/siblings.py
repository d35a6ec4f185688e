"""Keeps this router and its siblings informed of one another's load, five times a second, over whatever state they share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleet.clock import Clock
from fleet.errors import Unavailable
from regional.shared.base import RouterLoad, SharedState

INTERVAL_SECONDS = 0.2
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
        clock: Clock,
        rng: random.Random,
        on_routers_changed: Callable[[], None],
        on_reachable: Callable[[bool, str], None],
    ) -> None:
        """``on_reachable(ok, why)`` is called when it changes."""
        self._state = state
        self._me = me
        self._view = view
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
        exchange = await self._state.exchange(own, ())
        self._note_reachable(True, "")
        now = self._clock.monotonic()
        before = {uid: load.grpc_addresses for uid, (_, load) in self._heard.items()}
        for load in exchange.siblings:
            # A word seen before is not news: its age keeps growing at the view until it no longer counts.
            if load.order > self._order.get(load.router_uid, (-1, -1)):
                self._order[load.router_uid] = load.order
                self._view.set_sibling_load(load.router_uid, load.outstanding, now)
                self._view.set_sibling_bans(load.router_uid, load.bans, now)
                for uid, seconds in load.bans.items():
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
