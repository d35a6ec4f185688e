"""Zones where connections have just failed: two failures within a second send the next attempt elsewhere."""

from __future__ import annotations

from collections import deque


class ZoneFailures:
    def __init__(self, failures: int, window_seconds: float) -> None:
        self._failures = failures
        self._window = window_seconds
        self._times: dict[str, deque[float]] = {}

    @property
    def any(self) -> bool:
        """False spares the question where nothing has failed lately."""
        return bool(self._times)

    def note(self, zone: str, now: float) -> None:
        """A connection failed there, or a place there was declared dead with a request waiting."""
        self._times.setdefault(zone, deque(maxlen=self._failures)).append(now)

    def failing(self, now: float) -> tuple[str, ...]:
        """Zones to avoid now."""
        if not self._times:
            return ()
        found = []
        for zone, times in list(self._times.items()):
            if now - times[-1] > self._window:
                del self._times[zone]
            elif len(times) >= self._failures and now - times[0] <= self._window:
                found.append(zone)
        return tuple(found)
