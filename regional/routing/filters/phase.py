from __future__ import annotations

from fleet.endpoint import EndpointPhase
from fleet.report import AgentPhase
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import OPEN, OUT

_SERVES = (EndpointPhase.READY, EndpointPhase.UNREACHABLE)  # what UNREACHABLE is worth is for filter `life` to say


class Phase:
    """Only a ready replica takes new work: not one that starts, warms up, drains or has stopped, nor one whose node goes away."""

    name = "phase"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        going = endpoint.node.phase is AgentPhase.DRAINING
        return OPEN if endpoint.phase in _SERVES and not going else OUT
