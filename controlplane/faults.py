"""Faults of the control plane's own parts: counted for the metrics, and told with their traceback, not too often."""

from __future__ import annotations

from fleet.clock import Clock
from fleet.process.logs import get_logger

QUIET_SECONDS = 30.0
"""The same part is told of at most this often; the counter counts every time."""
_log = get_logger("controlplane")


class Faults:
    """Called with each part that failed. It never raises."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def __call__(self, part: str, error: BaseException | None) -> None:
        """``error`` is None when the part ended by itself."""
        self._counts[part] = self._counts.get(part, 0) + 1
        now = self._clock.monotonic()
        if now - self._told.get(part, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._told[part] = now
            _log.error("part_failed_it_goes_on", part=part, exc_info=error)

    def by_part(self) -> dict[str, int]:
        """How often each part has failed."""
        return dict(self._counts)
