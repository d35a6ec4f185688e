"""The three steps in a row: region, zone, endpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fleet.intent import HoldState, Intent
from fleet.request import Task
from regional.fleetview.changes import filtered_otherwise
from regional.fleetview.pool import Floats, Pool, Seat
from regional.fleetview.standing import OPEN, OUT, SUSPECT
from regional.fleetview.view import FleetView
from regional.routing import explanation, zone
from regional.routing.affinity import Affinity, SessionMove
from regional.routing.asked import Asked
from regional.routing.book import PolicyBook
from regional.routing.chance import Chance
from regional.routing.endpoint import EndpointStep
from regional.routing.filters.context import ContextLength
from regional.routing.filters.gpu_class import GpuClass
from regional.routing.filters.residency import ResidencyBorder
from regional.routing.region import RegionStep
from regional.routing.registry import Registry, discover


class Here(NamedTuple):
    """An endpoint of this region."""

    seat: Seat
    policy: str
    tier: float


class There(NamedTuple):
    """A peer region."""

    region: str


class Nowhere(NamedTuple):
    """No place may take it now."""

    forbidden: bool
    """Residency or the tenant's regions leave none."""


Placement = Here | There | Nowhere


class Placing:
    """Decides where a request goes. Reads the view, writes nothing but turns of policies and where sessions live."""

    def __init__(
        self,
        view: FleetView,
        rng: Chance,
        affinity_slack_seconds: float,
        spill_seconds: float,
        spill_share: float,
        registry: Registry | None = None,
    ) -> None:
        self._view = view
        self._rng = rng
        self._book = PolicyBook(registry if registry is not None else discover())
        border = ResidencyBorder(view.intent)
        self._regions = RegionStep(view, border, spill_seconds, spill_share)
        self._step = EndpointStep((), rng)
        self._affinity = Affinity(affinity_slack_seconds, self._step)
        self._intent: Intent | None = None
        self._follow_intent()

    @property
    def policy_problems(self) -> dict[str, str]:
        """Policy resources that cannot be obeyed, and why."""
        self._follow_intent()
        return dict(self._book.problems)

    def place(
        self, asked: Asked, model: str, excluded_regions: tuple[str, ...], now: float, *, stay: bool = False
    ) -> Placement:
        """``stay`` keeps the request in this region: it came from a peer, and a second hop is refused."""
        if self._intent is not self._view.intent:
            self._follow_intent()
        self._view.settle(now)
        pool = self._view.pools.get(model)
        costs: Floats | None = None
        cheapest, own_cost = -1, OUT
        if pool is not None and pool.seats:
            asked.expect_output(pool.mean_output_tokens, asked.facts.task is Task.EMBEDDING)
            costs = self._step.costs(pool, asked)
            cheapest = int(costs.argmin())
            own_cost = float(costs[cheapest])
            if own_cost >= SUSPECT and pool.changed:
                self._view.lay_out(pool, now)
                costs = self._step.costs(pool, asked)
                if len(costs):
                    cheapest = int(costs.argmin())
                    own_cost = float(costs[cheapest])
        if stay:
            # The peer that sent it may not know yet that it must not come here.
            if not self._regions.permits(asked.facts, self._view.region):
                return Nowhere(True)
        else:
            choice = self._regions.choose(asked, model, own_cost, excluded_regions, now)
            if not choice.region:
                return Nowhere(choice.forbidden)
            if choice.region != self._view.region:
                return There(choice.region)
        if pool is None or costs is None or own_cost == OUT:
            return self._cordoned_home(pool, costs, cheapest, asked, now) or Nowhere(False)
        return self._within(pool, costs, cheapest, asked, excluded_regions, now, stay)

    def explain(self, asked: Asked, model: str, now: float, stay: bool) -> explanation.Explanation:
        """A dry run of ``place`` with everything told."""
        placement = self.place(asked, model, (), now, stay=stay)
        pool = self._view.pools.get(model)
        laid_out = pool is not None and bool(pool.seats)
        costs = self._step.costs(pool, asked) if pool is not None and laid_out else None
        own_cost = float(costs.min()) if costs is not None else OUT
        choice = self._regions.choose(asked, model, own_cost, (), now)
        name, policy = self._book.choose(asked.facts, model)
        here = placement if isinstance(placement, Here) else None
        there = placement.region if isinstance(placement, There) else ""
        reason = ""
        if isinstance(placement, Nowhere):
            reason = (
                "residency or the tenant's regions leave no place" if placement.forbidden else "no endpoint can serve"
            )
        return explanation.Explanation(
            model=model,
            region=there or (self._view.region if here else ""),
            home=choice.home,
            regions=choice.costs,
            zone=here.seat.endpoint.zone if here else "",
            endpoint=here.seat.endpoint.name if here else "",
            policy=name or policy.name,
            endpoints=len(pool.members) if pool is not None else 0,
            removed=explanation.removed_counts(pool, asked, self._step, now) if pool is not None and laid_out else {},
            best=explanation.best_terms(pool, costs, asked) if pool is not None and costs is not None else (),
            reason=reason,
        )

    def note_session(self, seat: Seat, asked: Asked) -> None:
        """The session is now served there."""
        if asked.session is not None:
            self._affinity.note(seat.pool, asked.session, seat.endpoint.uid)

    def moved_sessions(self, limit: int) -> list[SessionMove]:
        """What siblings have still to be told of where sessions live; it counts as told from now on."""
        self._follow_intent()
        self._affinity.on_cordoned(self._cordoned())  # a hold may reach endpoints later than intent says so
        return self._affinity.moves(limit)

    def learn_sessions(self, moves: Iterable[SessionMove]) -> None:
        """What siblings say of where sessions live."""
        self._affinity.learn(moves)

    def _within(
        self,
        pool: Pool,
        costs: Floats,
        cheapest: int,
        asked: Asked,
        excluded: tuple[str, ...],
        now: float,
        stay: bool,
    ) -> Placement:
        """Zone and endpoint. A session goes where it lives, which settles both."""
        avoid = asked.avoid_zones
        if asked.session is not None and not avoid:
            position = self._affinity.pick(pool, costs, cheapest, asked, now)
            if position >= 0:
                return Here(pool.seats[position], "session", float(costs[position]))
        choice = zone.choose(pool, costs, cheapest, avoid)
        if choice.avoided and not stay and asked.facts.spill:
            elsewhere = self._regions.choose(asked, pool.model, OUT, excluded, now)
            if elsewhere.region:
                return There(elsewhere.region)
        name, policy = self._book.choose(asked.facts, pool.model)
        position = self._step.choose(pool, costs, choice.zone, choice.cheapest, policy)
        return Here(pool.seats[position], name or policy.name, float(costs[position]))

    def _cordoned_home(
        self, pool: Pool | None, costs: Floats | None, cheapest: int, asked: Asked, now: float
    ) -> Placement | None:
        """Everything here is out, but a session may still stay on a cordoned endpoint where it lives."""
        if pool is None or costs is None or cheapest < 0 or asked.session is None:
            return None
        position = self._affinity.pick(pool, costs, cheapest, asked, now)
        return Here(pool.seats[position], "session", OPEN) if position >= 0 else None

    def _follow_intent(self) -> None:
        intent = self._view.intent
        if intent is self._intent:
            return
        before, self._intent = self._intent, intent
        border = ResidencyBorder(intent)
        if before is None or filtered_otherwise(before, intent):
            self._step = EndpointStep((border, GpuClass(), ContextLength(intent)), self._rng)
            self._affinity.step = self._step
        self._regions.set_intent(intent, border)
        self._book.set_intent(intent, self._view.region)

    def _cordoned(self) -> frozenset[str]:
        """Endpoints on which sessions may stay, but nothing else."""
        if not self._view.intent.holds:
            return frozenset()
        return frozenset(e.uid for e in self._view.endpoints.values() if e.hold is HoldState.CORDONED)
