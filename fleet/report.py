"""What an agent says about its node: full state each time, ordered by (incarnation, sequence)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.accelerator import AcceleratorState
from fleet.endpoint import EndpointReport
from fleet.value import value


class AgentPhase(StrEnum):
    RUNNING = "running"
    RESTARTING = "restarting"
    """The agent goes away for a while and its engines stay: routers probe them themselves for ``restart_grace_seconds``."""
    DRAINING = "draining"
    """The node is going away: no new work, finish what runs."""


@value
class NodeReport:
    """One report. A receiver accepts it only when ``order`` is greater than what it holds for ``node_uid``."""

    node_uid: str
    node_name: str
    zone: str
    incarnation: int
    """Ordered; rises each time the agent starts, kept in its state directory."""
    sequence: int
    phase: AgentPhase
    interval_seconds: float
    """How often it reports; the receiver's lease is a multiple of it."""
    gpus: tuple[AcceleratorState, ...] = ()
    endpoints: tuple[EndpointReport, ...] = ()
    addresses: tuple[str, ...] = ()
    """The node's own addresses; endpoint URLs must lie in them or in the zone's ranges."""
    restart_grace_seconds: float = 120.0
    device_error: str = ""
    """Why devices could not be read, such as a missing library; empty when they could."""
    agent_version: str = ""

    @property
    def order(self) -> tuple[int, int]:
        return (self.incarnation, self.sequence)


@dataclass(frozen=True, slots=True)
class NodeDirective:
    """Wanted state of a node, stamped with the intent it comes from. The agent obeys the highest stamp it has seen."""

    epoch: int
    version: int
    routers: tuple[str, ...] = ()
    """gRPC addresses of all routers of the region; the agent reports to each."""
    cordoned: bool = False
    draining: bool = False
    report_interval_seconds: float | None = None
    rejoin: bool = False
    """The router does not know or no longer accepts this identity: join again."""
