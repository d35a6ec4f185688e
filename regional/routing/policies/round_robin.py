from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import ClassVar

from regional.routing.candidates import Candidates
from regional.routing.chance import Chance


class RoundRobin:
    name: ClassVar[str] = "round-robin"
    intent: ClassVar[str] = "Each endpoint in turn, whatever it has to do; for equal replicas and equal requests."

    @dataclass(frozen=True, slots=True)
    class Parameters:
        pass

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._last: dict[str, str] = {}
        """By zone: uid of the endpoint whose turn it was last. Uids keep the turn when places move."""

    def choose(self, candidates: Candidates, rng: Chance) -> int:
        eligible = candidates.eligible()
        last = self._last.get(candidates.zone, "")
        uids = [candidates.uid(int(i)) for i in eligible]
        # Positions within a zone are in the order of uids.
        after = bisect.bisect_right(uids, last)
        turn = after if after < len(uids) else 0
        self._last[candidates.zone] = uids[turn]
        return int(eligible[turn])
