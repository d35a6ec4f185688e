"""How many agents may connect at once: a whole cell that reconnects together must not drown its router (rel-R5)."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    retry_after_seconds: float


class StreamAdmission:
    """Admits at most ``per_second`` new streams within any second; the refused are spread over the time it takes."""

    def __init__(self, per_second: int, rng: random.Random) -> None:
        self._limit = per_second
        self._rng = rng
        self._admitted: deque[float] = deque(maxlen=per_second)
        self._refused: deque[float] = deque(maxlen=20 * per_second)

    def admit(self, now: float) -> Refused | None:
        """None admits. ``now`` is monotonic."""
        if len(self._admitted) < self._limit or now - self._admitted[0] >= 1.0:
            self._admitted.append(now)
            return None
        while self._refused and now - self._refused[0] > 2.0:
            self._refused.popleft()
        self._refused.append(now)
        # Those refused lately will be back; twice the seconds that admitting them takes leaves room for newcomers.
        spread = max(1.0, 2.0 * len(self._refused) / self._limit)
        return Refused(1.0 + self._rng.random() * spread)
