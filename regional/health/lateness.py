"""How late this router itself is. Busy is not dead, also when the busy one is us: what we were too late to see is no news.

The shell says how late each tick came. That widens what others are given: leases and the hang window by the lateness itself,
a probe by the lateness of each turn of our loop that it takes. All of it is bounded, and on a router that keeps time it is zero.
"""

from __future__ import annotations

from regional.health.settings import HealthSettings


class Lateness:
    """The worst lateness of the last seconds; halves with every ``late_half_life_seconds``."""

    __slots__ = ("_due_at", "_settings", "_worst", "_worst_at")

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._worst = 0.0
        self._worst_at = 0.0
        self._due_at: float | None = None

    def on_tick(self, late_seconds: float, due_at: float | None, now: float) -> None:
        """A tick came this late. ``due_at`` is when the next one is to come; None when that is not known."""
        if late_seconds >= self._faded(now):
            self._worst, self._worst_at = late_seconds, now
        self._due_at = due_at

    def seconds(self, now: float) -> float:
        """How late this router has been lately. A tick that is overdue counts before it has come."""
        overdue = 0.0 if self._due_at is None else now - self._due_at
        late = max(self._faded(now), overdue)
        return late if late > self._settings.late_grain_seconds else 0.0

    def patience(self, now: float) -> float:
        """Seconds that leases and the hang window are longer for it."""
        late = self.seconds(now)
        return min(late, self._settings.patience_max_seconds) if late else 0.0

    def probe_patience(self, now: float) -> float:
        """Seconds that each try of a probe has more for it."""
        s = self._settings
        return min(s.probe_turns * self.seconds(now), s.probe_patience_max_seconds)

    def strained(self, now: float) -> bool:
        """Too late for silence to say anything about a place whose agent is well."""
        return self.seconds(now) > self._settings.strained_seconds

    def _faded(self, now: float) -> float:
        if not self._worst:
            return 0.0
        half_lives = max(0.0, now - self._worst_at) / self._settings.late_half_life_seconds
        return float(self._worst * 0.5**half_lives)
