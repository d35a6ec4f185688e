"""How an endpoint stands: a tier added to its cost, so that one minimum finds the best of the best tier there is.

Within a tier cost decides; a lower tier always wins. Costs are clamped far below the first tier. ``OUT`` is never chosen.
No health check can put an endpoint out: the worst it can do is the last tier, so no pool is ever emptied by checks alone.
"""

from __future__ import annotations

from math import inf

OPEN = 0.0
FULL = 1e5
"""As many requests as it runs at once."""
SUSPECT = 1e6
"""Silent node, refused connection, reported unreachable, or not seen yet: after all others."""
EJECTED = 1e7
"""Does worse than its peers."""
DEAD = 1e8
"""Given up after its engine did not answer either: only when nothing else is left anywhere."""
OUT = inf
"""Hard: device lost, drained, asked for a pause, not serving."""

COST_LIMIT_SECONDS = 2e4
"""Costs are cut off here, well below the first tier."""


def tier_of(cost: float) -> float:
    """The tier that a cost with its penalty lies in."""
    for tier in (DEAD, EJECTED, SUSPECT, FULL):
        if cost >= tier:
            return OUT if cost == OUT else tier
    return OPEN


def tier_ceiling(cost: float) -> float:
    """All costs of the tier that ``cost`` lies in are below this."""
    if cost < FULL:
        return FULL
    if cost < SUSPECT:
        return SUSPECT
    if cost < EJECTED:
        return EJECTED
    if cost < DEAD:
        return DEAD
    return OUT
