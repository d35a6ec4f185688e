"""Shared state of routers in one process: the embedded mode, and the yardstick for Redis."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from fleet.clock import Clock
from regional.shared.base import MAX_MOVED, TTL_SECONDS, Exchange, MovedSession, RouterLoad

_MOVES_KEPT = 10_000


@dataclass(slots=True)
class MemoryHub:
    """What the routers of one region in this process have said. Hand the same hub to each of them."""

    loads: dict[str, tuple[float, RouterLoad]] = field(default_factory=dict)
    moves: deque[tuple[int, str, MovedSession]] = field(default_factory=lambda: deque(maxlen=_MOVES_KEPT))
    next_move: int = 0


class MemoryShared:
    """One router's access to a hub."""

    def __init__(self, hub: MemoryHub, clock: Clock) -> None:
        self._hub = hub
        self._clock = clock
        self._seen = 0

    async def exchange(self, own: RouterLoad, moved: Sequence[MovedSession]) -> Exchange:
        hub, now = self._hub, self._clock.monotonic()
        held = hub.loads.get(own.router_uid)
        if held is None or own.order > held[1].order:
            hub.loads[own.router_uid] = (now, own)
        for move in moved[-MAX_MOVED:]:
            hub.moves.append((hub.next_move, own.router_uid, move))
            hub.next_move += 1
        for uid in [uid for uid, (at, _) in hub.loads.items() if now - at > TTL_SECONDS]:
            del hub.loads[uid]
        siblings = tuple(load for uid, (_, load) in hub.loads.items() if uid != own.router_uid)
        fresh = [entry for entry in hub.moves if entry[0] >= self._seen][:MAX_MOVED]
        self._seen = fresh[-1][0] + 1 if fresh else self._seen
        return Exchange(siblings, tuple(move for _, uid, move in fresh if uid != own.router_uid))

    async def withdraw(self, router_uid: str) -> None:
        self._hub.loads.pop(router_uid, None)

    async def close(self) -> None:
        return None
