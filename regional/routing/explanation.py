"""Why a request goes where it goes, as plain values: counts per filter and the eight best. Made for dry runs and refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np

from regional.fleetview.pool import Floats, Pool
from regional.fleetview.standing import OUT, tier_of
from regional.routing.asked import Asked
from regional.routing.endpoint import EndpointStep
from regional.routing.pricing import standing

BEST = 8


@dataclass(frozen=True, slots=True)
class Term:
    """One endpoint's cost, taken apart. Seconds."""

    endpoint: str
    zone: str
    cost: float
    tier: float
    wait: float
    prefill: float
    decode: float
    widening: float
    inflight: int


@dataclass(frozen=True, slots=True)
class Explanation:
    model: str
    region: str
    home: str
    regions: tuple[tuple[str, float], ...]
    zone: str
    endpoint: str
    policy: str
    endpoints: int
    """Endpoints of the model in this region."""
    removed: dict[str, int]
    """How many each filter took out, or put behind the others."""
    best: tuple[Term, ...]
    reason: str = ""
    """Why nothing was chosen; empty when something was."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def removed_counts(pool: Pool, asked: Asked, step: EndpointStep, now: float) -> dict[str, int]:
    """What took endpoints out or set them back, in numbers."""
    counts = Counter(name for s in pool.members.values() if (name := standing(s.endpoint, now)[1]))
    for name, mask in step.removed(pool, asked).items():
        counts[name] += int(mask.sum())
    return dict(counts)


def best_terms(pool: Pool, costs: Floats, asked: Asked) -> tuple[Term, ...]:
    """The eight cheapest, with their costs taken apart."""
    order = [int(i) for i in np.argsort(costs, kind="stable")[:BEST] if costs[i] < OUT]
    return tuple(_term(pool, position, float(costs[position]), asked) for position in order)


def _term(pool: Pool, position: int, cost: float, asked: Asked) -> Term:
    seat = pool.seats[position]
    return Term(
        seat.endpoint.name,
        seat.endpoint.zone,
        round(cost, 6),
        tier_of(cost),
        round(seat.wait, 6),
        round(seat.prefill_floor + seat.prefill_per_token * asked.input_tokens, 6),
        round(seat.step * asked.output_tokens, 6),
        round(seat.outer * seat.endpoint.sample_factor, 3),
        seat.endpoint.inflight,
    )
