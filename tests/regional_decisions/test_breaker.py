"""The breaker's states, one by one; caps and trials over whole pools."""

from __future__ import annotations

from fleet.request import Usage
from regional.health import breaker
from regional.health.actions import Ejected, Readmitted
from regional.health.breaker import Breaker, BreakerState
from regional.health.judge import may_eject
from regional.request.steps import AttemptResult, Outcome, SendToEndpoint
from tests.regional_decisions.fleets import Rig, facts, no_revoke, policy, simple
from tests.regional_decisions.fleets import intent as intent_of


def failed(b: Breaker, now: float, may: bool = True) -> bool:
    return breaker.on_failure(b, now, 5, may, 2.0, 60.0)


def test_it_opens_after_failures_in_a_row_only() -> None:
    b = Breaker()
    for _ in range(4):
        assert not failed(b, 0.0)
    breaker.on_success(b, 0.0, 2)
    for _ in range(4):
        assert not failed(b, 0.0)
    assert failed(b, 0.0)
    assert b.state is BreakerState.OPEN
    assert b.until == 2.0


def test_it_stays_closed_where_the_cap_forbids() -> None:
    b = Breaker()
    assert not any(failed(b, 0.0, may=False) for _ in range(50))
    assert b.state is BreakerState.CLOSED


def test_one_failure_on_trial_opens_it_again_for_twice_as_long() -> None:
    b = Breaker()
    for _ in range(5):
        failed(b, 0.0)
    assert not breaker.on_tick(b, 1.9)
    assert breaker.on_tick(b, 2.0)
    assert b.state is BreakerState.HALF_OPEN
    assert failed(b, 2.5)
    assert b.until == 2.5 + 4.0
    assert breaker.on_tick(b, 6.5)
    assert not breaker.on_success(b, 6.6, 2)
    assert breaker.on_success(b, 6.7, 2)
    assert b.state is BreakerState.CLOSED


def test_ejections_grow_to_a_maximum_and_are_forgotten_after_a_good_while() -> None:
    assert [breaker.ejection_seconds(n, 2.0, 60.0) for n in (1, 2, 3, 6, 40)] == [2.0, 4.0, 8.0, 60.0, 60.0]
    b = Breaker(ejections=5, closed_at=0.0)
    breaker.open_for(b, 61.0, 2.0, 60.0)
    assert b.ejections == 1


def fail_at(rig: Rig, name: str, outcome: Outcome, times: int) -> None:
    """So many requests fail at one endpoint, wherever else they may go."""
    view = rig.view
    endpoint = view.endpoints[name]
    for _ in range(times):
        ticket = view.take(endpoint.seats[0], 1, 1, rig.now)
        view.release(ticket, rig.now)
        rig.core.on_outcome(endpoint, AttemptResult(outcome), rig.now)


def test_no_more_than_the_cap_is_ejected() -> None:
    rig = simple({"eu-west-a": 6})
    for name in ("a1", "a2", "a3", "a4", "a5", "a6"):
        fail_at(rig, name, Outcome.UPSTREAM_ERROR, 10)
    opened = [n for n, e in rig.view.endpoints.items() if e.breaker.state is BreakerState.OPEN]
    assert len(opened) == 2  # 34 % of six
    assert not may_eject(rig.view.endpoints["a6"], 0.34)


def test_the_only_endpoint_is_never_ejected() -> None:
    rig = simple({"eu-west-a": 1})
    fail_at(rig, "a1", Outcome.UPSTREAM_ERROR, 100)
    assert rig.view.endpoints["a1"].breaker.state is BreakerState.CLOSED


def test_case_r05_at_the_end_of_an_ejection_one_request_goes_on_trial() -> None:
    rig = simple({"eu-west-a": 3})
    fail_at(rig, "a1", Outcome.UPSTREAM_ERROR, 5)
    rig.beat(2.1)
    assert rig.view.endpoints["a1"].breaker.state is BreakerState.HALF_OPEN
    sent = []
    lives = []
    for i in range(200):
        life, step = rig.core.begin(facts(str(i)), rig.now, no_revoke)
        assert isinstance(step, SendToEndpoint)
        sent.append(step.target.name)
        lives.append((life, step.target.name))
    assert sent.count("a1") == 1
    for life, name in lives:
        if name == "a1":
            life.on_attempt_failed(AttemptResult(Outcome.UPSTREAM_ERROR, 500), rig.now)
    b = rig.view.endpoints["a1"].breaker
    assert b.state is BreakerState.OPEN
    assert b.until - rig.now == 4.0
    for life, _ in lives:
        life.on_end(Outcome.ABORTED, Usage(), rig.now)
    assert set(rig.inflight().values()) == {0}


def test_a_trial_that_does_well_readmits() -> None:
    rig = simple({"eu-west-a": 3})
    fail_at(rig, "a1", Outcome.UPSTREAM_ERROR, 5)
    rig.beat(2.1)
    assert any(isinstance(a, Ejected) and a.reason == "consecutive_failures" for a in rig.actions)
    rig.actions.clear()
    fail_at(rig, "a1", Outcome.OK, 2)
    told = rig.tick()
    assert any(isinstance(a, Readmitted) and a.endpoint_uid == "a1" for a in told)


def test_case_e03_a_replica_that_fails_fast_does_not_attract_traffic() -> None:
    rig = simple({"eu-west-a": 3}, given=intent_of(policies=policy("least-connections")))
    hits = failures = 0
    running = []
    for i in range(300):
        life, step = rig.core.begin(facts(str(i)), rig.now, no_revoke)
        while isinstance(step, SendToEndpoint) and step.target.name == "a1":
            hits += 1
            step = life.on_attempt_failed(AttemptResult(Outcome.UPSTREAM_ERROR, 500), rig.now)
        if not isinstance(step, SendToEndpoint):
            failures += 1
        running.append(life)
        if len(running) >= 50:
            running.pop(0).on_end(Outcome.OK, Usage(), rig.now)
        rig.tick(0.02)
    assert hits < 20
    assert failures == 0
