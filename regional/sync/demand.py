"""How much is asked for, from where: smoothed rates per origin, model and class, for the planner."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fleet.capacity import DemandRow
from regional.request.steps import RequestRecord

WINDOW_SECONDS = 10.0
"""Time constant of the smoothing."""
MAX_ROWS = 2_000
_FORGET_BELOW = 0.001
_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Tokens:
    """Of the requests whose engine counted. A fading sum, as is how many of them there were."""

    counted: float = 0.0
    requests: float = 0.0

    def add(self, tokens: int | None) -> None:
        if tokens is not None:
            self.counted += tokens
            self.requests += 1.0

    def fade(self, share: float) -> None:
        self.counted *= share
        self.requests *= share

    def of(self, requests: float) -> float | None:
        """What ``requests`` come to, going by those that are known; None when none is."""
        return requests * self.counted / self.requests if self.requests >= _FORGET_BELOW else None


@dataclass(slots=True)
class _Rate:
    """Exponentially fading sums: divided by the window they are rates per second."""

    at: float
    requests: float = 0.0
    input: _Tokens = field(default_factory=_Tokens)
    output: _Tokens = field(default_factory=_Tokens)

    def fade(self, now: float) -> None:
        share = math.exp(-max(0.0, now - self.at) / WINDOW_SECONDS)
        self.requests *= share
        self.input.fade(share)
        self.output.fade(share)
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
        rate.input.add(record.usage.prompt_tokens)
        rate.output.add(record.usage.completion_tokens)

    def rows(self, now: float) -> tuple[DemandRow, ...]:
        """The present rates; what has faded away is forgotten."""
        rows: list[DemandRow] = []
        for key, rate in list(self._rates.items()):
            rate.fade(now)
            if rate.requests < _FORGET_BELOW:
                del self._rates[key]
                continue
            per_second = rate.requests / WINDOW_SECONDS
            rows.append(DemandRow(*key, per_second, rate.input.of(per_second), rate.output.of(per_second)))
        return tuple(rows)
