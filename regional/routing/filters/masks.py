"""Masks over a pool's positions. None stands for one that takes nothing out, which costs nothing to apply."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.pool import Bools, Pool

MAX_MASKS = 256
"""Kept per pool and layout; values come from tenants' settings, so there are few."""


def zone_mask(pool: Pool, out: Callable[[str], bool]) -> Bools | None:
    """True at the endpoints of the zones that are ``out``."""
    _bound(pool)
    mask = np.zeros(len(pool.seats), dtype=np.bool_)
    for zone in pool.zones:
        mask[zone.start : zone.stop] = out(zone.zone)
    return mask if mask.any() else None


def endpoint_mask(pool: Pool, out: Callable[[Endpoint], bool]) -> Bools | None:
    """True at the endpoints that are ``out``."""
    _bound(pool)
    mask = np.fromiter((out(s.endpoint) for s in pool.seats), dtype=np.bool_, count=len(pool.seats))
    return mask if mask.any() else None


def _bound(pool: Pool) -> None:
    if len(pool.masks) >= MAX_MASKS:
        pool.masks.clear()
