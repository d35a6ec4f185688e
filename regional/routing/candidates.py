"""What the endpoint step offers a policy: the endpoints of one zone, as read-only columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from regional.fleetview.pool import Floats, Pool
from regional.fleetview.standing import tier_ceiling


class Candidates:
    """Positions ``start`` to ``stop`` of a pool; all arrays and answers count from ``start``."""

    __slots__ = ("costs", "pool", "start", "stop")

    def __init__(self, pool: Pool, costs: Floats, start: int, stop: int) -> None:
        self.pool = pool
        self.start = start
        self.stop = stop
        self.costs: Floats = costs[start:stop]
        """Expected seconds of this request at each, tier included; infinite where it may not go."""

    def eligible(self) -> npt.NDArray[np.intp]:
        """Positions in the best tier there is. Never empty when the zone was chosen."""
        return np.flatnonzero(self.costs < tier_ceiling(float(self.costs.min())))

    @property
    def inflight(self) -> Floats:
        """Requests in flight at each, those of siblings and strangers included."""
        return self.pool.inflight[self.start : self.stop]

    @property
    def weights(self) -> Floats:
        """Nominal speed of each, relative to the reference product."""
        return self.pool.weights[self.start : self.stop]

    @property
    def zone(self) -> str:
        return self.pool.seats[self.start].endpoint.zone

    def uid(self, position: int) -> str:
        return self.pool.seats[self.start + position].endpoint.uid
