from __future__ import annotations

from fleet.intent import Intent
from regional.fleetview.pool import Bools, Pool
from regional.routing.asked import Asked
from regional.routing.filters.masks import zone_mask


class ResidencyBorder:
    """Zones where the tenant's data may not be processed. A zone nobody knows is refused: fail closed (case-Z08)."""

    name = "residency"

    def __init__(self, intent: Intent) -> None:
        self._intent = intent

    def removes(self, pool: Pool, asked: Asked) -> Bools | None:
        residency = asked.facts.residency
        if not residency.allow:
            return None
        key = (self.name, residency.allow)
        if key not in pool.masks:
            pool.masks[key] = zone_mask(pool, lambda zone: not residency.permits(self.jurisdictions(zone)))
        return pool.masks[key]

    def jurisdictions(self, zone: str) -> frozenset[str]:
        known = self._intent.zones.get(zone)
        return known.jurisdictions if known is not None else frozenset()
