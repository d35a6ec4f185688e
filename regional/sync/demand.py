"""How much is asked for, from where: smoothed rates per origin, model and class, for the planner."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fleet.capacity import DemandRow
from regional.request.steps import RequestRecord

WINDOW_SECONDS = 10.0
"""Time constant of the smoothing."""
MAX_ROWS = 2_000
_FORGET_BELOW = 0.001
_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Rate:
    """Exponentially fading sums: divided by the window they are rates per second."""

    at: float
    requests: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0

    def fade(self, now: float) -> None:
        share = math.exp(-max(0.0, now - self.at) / WINDOW_SECONDS)
        self.requests *= share
        self.input_tokens *= share
        self.output_tokens *= share
        self.at = max(self.at, now)


class DemandMeter:
    """Fed once per finished request that clients sent to this router (never hops: those count where they entered)."""

    def __init__(self) -> None:
        self._rates: dict[_Key, _Rate] = {}

    def add(self, record: RequestRecord, now: float) -> None:
        """Count one request; a client of unknown origin counts as one of the region it came to.

        Beyond the bound, new combinations are counted under their origin only.
        """
        origin = record.origin or record.entry_region
        key = (origin, record.model, record.sla_class)
        rate = self._rates.get(key)
        if rate is None:
            if len(self._rates) >= MAX_ROWS:
                key = (origin, "", "")
            rate = self._rates.setdefault(key, _Rate(now))
        rate.fade(now)
        rate.requests += 1.0
        rate.input_tokens += record.usage.prompt_tokens or 0
        rate.output_tokens += record.usage.completion_tokens or 0

    def rows(self, now: float) -> tuple[DemandRow, ...]:
        """The present rates; what has faded away is forgotten."""
        rows: list[DemandRow] = []
        for key, rate in list(self._rates.items()):
            rate.fade(now)
            if rate.requests < _FORGET_BELOW:
                del self._rates[key]
                continue
            origin, model, sla_class = key
            rows.append(
                DemandRow(
                    origin,
                    model,
                    sla_class,
                    rate.requests / WINDOW_SECONDS,
                    rate.input_tokens / WINDOW_SECONDS,
                    rate.output_tokens / WINDOW_SECONDS,
                )
            )
        return tuple(rows)
