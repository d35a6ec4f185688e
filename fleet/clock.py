"""Time as an argument: decision code is given ``now``; shells hold a :class:`Clock`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks with two jobs. Never subtract one from the other."""

    def monotonic(self) -> float:
        """Seconds that only go forward, for durations, leases and timeouts."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, for what people and other systems read. May jump."""
        ...


class SystemClock:
    """The clock of the machine. The functions themselves: it is asked several times per request."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class ManualClock:
    """A clock that moves only when told to, for tests and the simulator."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both clocks forward. Raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError("a monotonic clock does not go back")
        self._monotonic += seconds
        self._wall += seconds

    def step_wall(self, seconds: float) -> None:
        """Jump the wall clock only, as an NTP correction or a suspended machine does."""
        self._wall += seconds
