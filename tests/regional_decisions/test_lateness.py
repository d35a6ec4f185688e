"""Busy is not dead, also when the busy one is the router: its own lateness is never taken for the death of others."""

from __future__ import annotations

import pytest

from fleet.endpoint import EngineLoad
from fleet.request import Usage
from regional.fleetview.peers import PeerProbe
from regional.health.actions import DeclareDead, DeclareSuspect, ProbeEndpoints, ProbeOutcome
from regional.health.lateness import Lateness
from regional.health.settings import HealthSettings
from regional.request.steps import AttemptResult, Outcome, SendToEndpoint
from tests.regional_decisions.fleets import Rig, endpoint, facts, gpu, no_revoke, simple

BOTH = ("a1", "a2")
STALL = 1.5


def asked(made: Rig) -> list[ProbeEndpoints]:
    return [a for a in made.actions if isinstance(a, ProbeEndpoints)]


def deaths(made: Rig) -> list[DeclareDead]:
    return [a for a in made.actions if isinstance(a, DeclareDead)]


def settled() -> Rig:
    """Two endpoints whose nodes have reported for a while."""
    made = simple({"eu-west-a": 2})
    made.run(3.0, beating=BOTH)
    made.actions.clear()
    return made


def test_a_router_that_stood_still_suspects_nobody() -> None:
    made = settled()
    made.tick(STALL, late=STALL - 0.05)  # the reports of that time are still in the sockets
    assert made.actions == []
    made.run(3.0, beating=BOTH)
    assert not deaths(made)
    assert not any(isinstance(a, DeclareSuspect) for a in made.actions)


def test_the_same_silence_of_a_router_that_keeps_time_is_suspicious() -> None:
    made = settled()
    made.run(STALL)
    assert any(isinstance(a, DeclareSuspect) for a in made.actions)


def test_a_probe_that_ran_out_while_we_stood_still_is_asked_again() -> None:
    made = settled()
    made.core.on_stream_closed("node-a1", made.now)
    made.now += STALL
    assert made.core.on_probe("a1", ProbeOutcome.SILENT, made.now) != ()  # nobody has said that we were late
    made = settled()
    made.core.on_stream_closed("node-a1", made.now)
    made.tick(STALL, late=STALL - 0.05)
    assert made.core.on_probe("a1", ProbeOutcome.SILENT, made.now) == ()
    assert not made.view.endpoints["a1"].dead
    made.actions.clear()
    made.tick(0.05)
    (again,) = asked(made)
    assert [t.endpoint_uid for t in again.targets] == ["a1"]
    assert again.timeout_seconds > 0.5, "and given more time"


def test_a_tick_that_is_overdue_counts_before_it_comes() -> None:
    """After a stall the timers of probes may run before the tick that finds how late it is."""
    made = settled()
    made.core.tick(made.now, 0.0, made.now + 0.05)
    made.core.on_stream_closed("node-a1", made.now)
    made.now += STALL
    assert made.core.on_probe("a1", ProbeOutcome.SILENT, made.now) == ()
    assert not made.view.endpoints["a1"].dead


def test_a_refusal_counts_however_late_we_are() -> None:
    made = settled()
    made.core.on_stream_closed("node-a1", made.now)
    made.tick(STALL, late=STALL - 0.05)
    told = made.core.on_probe("a1", ProbeOutcome.REFUSED, made.now)
    assert [a.endpoint_uids for a in told if isinstance(a, DeclareDead)] == [("a1",)]


def test_what_could_not_be_asked_is_not_dead_and_is_asked_again() -> None:
    made = settled()
    made.core.on_stream_closed("node-a1", made.now)
    assert made.core.on_probe("a1", ProbeOutcome.UNASKED, made.now) == ()
    assert not made.view.endpoints["a1"].dead
    made.tick(0.1)
    assert asked(made)


@pytest.mark.parametrize("late", [0.0, 0.1, 0.2])
def test_a_dead_node_is_out_soon_on_a_router_that_is_always_a_little_late(late: float) -> None:
    made = settled()
    made.run(1.0, beating=BOTH, late=late)
    began = made.now
    while not made.view.endpoints["a1"].dead:
        made.run(0.05, {"a1": False}, beating=("a2",), late=late)
        assert made.now - began <= 2.0 + 10 * late, "each second of lateness costs a few"


def test_patience_is_bounded() -> None:
    made = settled()
    began = made.now
    while not made.view.endpoints["a1"].dead:
        # A second late all the time, and still a judgement.
        made.run(0.05, {"a1": False}, beating=("a2",), late=1.0)
        assert made.now - began < 6.0
    lateness = Lateness(s := HealthSettings())
    lateness.on_tick(3600.0, None, 10.0)
    assert lateness.patience(10.0) == s.patience_max_seconds
    assert lateness.probe_patience(10.0) == s.probe_patience_max_seconds


def test_lateness_fades_and_small_lateness_is_none() -> None:
    lateness = Lateness(HealthSettings())
    lateness.on_tick(0.02, None, 10.0)
    assert lateness.patience(10.0) == lateness.probe_patience(10.0) == 0.0
    lateness.on_tick(0.8, None, 11.0)
    lateness.on_tick(0.0, None, 12.0)
    assert lateness.patience(12.0) == pytest.approx(0.4)
    assert lateness.strained(12.0)
    assert not lateness.strained(13.0)
    assert lateness.patience(20.0) == 0.0


def stuck(made: Rig, name: str) -> list[str]:
    """Requests that wait for their first byte at an endpoint; the list fills with those revoked."""
    revoked: list[str] = []
    for i in range(60):
        life, step = made.core.begin(facts(f"p{i}"), made.now, lambda i=i: revoked.append(f"p{i}"))  # type: ignore[misc]
        if isinstance(step, SendToEndpoint) and step.target.name != name:
            life.on_first_byte(made.now)
            life.on_end(Outcome.OK, Usage(), made.now)
    assert made.inflight()[name]
    return revoked


def test_no_hang_is_found_while_we_are_strained_and_soon_after() -> None:
    made = settled()
    revoked = stuck(made, "a1")
    made.run(4.0, {"a1": False}, beating=BOTH, late=0.4)
    assert not revoked
    assert not deaths(made)
    made.run(4.0, {"a1": False}, beating=BOTH)
    assert revoked
    assert [d.endpoint_uids for d in deaths(made)] == [("a1",)]


def test_an_engine_that_made_progress_a_moment_ago_is_busy_when_it_is_silent() -> None:
    """Its counters move with every report, 0.4 s apart; two tries of a probe fall between them."""
    made = settled()

    def say(tokens: float) -> None:
        load = EngineLoad(running=9, waiting=0, generated_tokens_total=tokens, sample_age_seconds=0.0)
        made.report("node-a1", [endpoint("a1", ["GPU-a1"], load=load)], gpus=[gpu("GPU-a1")])

    say(100.0)
    made.tick()
    say(200.0)
    made.tick(0.1)
    made.core.liveness.ask(made.view.endpoints["a1"], made.now)
    made.tick()
    made.now += 0.3
    assert made.core.on_probe("a1", ProbeOutcome.SILENT, made.now) == ()
    assert not made.view.endpoints["a1"].dead
    made.tick(1.0)  # and that was the last progress
    told = made.core.on_probe("a1", ProbeOutcome.SILENT, made.now)
    assert [a.endpoint_uids for a in told if isinstance(a, DeclareDead)] == [("a1",)]


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT_CONNECT, Outcome.TIMEOUT_FIRST_BYTE])
def test_a_time_out_while_we_stood_still_is_not_held_against_the_place(outcome: Outcome) -> None:
    for late in (0.0, STALL - 0.05):
        made = settled()
        life, step = made.core.begin(facts(), made.now, no_revoke)
        assert isinstance(step, SendToEndpoint)
        made.tick(STALL, late=late)
        life.on_attempt_failed(AttemptResult(outcome), made.now)
        life.on_end(Outcome.ABORTED, Usage(), made.now)
        place = made.view.endpoints[step.target.uid]
        blamed = place.suspect_until > made.now or place.breaker.failures > 0
        assert blamed is (late == 0.0)
        assert bool(made.core.any_failing) is (late == 0.0 and outcome is Outcome.TIMEOUT_CONNECT)


def test_a_peer_region_is_given_the_time_that_we_stood_still() -> None:
    made = settled()
    probe = PeerProbe("http://10.2.0.1:7600", True, True, 0.08, ())
    made.view.set_peer_probe("us-east", probe, made.now)
    made.tick(2.9)
    assert made.view.peers.up("us-east", made.now)
    made.tick(STALL, late=STALL - 0.05)
    assert made.view.peers.up("us-east", made.now)
    made.run(4.0)
    assert not made.view.peers.up("us-east", made.now)


# Others are slow together


def starved(names: tuple[str, ...]) -> Rig:
    """One endpoint a node, each with a request that waits for its first byte; all agents are well."""
    made = simple({"eu-west-a": len(names)})
    made.run(3.0, beating=names)
    made.actions.clear()
    for i in range(8 * len(names)):
        made.core.begin(facts(f"p{i}"), made.now, no_revoke)
    assert all(made.inflight().values())
    return made


def test_engines_of_many_nodes_that_are_silent_at_once_are_busy_for_a_while() -> None:
    names = ("a1", "a2", "a3", "a4")
    made = starved(names)
    made.run(8.0, dict.fromkeys(names, False), beating=names)
    assert not deaths(made), "one machine short of CPU, or the network, and not four hangs"
    made.run(1.0, beating=names)
    assert not any(made.view.endpoints[n].suspect_until > made.now for n in names)


def test_but_not_for_ever() -> None:
    names = ("a1", "a2", "a3", "a4")
    made = starved(names)
    made.run(14.0, dict.fromkeys(names, False), beating=names)
    assert {d.endpoint_uids for d in deaths(made)} == {(n,) for n in names}


def test_one_that_leaves_a_first_probe_unanswered_gets_no_new_work_if_there_is_a_choice() -> None:
    made = settled()
    stuck(made, "a1")
    while made.view.endpoints["a1"].suspect_until <= made.now:
        made.run(0.05, {"a1": False}, beating=BOTH)
    assert not deaths(made)
    places = set()
    for i in range(20):
        _, step = made.core.begin(facts(f"n{i}"), made.now, no_revoke)
        assert isinstance(step, SendToEndpoint)
        places.add(step.target.name)
    assert places == {"a2"}


def test_leases_of_nearly_all_nodes_that_lapse_together_are_given_longer() -> None:
    names = ("a1", "a2", "a3", "a4")
    made = simple({"eu-west-a": 4})
    made.run(3.0, beating=names)
    made.actions.clear()
    made.run(1.8)
    assert not any(isinstance(a, DeclareSuspect) for a in made.actions)
    made.run(2.0, dict.fromkeys(names, False))
    assert len([a for a in deaths(made) if a.scope == "node"]) == 4


def test_leases_of_a_whole_zone_are_not() -> None:
    made = simple({"eu-west-a": 2, "eu-west-b": 2})
    others = ("b1", "b2")
    began = made.now
    while {n for n in ("a1", "a2") if made.view.endpoints[n].dead} != {"a1", "a2"}:
        for name in others:
            made.report(f"node-{name}", [endpoint(name, [f"GPU-{name}"])], zone="eu-west-b", gpus=[gpu(f"GPU-{name}")])
        made.run(0.1, {"a1": False, "a2": False})
        assert made.now - began < 2.0


def test_leases_that_lapse_one_after_the_other_lapse_together() -> None:
    names = ("a1", "a2", "a3", "a4")
    made = simple({"eu-west-a": 4})
    made.run(3.0, beating=names)
    for name in names:  # each at a time of its own
        made.run(0.1)
        made.report(f"node-{name}", [endpoint(name, [f"GPU-{name}"])], gpus=[gpu(f"GPU-{name}")])
    made.actions.clear()
    made.run(2.0)
    assert not any(isinstance(a, DeclareSuspect) for a in made.actions)


def test_a_probe_asked_of_a_silent_node_says_nothing_once_the_node_is_back() -> None:
    made = settled()
    while not any(isinstance(a, DeclareSuspect) for a in made.actions):
        made.tick()
    assert asked(made)
    made.report("node-a1", [endpoint("a1", ["GPU-a1"])], gpus=[gpu("GPU-a1")])
    made.now += 0.2
    assert made.core.on_probe("a1", ProbeOutcome.SILENT, made.now) == ()
    assert not made.view.endpoints["a1"].dead
