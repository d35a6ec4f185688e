"""Everything one router decides requests with, in one object.

What its shell (``regional/main.py``) owes it:
  * ``view.set_intent / set_sibling_load / set_region_observed / set_peer_probe`` as news comes in;
  * ``on_report`` for each node report whose identity has been checked, ``on_stream_closed`` when an agent's stream ends;
  * ``tick`` every 50 to 100 ms; and to carry out what these return: probe what ``ProbeEndpoints`` names and answer each with
    ``on_probe``; count and log the rest.
"""

from __future__ import annotations

from fleet.report import NodeReport
from fleet.request import RequestFacts
from regional.fleetview.view import FleetView, ReportAnswer
from regional.health.actions import Action
from regional.health.liveness import Liveness
from regional.health.settings import HealthSettings
from regional.request.interfaces import AttemptRevoker, RequestLife
from regional.request.settings import RequestSettings
from regional.request.steps import Step
from regional.routing.chance import Chance


class Core:
    """Implements ``RequestCore``. All state of a router's decisions hangs here; used by one task."""

    view: FleetView
    liveness: Liveness

    def __init__(
        self,
        view: FleetView,
        rng: Chance,
        settings: RequestSettings = RequestSettings(),
        health: HealthSettings = HealthSettings(),
    ) -> None:
        """``rng`` is a ``random.Random`` of the shell's; a seeded one makes every decision repeatable."""
        raise NotImplementedError

    def begin(self, facts: RequestFacts, now: float, revoke: AttemptRevoker) -> tuple[RequestLife, Step]:
        raise NotImplementedError

    def on_report(self, report: NodeReport, now: float) -> tuple[ReportAnswer, tuple[Action, ...]]:
        """``view.apply_report`` and ``liveness.on_report`` in one."""
        raise NotImplementedError

    def on_stream_closed(self, node_uid: str, now: float) -> tuple[Action, ...]:
        raise NotImplementedError

    def on_probe(self, endpoint_uid: str, answered: bool, now: float) -> tuple[Action, ...]:
        raise NotImplementedError

    def tick(self, now: float) -> tuple[Action, ...]:
        """Age the view, lapse leases, end ejections, watch for hangs."""
        raise NotImplementedError

    def explain(self, facts: RequestFacts, now: float) -> dict[str, object]:
        """A dry run: what would be chosen and why, as plain JSON values. Takes nothing, changes nothing."""
        raise NotImplementedError
