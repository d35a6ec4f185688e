from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from regional.routing.candidates import Candidates
from regional.routing.chance import Chance


class LeastConnections:
    name: ClassVar[str] = "least-connections"
    intent: ClassVar[str] = (
        "The endpoint with the fewest requests in flight, for its speed; for requests of like length."
    )

    @dataclass(frozen=True, slots=True)
    class Parameters:
        weighted: bool = True
        """Count a request on a slower GPU for as much more as that GPU is slower (req-21)."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def choose(self, candidates: Candidates, rng: Chance) -> int:
        eligible = candidates.eligible()
        load = candidates.inflight[eligible] + 1.0
        if self.parameters.weighted:
            load = load / candidates.weights[eligible]
        least = np.flatnonzero(load <= load.min())
        return int(eligible[least[int(rng.random() * len(least))]])
