from __future__ import annotations

from fleet.endpoint import EndpointPhase
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import OPEN, OUT

_SERVES = (EndpointPhase.READY, EndpointPhase.UNREACHABLE)  # what UNREACHABLE is worth is for filter `life` to say


class Phase:
    """Only a ready replica takes new work: not one that starts, warms up, drains or has stopped."""

    name = "phase"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        return OPEN if endpoint.phase in _SERVES else OUT
