from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import OPEN, OUT


class Paused:
    """It said 429 or 503 and asked for a pause (case-R07, case-R09)."""

    name = "pause"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        return OUT if endpoint.banned_until > now else OPEN
