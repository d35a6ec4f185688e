from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.node import NodeState
from regional.fleetview.standing import DEAD, OPEN, SUSPECT


class Life:
    """Dead, or under suspicion: its node fell silent, a connection failed, its watcher cannot reach it, nobody has seen it."""

    name = "life"

    def tier(self, endpoint: Endpoint, now: float) -> float:
        if endpoint.dead:
            return DEAD
        if endpoint.node.state is NodeState.SUSPECT or endpoint.suspect_until > now or unproven(endpoint):
            return SUSPECT
        return OPEN


def unproven(endpoint: Endpoint) -> bool:
    """A sign against it that only its watcher has given: ignored when it speaks against most of a pool (panic)."""
    never_seen = not endpoint.reported and endpoint.answered_at < endpoint.seen_at
    return endpoint.silent or never_seen
