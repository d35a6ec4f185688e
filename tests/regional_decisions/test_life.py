"""The life of a request: failover and retry, pauses, limits of time, refusals."""

from __future__ import annotations

import pytest

from fleet.intent import Model, Route, Split
from fleet.request import Task, Usage
from fleet.tenancy import Residency, Tenant
from regional.request.budget import RetryBudget
from regional.request.settings import RequestSettings
from regional.request.steps import (
    AttemptResult,
    Outcome,
    Reject,
    RejectReason,
    SendToEndpoint,
    Step,
    WaitFor,
)
from tests.regional_decisions.fleets import MODEL, Rig, endpoint, facts, gpu, intent, no_revoke, simple

FAILED = AttemptResult(Outcome.UPSTREAM_ERROR, 500)
REFUSED = AttemptResult(Outcome.CONNECT_FAILED)


def sent(step: Step) -> str:
    assert isinstance(step, SendToEndpoint), step
    return step.target.name


def reason(step: Step) -> RejectReason:
    assert isinstance(step, Reject), step
    return step.reason


# Retries and failovers


def test_case_r01_no_more_than_three_attempts_over_all_tiers() -> None:
    rig = simple({"eu-west-a": 8})
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    seen = [sent(step)]
    while isinstance(step := life.on_attempt_failed(FAILED, rig.now), SendToEndpoint):
        seen.append(sent(step))
    assert len(seen) == len(set(seen)) == 3
    assert reason(step) is RejectReason.UPSTREAM_FAILED
    record = life.on_end(Outcome.REJECTED, Usage(), rig.now)
    assert (record.attempts, record.retries, record.failovers) == (3, 2, 0)

    # Two attempts were made by the tier that sent it here: one is left.
    life, step = rig.core.begin(facts(attempts_used=2, hop_from="us-east"), rig.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    assert step.attempt == 3
    assert isinstance(life.on_attempt_failed(FAILED, rig.now), Reject)
    life.on_end(Outcome.REJECTED, Usage(), rig.now)


def test_case_r02_a_second_attempt_goes_elsewhere() -> None:
    rig = simple({"eu-west-a": 1, "eu-west-b": 1})
    for i in range(50):
        life, step = rig.core.begin(facts(str(i)), rig.now, no_revoke)
        tried = []
        while sent(step) == "a1":
            tried.append("a1")
            step = life.on_attempt_failed(REFUSED, rig.now)
        assert len(tried) <= 1
        life.on_first_byte(rig.now)
        life.on_end(Outcome.OK, Usage(), rig.now)
    assert set(rig.inflight().values()) == {0}


def test_failovers_are_outside_attempts_and_budget_and_bounded() -> None:
    rig = simple({"eu-west-a": 12}, settings=RequestSettings(retry_budget=0.0, failover_max=8))
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    seen = [sent(step)]
    while isinstance(step := life.on_attempt_failed(REFUSED, rig.now), SendToEndpoint):
        seen.append(sent(step))
    assert len(seen) == len(set(seen)) == 9
    record = life.on_end(Outcome.REJECTED, Usage(), rig.now)
    assert (record.failovers, record.retries) == (8, 0)


def test_two_connection_failures_in_a_zone_send_the_next_attempt_to_another() -> None:
    rig = simple({"eu-west-a": 6, "eu-west-b": 2})
    rig.view.set_sibling_load("busy", {"b1": (3, 0.0), "b2": (3, 0.0)}, rig.now + 0.01)  # zone a looks better
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    assert sent(step).startswith("a")
    step = life.on_attempt_failed(REFUSED, rig.now)
    assert sent(step).startswith("a")
    step = life.on_attempt_failed(REFUSED, rig.now + 0.1)
    assert sent(step).startswith("b")
    life.on_end(Outcome.ABORTED, Usage(), rig.now)


def test_a_failing_zone_is_still_better_than_none() -> None:
    rig = simple({"eu-west-a": 6})
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    for _ in range(4):
        step = life.on_attempt_failed(REFUSED, rig.now)
        sent(step)
    life.on_end(Outcome.ABORTED, Usage(), rig.now)


def test_case_r10_a_stale_connection_is_tried_once_more_at_the_same_place() -> None:
    rig = simple({"eu-west-a": 1})
    life, _ = rig.core.begin(facts(), rig.now, no_revoke)
    stale = AttemptResult(Outcome.STALE_CONNECTION)
    assert sent(life.on_attempt_failed(stale, rig.now)) == "a1"
    assert rig.view.endpoints["a1"].breaker.failures == 0
    life.on_first_byte(rig.now)
    assert life.on_end(Outcome.OK, Usage(), rig.now).failovers == 1


def test_the_retry_budget_is_a_tenth_of_the_requests_of_ten_seconds() -> None:
    budget = RetryBudget(0.1, 5)
    for i in range(1000):
        budget.on_request(i * 0.01)
    assert sum(budget.take(10.0) for _ in range(500)) == 100 - 10  # the first second has just passed out of the window
    assert sum(budget.take(40.0) for _ in range(500)) == 5
    assert not RetryBudget(0.0, 5).take(0.0)


def test_a_retry_storm_stays_within_the_budget() -> None:
    rig = simple({"eu-west-a": 8})
    attempts = offered = 0
    for i in range(3000):
        offered += 1
        life, step = rig.core.begin(facts(str(i)), rig.now, no_revoke)
        while isinstance(step, SendToEndpoint):
            attempts += 1
            step = life.on_attempt_failed(FAILED, rig.now)
        assert isinstance(step, Reject)
        life.on_end(Outcome.REJECTED, Usage(), rig.now)
        rig.now += 0.01
    assert attempts <= 1.1 * offered + 20
    assert set(rig.inflight().values()) == {0}


def test_case_s09_nothing_is_sent_again_after_the_first_byte() -> None:
    rig = simple({"eu-west-a": 2})
    life, _ = rig.core.begin(facts(), rig.now, no_revoke)
    life.on_headers(200, rig.now)
    life.on_first_byte(rig.now)
    assert isinstance(life.on_attempt_failed(AttemptResult(Outcome.RESET), rig.now), Reject)
    life.on_end(Outcome.STREAM_BROKEN, Usage(), rig.now)
    assert set(rig.inflight().values()) == {0}


# Pauses


def test_case_r07_a_pause_is_obeyed_and_the_request_moves_on() -> None:
    rig = simple({"eu-west-a": 2})
    paused = AttemptResult(Outcome.OVERLOADED, 429, 2.0)
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    first = sent(step)
    assert sent(life.on_attempt_failed(paused, rig.now)) != first
    life.on_end(Outcome.ABORTED, Usage(), rig.now)
    for i in range(50):
        life, step = rig.core.begin(facts(str(i)), rig.now + 1.9, no_revoke)
        assert sent(step) != first
        life.on_end(Outcome.ABORTED, Usage(), rig.now + 1.9)


def test_case_r07_alone_it_waits_within_the_limits_or_says_when_to_come_back() -> None:
    rig = simple({"eu-west-a": 1})
    life, _ = rig.core.begin(facts(), rig.now, no_revoke)
    step = life.on_attempt_failed(AttemptResult(Outcome.OVERLOADED, 429, 1.0), rig.now)
    assert isinstance(step, WaitFor)
    assert 1.0 <= step.seconds <= 1.2
    rig.tick(step.seconds)
    assert sent(life.on_wait_over(rig.now)) == "a1"
    step = life.on_attempt_failed(AttemptResult(Outcome.OVERLOADED, 429, 30.0), rig.now)
    assert isinstance(step, Reject)
    assert step.reason is RejectReason.OVERLOADED
    assert step.retry_after_seconds is not None
    assert 30.0 <= step.retry_after_seconds <= 45.0
    life.on_end(Outcome.REJECTED, Usage(), rig.now)

    other, step = rig.core.begin(facts(deadline_seconds=0.5), rig.now, no_revoke)
    assert reason(step) is RejectReason.OVERLOADED  # not even begun, and no use in waiting
    other.on_end(Outcome.REJECTED, Usage(), rig.now)


def test_case_r09_a_paused_endpoint_gets_nothing_until_the_pause_is_over() -> None:
    rig = simple({"eu-west-a": 2})
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    paused = sent(step)
    life.on_attempt_failed(AttemptResult(Outcome.OVERLOADED, 429, 15.0), rig.now)
    life.on_end(Outcome.ABORTED, Usage(), rig.now)
    began = rig.now
    hits = []
    while rig.now < began + 14.9:
        rig.beat(0.4)
        if rig.now >= began + 14.9:
            break
        life, step = rig.core.begin(facts(), rig.now, no_revoke)
        hits.append(sent(step))
        life.on_end(Outcome.ABORTED, Usage(), rig.now)
    assert paused not in hits
    rig.beat(0.5)
    assert paused in {sent(rig.core.begin(facts(str(i)), rig.now, no_revoke)[1]) for i in range(20)}


def test_refused_credentials_keep_everybody_off_for_a_while() -> None:
    rig = simple({"eu-west-a": 2})
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    bad = sent(step)
    assert sent(life.on_attempt_failed(AttemptResult(Outcome.AUTH_FAILED, 401), rig.now)) != bad
    assert (
        reason(life.on_attempt_failed(AttemptResult(Outcome.AUTH_FAILED, 401), rig.now)) is RejectReason.UPSTREAM_AUTH
    )
    life.on_end(Outcome.REJECTED, Usage(), rig.now)
    assert rig.view.counts(rig.now).endpoints == {"credentials": 2}


# Time


def test_limits_of_time_are_the_least_of_all() -> None:
    rig = simple({"eu-west-a": 2})

    def limit(**changes: object) -> float:
        life, step = rig.core.begin(facts(**changes), rig.now, no_revoke)
        life.on_end(Outcome.ABORTED, Usage(), rig.now)
        assert isinstance(step, SendToEndpoint)
        return step.first_byte_timeout_seconds

    assert limit() == 60.0
    assert limit(first_byte_deadline_seconds=10.0) == 10.0
    assert limit(total_seconds=5.0) == 5.0
    assert limit(deadline_seconds=2.0) == 2.0
    # An answer in one piece comes when it is all there: 100 tokens of some 6.4 ms, four times over, on top.
    assert 62.0 < limit(stream=False) < 64.0
    assert limit(stream=False, deadline_seconds=2.0) == 2.0


def test_a_deadline_that_has_passed_ends_it_with_the_right_name() -> None:
    rig = simple({"eu-west-a": 3})
    late = AttemptResult(Outcome.TIMEOUT_FIRST_BYTE)
    life, _ = rig.core.begin(facts(deadline_seconds=2.0), rig.now, no_revoke)
    step = life.on_attempt_failed(late, rig.now + 2.0)
    assert isinstance(step, Reject)
    assert (step.reason, step.should_retry) == (RejectReason.DEADLINE, False)
    life, _ = rig.core.begin(facts(first_byte_deadline_seconds=2.0), rig.now, no_revoke)
    assert reason(life.on_attempt_failed(late, rig.now + 2.0)) is RejectReason.UPSTREAM_TIMEOUT
    life, _ = rig.core.begin(facts(), rig.now, no_revoke)
    assert isinstance(life.on_attempt_failed(late, rig.now + 2.0), SendToEndpoint)


# Names


def tenants(*models: str) -> dict[str, Tenant]:
    return {"acme": Tenant("t-1", "acme", "standard", models=models)}


def test_a_route_beats_an_alias_beats_a_name() -> None:
    models = {n: Model(f"m-{n}", n, "chat", weights_gib=15.0) for n in ("one", "two", "three")}
    rig = simple(
        {}, given=intent(models=models, aliases={"two": "one"}, routes=(Route("r", "r", "three", (Split("one", 1),)),))
    )
    rig.report("n", [endpoint(m, models=(m,)) for m in models])
    rig.tick(0.1)
    for asked, served in (("one", "one"), ("two", "one"), ("three", "one")):
        assert sent(rig.core.begin(facts(requested_model=asked), rig.now, no_revoke)[1]) == served


def test_unknown_models_and_models_of_others_look_alike() -> None:
    rig = simple({"eu-west-a": 1}, given=intent(tenants=tenants("other-*")))
    unknown = rig.core.begin(facts(requested_model="nothing"), rig.now, no_revoke)[1]
    foreign = rig.core.begin(facts(tenant_name="acme"), rig.now, no_revoke)[1]
    assert unknown == foreign
    assert reason(foreign) is RejectReason.MODEL_NOT_FOUND


def test_what_the_tenant_has_and_the_key_has_not_is_forbidden() -> None:
    rig = simple({"eu-west-a": 1}, given=intent(tenants=tenants("llama-*")))
    step = rig.core.begin(facts(tenant_name="acme", allowed_models=("gpt-*",)), rig.now, no_revoke)[1]
    assert reason(step) is RejectReason.MODEL_NOT_ALLOWED
    # A pattern may name the alias a client uses as well as the model behind it.
    step = rig.core.begin(facts(requested_model="Llama", allowed_models=("Llama",)), rig.now, no_revoke)[1]
    assert sent(step) == "a1"


def test_a_model_does_its_own_task_only() -> None:
    rig = simple({"eu-west-a": 1})
    assert reason(rig.core.begin(facts(task=Task.EMBEDDING), rig.now, no_revoke)[1]) is RejectReason.WRONG_TASK
    assert sent(rig.core.begin(facts(task=Task.COMPLETION), rig.now, no_revoke)[1]) == "a1"


def split_rig(**changes: object) -> Rig:
    models = {n: Model(f"m-{n}", n, "chat", weights_gib=15.0) for n in ("v1", "v2", "old")}
    route = Route("r-1", "r", "llama", (Split("v1", 90), Split("v2", 10)), **changes)  # type: ignore[arg-type]
    rig = simple({}, given=intent(models=models, aliases={}, routes=(route,)))
    for m in models:
        rig.report(f"n-{m}", [endpoint(m, [f"g-{m}"], models=(m,))], gpus=[gpu(f"g-{m}")])
    rig.tick(0.1)
    return rig


def ask(rig: Rig, uid: str, session: str = "") -> str:
    life, step = rig.core.begin(facts(uid, requested_model="llama", session=session), rig.now, no_revoke)
    life.on_end(Outcome.ABORTED, Usage(), rig.now)
    return sent(step)


def test_a_split_divides_by_weight_and_sticks_by_session() -> None:
    rig = split_rig(sticky=True)
    drawn = [ask(rig, str(i)) for i in range(2000)]
    assert 0.07 < drawn.count("v2") / 2000 < 0.13
    assert len({ask(rig, str(i), session="5e55" * 16) for i in range(50)}) == 1
    by_session = [ask(rig, "q", session=f"{i * 7919:064x}"[::-1]) for i in range(2000)]
    assert 0.07 < by_session.count("v2") / 2000 < 0.13


def test_a_version_that_is_gone_gives_way_to_the_others_and_then_to_fallbacks() -> None:
    rig = split_rig(fallback=("old",))
    rig.report("n-v2", [])
    rig.tick(0.1)
    assert {ask(rig, str(i)) for i in range(100)} == {"v1"}
    rig.report("n-v1", [])
    rig.tick(0.1)
    assert {ask(rig, str(i)) for i in range(100)} == {"old"}


def test_a_route_may_want_headers_and_tenants() -> None:
    rig = split_rig(headers={"X-Canary": "yes"}, tenants=("acme",))
    step = rig.core.begin(facts(requested_model="llama"), rig.now, no_revoke)[1]
    assert reason(step) is RejectReason.MODEL_NOT_FOUND
    given = facts(requested_model="llama", tenant_name="acme", route_headers={"x-canary": "yes"})
    assert sent(rig.core.begin(given, rig.now, no_revoke)[1]) in ("v1", "v2")


# Refusals


def test_nothing_to_route_to_is_503_with_a_time_to_come_back() -> None:
    rig = simple({})
    life, step = rig.core.begin(facts(), rig.now, no_revoke)
    assert isinstance(step, Reject)
    assert step.reason is RejectReason.NO_ENDPOINT
    assert step.retry_after_seconds is not None
    assert 1.0 <= step.retry_after_seconds <= 1.5
    record = life.on_end(Outcome.REJECTED, Usage(), rig.now)
    assert (record.attempts, record.reject_reason) == (0, RejectReason.NO_ENDPOINT)


def test_case_z08_a_router_outside_the_residency_takes_nothing_unless_it_may_relay() -> None:
    rig = simple({"eu-west-a": 1})
    step = rig.core.begin(facts(residency=Residency(frozenset({"US"}))), rig.now, no_revoke)[1]
    assert isinstance(step, Reject)
    assert (step.reason, step.should_retry) == (RejectReason.REGION_NOT_ALLOWED, False)


def test_case_e05_an_outage_is_refused_at_once_and_ends_with_the_first_return() -> None:
    rig = simple({"eu-west-a": 2})
    for n in ("a1", "a2"):
        rig.report(f"node-{n}", [])
    rig.tick()
    for i in range(300):
        life, step = rig.core.begin(facts(str(i)), rig.now, no_revoke)
        assert reason(step) is RejectReason.NO_ENDPOINT
        life.on_end(Outcome.REJECTED, Usage(), rig.now)
        rig.tick(0.1)
    rig.report("node-a1", [endpoint("a1", ["GPU-a1"])], gpus=[gpu("GPU-a1")])
    assert sent(rig.core.begin(facts(), rig.now, no_revoke)[1]) == "a1"


@pytest.mark.parametrize("way", ["deregistered", "killed", "stopped"])
def test_case_e09_a_request_on_a_replica_that_leaves_moves_on(way: str) -> None:
    rig = simple({"eu-west-a": 2})
    revoked: list[str] = []
    life, step = rig.core.begin(facts(), rig.now, lambda: revoked.append("q"))
    first = sent(step)
    if way == "deregistered":
        rig.report(f"node-{first}", [])
    else:
        deadline = rig.now + 4.0
        while not revoked and rig.now < deadline:
            rig.run(0.1, {first: False})
    assert revoked == ["q"]
    record = life.on_end(Outcome.DECLARED_DEAD, Usage(), rig.now)
    assert record.endpoint == first


def test_lengths_learnt_are_those_of_the_answers() -> None:
    rig = simple({"eu-west-a": 1})
    pool = rig.view.pools[MODEL]
    for i in range(400):
        life, _ = rig.core.begin(facts(str(i), max_output_tokens=None), rig.now, no_revoke)
        life.on_headers(200, rig.now)
        life.on_first_byte(rig.now + 0.02)
        life.on_end(Outcome.OK, Usage(900, 40, 0), rig.now + 0.3)
    assert pool.mean_output_tokens == pytest.approx(40, rel=0.02)
    assert pool.mean_input_tokens == pytest.approx(900, rel=0.02)
