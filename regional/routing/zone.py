"""Second step: the zone, a failure domain inside the region. It is where the request is expected to take the least time."""

from __future__ import annotations

from typing import NamedTuple

from regional.fleetview.pool import Floats, Pool, ZoneSlice
from regional.fleetview.standing import SUSPECT


class ZoneChoice(NamedTuple):
    zone: ZoneSlice
    cheapest: int
    """Position in the pool of the cheapest endpoint of the zone."""
    cost: float
    avoided: bool
    """True when every zone that could serve is one to avoid, and this one was taken nevertheless."""


def choose(pool: Pool, costs: Floats, cheapest: int, avoid: tuple[str, ...]) -> ZoneChoice:
    """The zone with the ``cheapest`` endpoint; one to ``avoid`` only when no other has an endpoint in good standing."""
    cost = float(costs[cheapest])
    zone = zone_at(pool, cheapest)
    if zone.zone not in avoid:
        return ZoneChoice(zone, cheapest, cost, False)
    for other in pool.zones:
        if other.zone in avoid:
            continue
        at = other.start + int(costs[other.start : other.stop].argmin())
        if costs[at] < SUSPECT and (zone.zone in avoid or costs[at] < cost):
            zone, cheapest, cost = other, at, float(costs[at])
    return ZoneChoice(zone, cheapest, cost, zone.zone in avoid)


def zone_at(pool: Pool, position: int) -> ZoneSlice:
    """The zone that a position lies in."""
    for zone in pool.zones:
        if position < zone.stop:
            return zone
    raise IndexError(position)
