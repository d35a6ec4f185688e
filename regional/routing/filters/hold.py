from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import OPEN, OUT


class Held:
    """An operator cordoned or drained it, its GPU, node, zone or region. Sessions that live on a cordoned one may stay."""

    name = "hold"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        return OPEN if endpoint.hold is None else OUT
