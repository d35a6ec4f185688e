from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import OPEN, OUT


class Credentials:
    """It refuses our credentials: condition EngineAuthFailed."""

    name = "credentials"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        return OUT if endpoint.reported_auth_failed or endpoint.auth_failed_until > now else OPEN
