from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regional.routing.candidates import Candidates
from regional.routing.chance import Chance


class ExpectedCost:
    name: ClassVar[str] = "expected-cost"
    intent: ClassVar[str] = "The endpoint where the request is expected to take the least time; the default."

    @dataclass(frozen=True, slots=True)
    class Parameters:
        pass

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def choose(self, candidates: Candidates, rng: Chance) -> int:
        return int(candidates.costs.argmin())
