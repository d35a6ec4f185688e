"""Everything one router decides requests with, in one object.

What its shell (``regional/main.py``) owes it:
  * ``view.set_intent / set_sibling_load / set_region_observed / set_peer_probe`` as news comes in;
  * ``on_report`` for each node report whose identity has been checked, ``on_stream_closed`` when an agent's stream ends;
  * ``tick`` every 50 to 100 ms, with how late it comes; and to carry out what these return: probe what ``ProbeEndpoints``
    names and answer each with ``on_probe``; count and log the rest.
"""

from __future__ import annotations

from fleet.intent import Intent
from fleet.report import NodeReport
from fleet.request import RequestFacts
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.view import FleetView, ReportAnswer
from regional.health.actions import Action, ProbeOutcome
from regional.health.judge import Judge
from regional.health.lateness import Lateness
from regional.health.liveness import Liveness
from regional.health.outcomes import Sign
from regional.health.settings import HealthSettings
from regional.health.zones import ZoneFailures
from regional.request.budget import RetryBudget
from regional.request.interfaces import AttemptRevoker
from regional.request.life import Life
from regional.request.settings import RequestSettings
from regional.request.steps import AttemptResult, Outcome, RejectReason, Step
from regional.routing.asked import Asked
from regional.routing.chance import Chance
from regional.routing.models import ModelTable
from regional.routing.place import Placing
from regional.routing.region import UNKNOWN_STEP_SECONDS
from regional.routing.registry import Registry

_REGION_PREFIX = "region/"
_TIMEOUTS = (Outcome.TIMEOUT_CONNECT, Outcome.TIMEOUT_FIRST_BYTE, Outcome.TIMEOUT_IDLE)


class Core:
    """Implements ``RequestCore``. All state of a router's decisions hangs here; used by one task."""

    typical_step = UNKNOWN_STEP_SECONDS

    def __init__(
        self,
        view: FleetView,
        rng: Chance,
        settings: RequestSettings | None = None,
        health: HealthSettings | None = None,
        registry: Registry | None = None,
    ) -> None:
        """``rng`` is a ``random.Random`` of the shell's; a seeded one makes every decision repeatable.

        ``registry`` holds the policies there are; left out, ours and those other packages offer by entry point.
        """
        self.view = view
        self.rng = rng
        self.settings = settings or RequestSettings()
        health = health or HealthSettings()
        view.set_panic_share(health.panic_share)
        self.judge = Judge(view, health)
        self.lateness = Lateness(health)
        self.liveness = Liveness(view, health, self.judge, self.lateness)
        self.budget = RetryBudget(self.settings.retry_budget, self.settings.retry_floor)
        self.zone_failures = ZoneFailures(self.settings.zone_failures, self.settings.zone_failure_window_seconds)
        self.placing = Placing(
            view,
            rng,
            self.settings.affinity_slack_seconds,
            self.settings.spill_seconds,
            self.settings.spill_share,
            registry,
        )
        self._intent: Intent | None = None
        self._models = ModelTable(view.intent)

    # Requests

    def begin(self, facts: RequestFacts, now: float, revoke: AttemptRevoker) -> tuple[Life, Step]:
        """Start a request; see ``RequestCore``."""
        self.budget.on_request(now)
        life = Life(self, facts, now, revoke)
        return life, life.start(now)

    def explain(self, facts: RequestFacts, now: float) -> dict[str, object]:
        """A dry run: what would be chosen and why, as plain JSON values. Takes nothing; only policies' turns move on."""
        versions, reason = self.resolve(facts)
        if reason is not None:
            return {"reason": reason.value, "versions": []}
        asked = Asked(facts)
        told = [self.placing.explain(asked, model, now, bool(facts.hop_from)).as_json() for model in versions]
        return {"reason": "", "versions": told}

    # News of the fleet

    def on_report(self, report: NodeReport, now: float) -> tuple[ReportAnswer, tuple[Action, ...]]:
        """``view.apply_report`` and ``liveness.on_report`` in one."""
        answer = self.view.apply_report(report, now)
        return answer, self.liveness.on_report(report, now) if answer.accepted else ()

    def on_stream_closed(self, node_uid: str, now: float) -> tuple[Action, ...]:
        return self.liveness.on_stream_closed(node_uid, now)

    def on_probe(self, endpoint_uid: str, outcome: ProbeOutcome, now: float) -> tuple[Action, ...]:
        return self.liveness.on_probe(endpoint_uid, outcome, now)

    def tick(self, now: float, late_seconds: float = 0.0, due_at: float | None = None) -> tuple[Action, ...]:
        """Age the view, lapse leases, end ejections, watch for hangs.

        ``late_seconds``: how much later than it should this tick came; ``due_at``: when the next one should come. With both,
        this router's own lateness is never taken for the death of others.
        """
        self.lateness.on_tick(late_seconds, due_at, now)
        actions = self.liveness.tick(now)
        self.view.tick(now, self.lateness.patience(now))
        return actions

    # For lives

    def resolve(self, facts: RequestFacts) -> tuple[tuple[str, ...], RejectReason | None]:
        """Versions that may answer, in the order to try, or why there are none."""
        intent = self.view.intent
        if intent is not self._intent:
            self._intent = intent
            self._models = ModelTable(intent)
        return self._models.resolve(facts, self.view.pools, self.rng)

    def outside_residency(self, facts: RequestFacts) -> bool:
        """True when a client reached a router that may not even pass its data on."""
        residency = facts.residency
        if not residency.allow or residency.relay_ingress:
            return False
        intent, region = self.view.intent, self.view.region
        zones = [z.jurisdictions for z in intent.zones.values() if z.region == region]
        if not zones and region in intent.regions:
            zones = [intent.regions[region].jurisdictions]
        return not any(residency.permits(jurisdictions) for jurisdictions in zones)

    def on_outcome(self, endpoint: Endpoint, result: AttemptResult, now: float) -> None:
        """An attempt there is over. A failed connection is a reason to ask the endpoint directly."""
        if self.excused(result.outcome, now):
            self.liveness.ask(endpoint, now)
            return
        sign = self.judge.on_outcome(endpoint, result, now)
        if sign is Sign.UNREACHED or result.outcome is Outcome.TIMEOUT_FIRST_BYTE:
            self.liveness.ask(endpoint, now)

    def excused(self, outcome: Outcome, now: float) -> bool:
        """True for a time-out while this router itself stood still: it says nothing about the place."""
        return outcome in _TIMEOUTS and self.lateness.strained(now)

    def region_key(self, region: str) -> str:
        return _REGION_PREFIX + region

    @property
    def any_failing(self) -> bool:
        return self.zone_failures.any

    def failing_regions(self, now: float) -> tuple[str, ...]:
        """Peer regions where connections have just failed."""
        found = (key for key in self.zone_failures.failing(now) if key.startswith(_REGION_PREFIX))
        return tuple(key.removeprefix(_REGION_PREFIX) for key in found)

    def pause_over(self, models: tuple[str, ...], now: float) -> float | None:
        """Seconds until the first endpoint that asked for a pause may be tried again; None when none is paused."""
        ends = [
            seat.endpoint.banned_until - now
            for model in models
            if (pool := self.view.pools.get(model)) is not None
            for seat in pool.members.values()
            if seat.endpoint.banned_until > now and seat.endpoint.hold is None and not seat.endpoint.gpu_down
        ]
        return min(ends, default=None)
