from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import OPEN, OUT


class Device:
    """One of its GPUs has failed, is lost, or stands on a dead node."""

    name = "device"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        return OUT if endpoint.gpu_down else OPEN
