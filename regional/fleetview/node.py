"""A node as its own reports and intent show it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from fleet.accelerator import AcceleratorState
from fleet.intent import DeclaredGpus
from fleet.lease import Lease
from fleet.report import AgentPhase, NodeReport

if TYPE_CHECKING:
    from regional.fleetview.endpoint import Endpoint


class NodeState(StrEnum):
    DECLARED = "declared"
    """Written down, and nobody has reported it."""
    READY = "ready"
    SUSPECT = "suspect"
    """Its lease lapsed; its engines are being asked."""
    DEGRADED = "degraded"
    """Silent, or restarting, but its engines answer."""
    DRAINING = "draining"
    DEAD = "dead"


class Node:
    """Identity is ``uid``. Endpoints and GPUs are those of its last accepted report, and of intent."""

    __slots__ = (
        "addresses",
        "came_from",
        "checked_where",
        "declared_gpus",
        "device_error",
        "endpoints",
        "gpus",
        "in_intent",
        "lease",
        "name",
        "order",
        "phase",
        "restart_until",
        "state",
        "stream_closed",
        "uid",
        "zone",
    )

    def __init__(self, uid: str, name: str, zone: str) -> None:
        self.uid = uid
        self.name = name
        self.zone = zone
        self.in_intent = False
        self.declared_gpus: tuple[DeclaredGpus, ...] = ()
        self.state = NodeState.DECLARED
        self.came_from = NodeState.DECLARED
        """Its state before the last accepted report."""
        self.checked_where: object = None
        """Zone, ranges and addresses that its endpoints' addresses were last checked against."""
        self.order: tuple[int, int] | None = None
        """(incarnation, sequence) of the last accepted report; None before the first."""
        self.lease: Lease | None = None
        self.phase = AgentPhase.RUNNING
        self.restart_until = 0.0
        self.stream_closed = False
        self.addresses: tuple[str, ...] = ()
        self.gpus: dict[str, AcceleratorState] = {}
        self.device_error = ""
        self.endpoints: dict[str, Endpoint] = {}

    @property
    def reported(self) -> bool:
        return self.order is not None

    def silent_seconds(self, now: float) -> float:
        return 0.0 if self.lease is None else self.lease.age_seconds(now)

    def accept(self, report: NodeReport, lease_seconds: float, now: float) -> None:
        """Take over what a newer report says of the node itself."""
        self.order = report.order
        self.name = report.node_name
        self.zone = report.zone
        self.lease = Lease(now, lease_seconds)
        self.phase = report.phase
        self.stream_closed = False
        if report.phase is AgentPhase.RESTARTING:
            self.restart_until = now + report.restart_grace_seconds
        self.addresses = report.addresses
        self.gpus = {g.uuid: g for g in report.gpus}
        self.device_error = report.device_error
