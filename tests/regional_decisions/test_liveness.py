"""Leases, direct probes and hangs: who is dead, who is only silent, who is only busy."""

from __future__ import annotations

from fleet.endpoint import EndpointPhase, EngineLoad
from fleet.report import AgentPhase
from fleet.request import Usage
from regional.fleetview.node import NodeState
from regional.health.actions import (
    Action,
    DeclareAlive,
    DeclareDead,
    DeclareDegraded,
    Ejected,
    ProbeEndpoints,
    ProbeOutcome,
)
from regional.request.steps import AttemptResult, Outcome, SendToEndpoint
from tests.regional_decisions.fleets import Rig, endpoint, facts, gpu, no_revoke, rig, simple


def kinds(actions: list[Action]) -> list[str]:
    return [type(a).__name__ for a in actions if not isinstance(a, ProbeEndpoints)]


def targets(made: Rig, count: int = 30) -> set[str]:
    found = set()
    for i in range(count):
        life, step = made.core.begin(facts(str(i)), made.now, no_revoke)
        if isinstance(step, SendToEndpoint):
            found.add(step.target.name)
        life.on_end(Outcome.ABORTED, Usage(), made.now)
    return found


def test_a_silent_node_is_suspect_within_1_5_s_and_dead_within_2_s() -> None:
    made = simple({"eu-west-a": 2})
    began = made.now - 0.1  # the last report
    made.actions.clear()
    at: dict[str, float] = {}
    while "DeclareDead" not in at:
        made.run(0.05, {"a1": False}, beating=("a2",))
        for kind in kinds(made.actions):
            at.setdefault(kind, made.now - began)
        if "DeclareSuspect" in at:
            assert targets(made) == {"a2"}
        assert made.now < began + 5.0
    assert at["DeclareSuspect"] <= 1.5
    assert at["DeclareDead"] <= 2.0


def test_silence_of_agent_and_engine_is_death_and_revokes() -> None:
    made = simple({"eu-west-a": 2})
    revoked: list[str] = []
    lives = []
    for i in range(10):
        life, step = made.core.begin(facts(str(i)), made.now, lambda i=i: revoked.append(str(i)))  # type: ignore[misc]
        assert isinstance(step, SendToEndpoint)
        lives.append((str(i), step.target.name, life))
    began = made.now
    made.actions.clear()
    made.run(2.0 - 0.1, {"a1": False}, beating=("a2",))
    # Both fell silent together: what is told is the node's death, once.
    assert kinds(made.actions) == ["DeclareSuspect", "DeclareDead"]
    assert made.view.nodes["node-a1"].state is NodeState.DEAD
    assert set(revoked) == {uid for uid, name, _ in lives if name == "a1"}
    assert made.now - began <= 2.0
    assert targets(made) == {"a2"}
    for uid, name, life in lives:
        if name == "a1":
            step = life.on_attempt_failed(AttemptResult(Outcome.DECLARED_DEAD), made.now)
            assert isinstance(step, SendToEndpoint), uid
            assert step.target.name == "a2"
        life.on_end(Outcome.OK, Usage(), made.now)
    assert set(made.inflight().values()) == {0}


def test_a_silent_agent_with_answering_engines_is_degraded_not_dead() -> None:
    made = simple({"eu-west-a": 1, "eu-west-b": 1})
    made.actions.clear()
    for _ in range(25):
        made.run(0.4)
        made.report("node-b1", [endpoint("b1", ["GPU-b1"])], zone="eu-west-b", gpus=[gpu("GPU-b1")])
    assert kinds(made.actions) == ["DeclareSuspect", "DeclareDegraded"]
    assert made.view.nodes["node-a1"].state is NodeState.DEGRADED
    # Kept, but with a wider estimate than one that reports.
    pool = made.view.pools["llama-3.1-8b"]
    price = {s.endpoint.name: float(pool.per_output[s.position]) for s in pool.seats}
    assert price["a1"] > 1.2 * price["b1"]
    made.report("node-a1", [endpoint("a1", ["GPU-a1"])], gpus=[gpu("GPU-a1")])
    assert kinds(made.actions)[-1] == "DeclareAlive"
    assert targets(made) == {"a1", "b1"}


def test_a_restarting_agent_raises_no_suspicion() -> None:
    made = simple({"eu-west-a": 1, "eu-west-b": 1})
    made.actions.clear()
    made.report("node-a1", [endpoint("a1", ["GPU-a1"])], gpus=[gpu("GPU-a1")], phase=AgentPhase.RESTARTING)
    made.actions += made.core.on_stream_closed("node-a1", made.now)
    for _ in range(20):
        made.run(0.4)
        made.report("node-b1", [endpoint("b1", ["GPU-b1"])], zone="eu-west-b", gpus=[gpu("GPU-b1")])
        assert not made.view.endpoints["a1"].suspect_until
        assert made.view.nodes["node-a1"].state is NodeState.DEGRADED
    assert kinds(made.actions) == ["DeclareDegraded"]
    made.run(1.5, {"a1": False})
    assert "DeclareDead" in kinds(made.actions)


def test_a_closed_stream_is_a_reason_to_ask_not_a_verdict() -> None:
    made = simple({"eu-west-a": 2})
    made.actions.clear()
    asked = made.core.on_stream_closed("node-a1", made.now)
    assert [t.endpoint_uid for a in asked if isinstance(a, ProbeEndpoints) for t in a.targets] == ["a1"]
    assert kinds(made.core.on_probe("a1", ProbeOutcome.ANSWERED, made.now)) == []
    assert targets(made) == {"a1", "a2"}
    told = made.core.on_probe("a1", ProbeOutcome.SILENT, made.now + 0.3)
    assert [a.scope for a in told if isinstance(a, DeclareDead)] == ["node"]
    assert targets(made) == {"a2"}


def test_a_dead_endpoint_that_answers_again_is_used_again_within_half_a_second() -> None:
    made = simple({"eu-west-a": 2})
    both = ("a1", "a2")
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    bad = step.target.name
    life.on_attempt_failed(AttemptResult(Outcome.CONNECT_FAILED), made.now)
    life.on_end(Outcome.ABORTED, Usage(), made.now)
    made.run(4.0, {bad: False}, beating=both)  # its agent lives and does not notice
    assert made.view.endpoints[bad].dead
    assert targets(made) == {"a1", "a2"} - {bad}
    made.actions.clear()
    made.run(0.5, {bad: True}, beating=both)
    assert [a.name for a in made.actions if isinstance(a, DeclareAlive)] == [bad]
    assert targets(made) == {"a1", "a2"}


def test_a_dead_node_whose_engines_answer_again_is_degraded() -> None:
    made = simple({"eu-west-a": 1})
    made.run(3.0, {"a1": False})
    assert made.view.nodes["node-a1"].state is NodeState.DEAD
    made.run(0.5, {"a1": True})
    assert made.view.nodes["node-a1"].state is NodeState.DEGRADED
    assert targets(made) == {"a1"}


def test_a_refused_connection_sends_others_elsewhere_until_it_answers() -> None:
    made = simple({"eu-west-a": 2})
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    bad = step.target.name
    life.on_attempt_failed(AttemptResult(Outcome.CONNECT_FAILED), made.now)
    life.on_end(Outcome.ABORTED, Usage(), made.now)
    assert targets(made) == {"a1", "a2"} - {bad}
    made.probed(made.tick(), {bad: True})
    assert targets(made) == {"a1", "a2"}


def pending(made: Rig, name: str) -> list[str]:
    """Requests waiting for their first byte at one endpoint; the list fills with those revoked."""
    revoked: list[str] = []
    for i in range(60):
        life, step = made.core.begin(facts(f"p{i}"), made.now, lambda i=i: revoked.append(f"p{i}"))  # type: ignore[misc]
        if isinstance(step, SendToEndpoint) and step.target.name != name:
            life.on_first_byte(made.now)
            life.on_end(Outcome.OK, Usage(), made.now)
    return revoked


def test_a_hung_engine_is_out_within_two_seconds() -> None:
    made = simple({"eu-west-a": 2})
    revoked = pending(made, "a1")
    waiting = made.inflight()["a1"]
    assert waiting
    began = made.now
    while not revoked:
        made.run(0.05, {"a1": False}, beating=("a1", "a2"))  # its agent is alive and well
        assert made.now - began < 2.0
    assert len(revoked) == waiting
    assert targets(made) == {"a2"}


def test_a_busy_engine_that_makes_progress_is_not_dead_though_it_does_not_answer_probes() -> None:
    made = simple({"eu-west-a": 2})
    revoked = pending(made, "a1")
    for tokens in range(60):
        load = EngineLoad(running=9, waiting=0, generated_tokens_total=100.0 * tokens, sample_age_seconds=0.0)
        for n in ("a1", "a2"):
            made.report(f"node-{n}", [endpoint(n, [f"GPU-{n}"], load=load)], gpus=[gpu(f"GPU-{n}")])
        made.run(0.1, {"a1": False})
    assert revoked == []
    assert not made.view.endpoints["a1"].dead


def test_case_e01_an_engine_whose_counters_stand_still_is_ejected_though_it_answers() -> None:
    made = simple({"eu-west-a": 3})
    tokens = 0.0

    def beat(frozen: bool) -> None:
        nonlocal tokens
        tokens += 50.0
        for n in ("a1", "a2", "a3"):
            total = 1000.0 if frozen and n == "a1" else 1000.0 + tokens
            load = EngineLoad(running=2, waiting=0, generated_tokens_total=total, sample_age_seconds=0.0)
            made.report(f"node-{n}", [endpoint(n, [f"GPU-{n}"], load=load)], gpus=[gpu(f"GPU-{n}")])

    for _ in range(5):
        beat(frozen=False)
        made.run(0.4)
    revoked = pending(made, "a1")
    assert made.inflight()["a1"]
    for _ in range(20):
        beat(frozen=True)
        made.run(0.4)
    assert any(isinstance(a, Ejected) and (a.name, a.reason) == ("a1", "hang") for a in made.actions)
    assert revoked
    assert targets(made) <= {"a1", "a2", "a3"}


def test_case_r16_a_bad_signal_about_everybody_is_ignored() -> None:
    made = simple({"eu-west-a": 4})
    for n in ("a1", "a2", "a3", "a4"):
        bad = endpoint(n, [f"GPU-{n}"], phase=EndpointPhase.UNREACHABLE, load=EngineLoad())
        made.report(f"node-{n}", [bad], gpus=[gpu(f"GPU-{n}")])
    made.view.settle(made.now)
    assert made.view.pools["llama-3.1-8b"].panic
    assert targets(made) == {"a1", "a2", "a3", "a4"}


def test_one_endpoint_reported_unreachable_comes_after_the_others_until_it_answers_us() -> None:
    made = simple({"eu-west-a": 3})
    made.report(
        "node-a1",
        [endpoint("a1", ["GPU-a1"], phase=EndpointPhase.UNREACHABLE, load=EngineLoad())],
        gpus=[gpu("GPU-a1")],
    )
    assert targets(made) == {"a2", "a3"}
    made.probed(made.tick(), {"a1": True})
    assert targets(made) == {"a1", "a2", "a3"}


def test_dead_endpoints_are_tried_only_when_nothing_else_is_left() -> None:
    made = simple({"eu-west-a": 2})
    made.run(3.0, {"a1": False, "a2": False})
    assert {n.state for n in made.view.nodes.values()} == {NodeState.DEAD}
    assert targets(made) == {"a1", "a2"}  # no pool is ever emptied by health checks


def test_degraded_is_told_once_and_alive_once() -> None:
    made = rig()
    made.report("node-x", [endpoint("x1"), endpoint("x2")])
    made.run(5.0, {"x1": True, "x2": False})
    told = [a for a in made.actions if isinstance(a, DeclareDegraded | DeclareDead)]
    assert [type(a).__name__ for a in told].count("DeclareDegraded") == 1
    assert [a.endpoint_uids for a in told if isinstance(a, DeclareDead)] == [("x2",)]
    assert targets(made) == {"x1"}
