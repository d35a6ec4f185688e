"""How long to wait before trying again: exponential, full jitter, so that a fleet never reconnects in step."""

from __future__ import annotations

import random


class Backoff:
    """Delays after failures in a row. Not for sharing between tasks."""

    def __init__(self, first_seconds: float, cap_seconds: float, rng: random.Random) -> None:
        self._first = first_seconds
        self._cap = cap_seconds
        self._rng = rng
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait after one more failure: uniform between 0 and the present ceiling."""
        ceiling = min(self._cap, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return self._rng.uniform(0.0, ceiling)
