from __future__ import annotations

import numpy as np

from fleet.intent import Intent
from regional.fleetview.pool import Bools, Floats, Pool
from regional.routing.asked import Asked

_KEY = ("context_limits", None)


class ContextLength:
    """Endpoints whose context is too short for prompt and answer, as long as others are long enough.

    Token counts are estimates here, and images are counted far too high: when none seems long enough, the longest ones stay
    in play and the engine has the last word.
    """

    name = "context"

    def __init__(self, intent: Intent) -> None:
        self._intent = intent
        self._limits: dict[str, tuple[Floats, float]] = {}
        """By model: limits by position, and the least of them."""

    def removes(self, pool: Pool, asked: Asked) -> Bools | None:
        limits, least = self._of(pool)
        needed = asked.input_tokens + (asked.facts.max_output_tokens or 0)
        if needed <= least:
            return None
        longest = float(limits.max())
        mask = limits < min(needed, longest)
        return mask if mask.any() else None

    def _of(self, pool: Pool) -> tuple[Floats, float]:
        """Context limits by position, infinite where nobody said; and the least."""
        if _KEY not in pool.masks:
            model = self._intent.models.get(pool.model)
            most = float(model.context_tokens) if model is not None and model.context_tokens else np.inf
            values = [min(most, s.endpoint.context_limit or np.inf) for s in pool.seats]
            self._limits[pool.model] = (np.array(values, dtype=np.float64), min(values, default=np.inf))
            pool.masks[_KEY] = None  # marks that the limits above are those of this layout
        return self._limits[pool.model]
