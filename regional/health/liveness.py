"""Life and death: leases lapse, engines are asked directly, and only silence of both is death."""

from __future__ import annotations

from fleet.report import NodeReport
from regional.fleetview.view import FleetView
from regional.health.actions import Action
from regional.health.settings import HealthSettings


class Liveness:
    """Leases of nodes and direct probes of endpoints. Every method returns what is to be done and told now."""

    def __init__(self, view: FleetView, settings: HealthSettings = HealthSettings()) -> None:
        raise NotImplementedError

    def on_report(self, report: NodeReport, now: float) -> tuple[Action, ...]:
        """A report that the view has accepted: the node's lease is renewed."""
        raise NotImplementedError

    def on_stream_closed(self, node_uid: str, now: float) -> tuple[Action, ...]:
        """The node's report stream ended: no verdict, but a reason to ask its engines at once."""
        raise NotImplementedError

    def on_probe(self, endpoint_uid: str, answered: bool, now: float) -> tuple[Action, ...]:
        """The outcome of one probed endpoint, all tries together."""
        raise NotImplementedError

    def tick(self, now: float) -> tuple[Action, ...]:
        """Lapsed leases, endpoints due for a probe, ejections that end. Ten to twenty times a second."""
        raise NotImplementedError
