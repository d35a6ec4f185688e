"""What one region was told lately: the snapshot it should have now, and the deltas that led to it."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from fleet.delta import IntentDelta, compose
from fleet.snapshot import IntentSnapshot, IntentVersion


class Start(StrEnum):
    """How a watch that claims a version begins."""

    DELTA = "delta"
    """It continues from what it has."""
    FULL = "full"
    """It has nothing, or something too old."""
    AHEAD = "ahead"
    """It claims a version that was never published: history was lost. Full, and an event."""
    FOREIGN = "foreign"
    """It claims a known number with another chain: another history or other secrets. Full, and an event."""


class RegionHistory:
    """Bounded memory of one region's versions. Not thread-safe; owned by the publisher's loop."""

    def __init__(self, snapshot: IntentSnapshot, keep: int = 512) -> None:
        self._snapshot = snapshot
        self._deltas: deque[IntentDelta] = deque(maxlen=keep)

    @property
    def snapshot(self) -> IntentSnapshot:
        return self._snapshot

    def advance(self, snapshot: IntentSnapshot, delta: IntentDelta) -> None:
        """Make ``snapshot`` the present one; ``delta`` leads to it from the one before."""
        if delta.base != self._snapshot.at or delta.at != snapshot.at:
            raise ValueError("a delta must lead from the present snapshot to the next")
        self._snapshot = snapshot
        self._deltas.append(delta)

    def start(self, have: IntentVersion) -> tuple[Start, IntentDelta | None]:
        """How to serve a router that holds ``have``; the delta (perhaps empty) for :attr:`Start.DELTA`."""
        at = self._snapshot.at
        if have.version == 0:
            return Start.FULL, None
        if have == at:
            return Start.DELTA, IntentDelta(at, at, (), (), self._snapshot.content)
        if have.order > at.order:
            return Start.AHEAD, None
        if have.order == at.order:
            return Start.FOREIGN, None
        for index, delta in enumerate(self._deltas):
            if delta.base == have:
                return Start.DELTA, compose(list(self._deltas)[index:])
            if delta.base.order == have.order:
                return Start.FOREIGN, None
        return Start.FULL, None
