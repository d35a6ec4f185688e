from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import EJECTED, OPEN
from regional.health.breaker import passes

HALF_OPEN_REQUESTS = 1
"""Trial requests at once when an ejection ends (case-R05)."""


class Ejected:
    """It failed several real requests in a row and is set aside, or is on trial with another request."""

    name = "ejected"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        return OPEN if passes(endpoint.breaker, HALF_OPEN_REQUESTS) else EJECTED
