"""Any interleaving of requests, reports, probes, holds and time: counts stay exact, and no request goes where it must not."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from fleet.accelerator import DeviceHealth
from fleet.endpoint import EndpointPhase, EngineLoad
from fleet.intent import Hold, HoldState
from fleet.report import AgentPhase
from fleet.request import RequestFacts, Usage
from fleet.tenancy import Residency
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import DEAD, OUT
from regional.health.actions import ProbeOutcome
from regional.request.life import Life
from regional.request.steps import (
    AttemptResult,
    Outcome,
    Reject,
    SendToEndpoint,
    SendToRegion,
    Step,
    WaitFor,
)
from regional.routing.pricing import standing
from tests.regional_decisions.fleets import MODEL, ZONES, endpoint, facts, gpu, intent, policy, rig

NODES = {"n1": "eu-west-a", "n2": "eu-west-a", "n3": "eu-west-b", "n4": "eu-west-c"}
UIDS = {node: (f"{node}-x", f"{node}-y") for node in NODES}
FAILURES = [
    Outcome.CONNECT_FAILED,
    Outcome.STALE_CONNECTION,
    Outcome.RESET,
    Outcome.TIMEOUT_CONNECT,
    Outcome.TIMEOUT_FIRST_BYTE,
    Outcome.OVERLOADED,
    Outcome.UPSTREAM_ERROR,
    Outcome.BAD_RESPONSE,
    Outcome.AUTH_FAILED,
    Outcome.DECLARED_DEAD,
]
ZONE_BORDERS = {**ZONES, "eu-west-c": replace(ZONES["eu-west-c"], jurisdictions=frozenset({"CH"}))}


@dataclass(eq=False)
class Running:
    """One request as its gateway sees it."""

    life: Life
    facts: RequestFacts
    step: Step
    began: bool = False
    """Its first byte has passed."""
    revoked: int = 0
    tried: list[Endpoint] = field(default_factory=list)
    stale: list[Endpoint] = field(default_factory=list)

    @property
    def place(self) -> str | None:
        return self.step.target.uid if isinstance(self.step, SendToEndpoint) else None


class Requests(RuleBasedStateMachine):
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.rig = rig(given=intent(zones=ZONE_BORDERS), seed=5)
        self.held: dict[tuple[str, str], Hold] = {}
        self.version = 1
        self.policy = "expected-cost"
        self.live: list[Running] = []
        for node, zone in NODES.items():
            self.rig.report(
                node, [endpoint(u, [f"G-{u}"]) for u in UIDS[node]], zone=zone, gpus=[gpu(f"G-{u}") for u in UIDS[node]]
            )
        self.rig.tick(0.1)

    # Requests

    @rule(
        target=running,
        session=st.sampled_from(["", "aa" * 32, "bb" * 32, "cc" * 32]),
        border=st.sampled_from([frozenset(), frozenset({"EU"}), frozenset({"CH"})]),
        tokens=st.integers(1, 20_000),
        stream=st.booleans(),
        hop=st.booleans(),
    )
    def begin(self, session: str, border: frozenset[str], tokens: int, stream: bool, hop: bool) -> Running:
        given = facts(
            session=session,
            residency=Residency(border, relay_ingress=True),
            input_tokens=tokens,
            stream=stream,
            hop_from="us-east" if hop else "",
        )
        made: Running | None = None

        def revoke() -> None:
            assert made is not None
            assert not made.began, "revoked after its first byte"
            made.revoked += 1

        life, step = self.rig.core.begin(given, self.rig.now, revoke)
        made = Running(life, given, step)
        self.live.append(made)
        self._check(made)
        return made

    @rule(request=running, outcome=st.sampled_from(FAILURES), pause=st.sampled_from([None, 0.0, 0.5, 30.0]))
    def fail(self, request: Running, outcome: Outcome, pause: float | None) -> None:
        if not isinstance(request.step, SendToEndpoint | SendToRegion) or request.began:
            return
        place = self.rig.view.endpoints.get(request.place or "")
        if place is not None:
            if outcome is Outcome.STALE_CONNECTION and place not in request.stale:
                request.stale.append(place)
            else:
                request.tried.append(place)
        request.step = request.life.on_attempt_failed(AttemptResult(outcome, 500, pause), self.rig.now)
        if isinstance(request.step, WaitFor):
            request.tried.clear()
        self._check(request)

    @rule(request=running)
    def first_byte(self, request: Running) -> None:
        if isinstance(request.step, SendToEndpoint | SendToRegion):
            request.life.on_headers(200, self.rig.now)
            request.life.on_first_byte(self.rig.now)
            request.began = True

    @rule(request=running)
    def wait_over(self, request: Running) -> None:
        if isinstance(request.step, WaitFor):
            self.rig.now += request.step.seconds
            request.step = request.life.on_wait_over(self.rig.now)
            self._check(request)

    @rule(request=consumes(running), outcome=st.sampled_from(list(Outcome)), twice=st.booleans())
    def end(self, request: Running, outcome: Outcome, twice: bool) -> None:
        if isinstance(request.step, Reject):
            outcome = Outcome.REJECTED
        record = request.life.on_end(outcome, Usage(100, 50, 0), self.rig.now)
        if twice:
            assert request.life.on_end(Outcome.OK, Usage(), self.rig.now + 1) is record
        if request in self.live:
            self.live.remove(request)

    # News

    @rule(
        node=st.sampled_from(sorted(NODES)),
        phases=st.tuples(*[st.sampled_from([None, *EndpointPhase])] * 2),
        sick=st.sampled_from([None, 0, 1]),
        running=st.one_of(st.none(), st.integers(0, 50)),
        restart=st.booleans(),
        agent=st.sampled_from(list(AgentPhase)),
    )
    def report(
        self,
        node: str,
        phases: tuple[EndpointPhase | None, EndpointPhase | None],
        sick: int | None,
        running: int | None,
        restart: bool,
        agent: AgentPhase,
    ) -> None:
        load = EngineLoad() if running is None else EngineLoad(running=running, waiting=0, sample_age_seconds=0.1)
        reports = [
            endpoint(u, [f"G-{u}"], phase=p, load=load)
            for u, p in zip(UIDS[node], phases, strict=True)
            if p is not None
        ]
        bad = None if sick is None else f"G-{UIDS[node][sick]}"
        gpus = [gpu(f"G-{u}", DeviceHealth.FAILED if f"G-{u}" == bad else DeviceHealth.OK) for u in UIDS[node]]
        incarnation = 1
        state = self.rig.view.nodes.get(node)
        if state is not None and state.order is not None:
            incarnation = state.order[0] + restart
        self.rig.report(node, reports, zone=NODES[node], gpus=gpus, phase=agent, incarnation=incarnation)

    @rule(uid=st.sampled_from([u for pair in UIDS.values() for u in pair]), outcome=st.sampled_from(ProbeOutcome))
    def probe(self, uid: str, outcome: ProbeOutcome) -> None:
        self.rig.core.on_probe(uid, outcome, self.rig.now)

    @rule(node=st.sampled_from(sorted(NODES)))
    def close_stream(self, node: str) -> None:
        self.rig.core.on_stream_closed(node, self.rig.now)

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.4, 1.5, 3.5]), late=st.booleans())
    def time_passes(self, seconds: float, late: bool) -> None:
        self.rig.tick(seconds, max(0.0, seconds - 0.05) if late else 0.0)

    @rule(
        target_=st.sampled_from([("endpoint", "n1-x"), ("gpu", "G-n2-x"), ("node", "n3"), ("zone", "z-eu-west-a")]),
        state=st.sampled_from([None, *HoldState]),
    )
    def hold(self, target_: tuple[str, str], state: HoldState | None) -> None:
        self.held.pop(target_, None)
        if state is not None:
            self.held[target_] = Hold(f"h-{target_}", *target_, state)
        self._intend()

    @rule(algorithm=st.sampled_from(["expected-cost", "round-robin", "least-connections"]))
    def choose_policy(self, algorithm: str) -> None:
        self.policy = algorithm
        self._intend()

    @rule(router=st.sampled_from(["r2", "r3"]), uid=st.sampled_from(["n1-x", "n4-y"]), count=st.integers(0, 200))
    def sibling(self, router: str, uid: str, count: int) -> None:
        self.rig.view.set_sibling_load(router, {uid: (count, 10.0 * count)} if count else {}, self.rig.now)

    def _intend(self) -> None:
        self.version += 1
        given = intent(self.version, zones=ZONE_BORDERS, holds=dict(self.held), policies=policy(self.policy))
        self.rig.view.set_intent(given, self.rig.now)

    # What must hold

    def _check(self, request: Running) -> None:
        """No request goes where it must not, and to a dead place only when nothing better is left."""
        step, now = request.step, self.rig.now
        if not isinstance(step, SendToEndpoint):
            return
        chosen = self.rig.view.endpoints[step.target.uid]
        cordoned_home = chosen.hold is HoldState.CORDONED and bool(request.facts.session)
        tier, why = standing(chosen, now)
        assert tier < OUT or (cordoned_home and why == "hold"), why
        assert self._permitted(request, chosen), "residency"
        assert chosen not in request.tried, "tried before"
        if DEAD <= tier < OUT:
            others = [
                e
                for e in self.rig.view.endpoints.values()
                if e is not chosen and e.seats and e not in request.tried and self._permitted(request, e)
            ]
            assert all(standing(e, now)[0] >= DEAD for e in others), [e for e in others if standing(e, now)[0] < DEAD]

    def _permitted(self, request: Running, place: Endpoint) -> bool:
        return request.facts.residency.permits(ZONE_BORDERS[place.zone].jurisdictions)

    @invariant()
    def in_flight_is_what_is_running(self) -> None:
        wanted: dict[str, int] = {}
        for request in self.live:
            if request.place is not None:
                wanted[request.place] = wanted.get(request.place, 0) + 1
        found = {uid: e.own for uid, e in self.rig.view.endpoints.items() if e.own}
        assert found == wanted

    @invariant()
    def all_sums_are_exact(self) -> None:
        for row in self.rig.view.endpoints.values():
            waiting = [r for r in self.live if r.place == row.uid and not r.began]
            assert len(row.pending) == len(waiting)
            assert abs(row.own_unread - sum(r.facts.input_tokens for r in waiting)) < 1e-6
            assert row.breaker.trials >= 0
        pool = self.rig.view.pools.get(MODEL)
        if pool is not None:
            self.rig.view.settle(self.rig.now)
            assert pool.usable == sum(s.standing < OUT for s in pool.members.values())
            assert pool.signals == sum(s.signalled for s in pool.members.values())

    @precondition(lambda self: not self.live)
    @invariant()
    def nothing_is_left_when_all_is_over(self) -> None:
        assert self.rig.view.own_load() == {}
        assert all(not e.pending and e.breaker.trials == 0 for e in self.rig.view.endpoints.values())

    def teardown(self) -> None:
        for request in list(self.live):
            request.life.on_end(Outcome.ABORTED, Usage(), self.rig.now)
            self.live.remove(request)
        self.in_flight_is_what_is_running()
        self.nothing_is_left_when_all_is_over()


TestRequests = Requests.TestCase
TestRequests.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def story(seed: int) -> list[str]:
    """A long mixed run; every send in order."""
    chance = random.Random(seed)
    made = rig(seed=seed)
    sends: list[str] = []
    live: list[tuple[Life, Step]] = []
    for i in range(600):
        node = chance.choice(sorted(NODES))
        if i % 5 == 0:
            sick = chance.random() < 0.1
            made.report(
                node,
                [endpoint(u, [f"G-{u}"]) for u in UIDS[node]],
                zone=NODES[node],
                gpus=[gpu(f"G-{u}", DeviceHealth.LOST if sick else DeviceHealth.OK) for u in UIDS[node]],
            )
        made.tick(chance.choice([0.01, 0.05]))
        life, step = made.core.begin(facts(str(i), session=chance.choice(["", "ab" * 32])), made.now, lambda: None)
        live.append((life, step))
        if len(live) > 20:
            life, step = live.pop(chance.randrange(len(live)))
            while isinstance(step, SendToEndpoint) and chance.random() < 0.3:
                sends.append(step.target.uid)
                step = life.on_attempt_failed(AttemptResult(chance.choice(FAILURES), 500), made.now)
            sends.append(step.target.uid if isinstance(step, SendToEndpoint) else type(step).__name__)
            life.on_end(Outcome.OK, Usage(100, 20, 0), made.now)
    return sends


def test_the_same_seed_gives_the_same_sends_in_the_same_order() -> None:
    assert story(3) == story(3)
    assert story(3) != story(4)
