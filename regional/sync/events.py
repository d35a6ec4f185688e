"""Events on their way to the control plane: bounded, sent again until acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from fleet.capacity import FleetEvent
from fleet.clock import Clock

MAX_HELD = 1_000
MAX_A_REPORT = 200


class EventOutbox:
    """Holds at most 1,000 events; the oldest are dropped first, and counted."""

    def __init__(self, region: str, clock: Clock) -> None:
        self.region = region
        self._clock = clock
        self._held: dict[str, FleetEvent] = {}
        self.dropped = 0

    def add(self, reason: str, message: str, kind: str, name: str, severity: str = "info") -> None:
        """Record that something happened now."""
        event = FleetEvent(uuid4().hex, reason, message, kind, name, self.region, severity, self._clock.wall())
        self._held[event.uid] = event
        if len(self._held) > MAX_HELD:
            del self._held[next(iter(self._held))]
            self.dropped += 1

    def pending(self) -> tuple[FleetEvent, ...]:
        """The oldest unacknowledged ones, as many as one report takes."""
        return tuple(event for event, _ in zip(self._held.values(), range(MAX_A_REPORT), strict=False))

    def acknowledged(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._held.pop(uid, None)

    def __len__(self) -> int:
        return len(self._held)
