"""The live view: counts that are exact, findings that hold, agents that lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.endpoint import EndpointPhase, EngineKind, EngineLoad, ServedModel
from fleet.intent import DeclaredGpus, EndpointIntent, HoldState, NodeIntent
from fleet.locality import Zone
from fleet.report import AgentPhase
from fleet.request import Usage
from regional.fleetview.bounds import bounded, url_problem
from regional.fleetview.loads import SiblingWord, others_load
from regional.fleetview.view import ReportVerdict
from regional.request.life import Life
from regional.request.steps import AttemptResult, Outcome, SendToEndpoint
from tests.regional_decisions.fleets import (
    MODEL,
    ZONES,
    Rig,
    endpoint,
    facts,
    gpu,
    hold,
    intent,
    no_revoke,
    rig,
    simple,
)


def names(made: Rig, count: int = 40) -> set[str]:
    """Where a number of requests go now; each ends at once."""
    found = set()
    for i in range(count):
        life, step = made.core.begin(facts(str(i)), made.now, no_revoke)
        if isinstance(step, SendToEndpoint):
            found.add(step.target.name)
        life.on_end(Outcome.ABORTED, Usage(), made.now)
    return found


# In-flight


ENDS: list[Callable[[Life, float], object]] = [
    lambda life, now: life.on_end(Outcome.OK, Usage(1, 1, 0), now),
    lambda life, now: life.on_end(Outcome.ABORTED, Usage(), now),
    lambda life, now: life.on_attempt_failed(AttemptResult(Outcome.TIMEOUT_FIRST_BYTE), now),
    lambda life, now: life.on_attempt_failed(AttemptResult(Outcome.RESET), now),
    lambda life, now: (life.on_first_byte(now), life.on_end(Outcome.STREAM_BROKEN, Usage(), now)),
    lambda life, now: (life.on_first_byte(now), life.on_end(Outcome.TIMEOUT_IDLE, Usage(), now)),
]


@pytest.mark.parametrize("end", ENDS)
def test_case_f01_in_flight_returns_to_zero_whatever_happens(end: Callable[[Life, float], object]) -> None:
    made = simple({"eu-west-a": 3})
    lives = [made.core.begin(facts(str(i)), made.now, no_revoke)[0] for i in range(50)]
    assert sum(made.inflight().values()) == 50
    for life in lives:
        end(life, made.now + 1)
        life.on_end(Outcome.ABORTED, Usage(), made.now + 1)
        life.on_end(Outcome.ABORTED, Usage(), made.now + 1)
    assert set(made.inflight().values()) == {0}
    for row in made.view.endpoints.values():
        assert (row.own_unread, row.own_context, len(row.pending), row.breaker.trials) == (0.0, 0.0, 0, 0)
    assert made.view.own_load() == {}


def test_case_f03_reports_probes_and_recoveries_leave_in_flight_alone() -> None:
    made = simple({"eu-west-a": 1})
    lives = [made.core.begin(facts(str(i)), made.now, no_revoke)[0] for i in range(30)]
    for round_ in range(12):
        phase = EndpointPhase.UNREACHABLE if round_ % 3 == 0 else EndpointPhase.READY
        made.report("node-a1", [endpoint("a1", ["GPU-a1"], phase=phase)], gpus=[gpu("GPU-a1")])
        made.probed(made.tick(), {"a1": round_ % 4 != 0})
        assert made.inflight() == {"a1": 30}
    made.report("node-a1", [])  # it leaves, and comes back
    assert made.inflight() == {"a1": 30}
    made.report("node-a1", [endpoint("a1", ["GPU-a1"])], gpus=[gpu("GPU-a1")])
    assert made.inflight() == {"a1": 30}
    for life in lives:
        life.on_end(Outcome.OK, Usage(), made.now)
    assert made.inflight() == {"a1": 0}


def test_a_vanished_endpoint_is_kept_until_its_last_request_has_ended() -> None:
    made = simple({"eu-west-a": 2})
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    gone = step.target.name
    life.on_first_byte(made.now)
    made.report(f"node-{gone}", [])
    assert names(made) == {"a1", "a2"} - {gone}
    assert made.view.counts(made.now).endpoints == {"ready": 1}
    life.on_end(Outcome.OK, Usage(), made.now)
    assert gone not in made.view.endpoints


# Others' load


def test_siblings_count_only_when_newer_than_the_engines_sample() -> None:
    sample = EngineLoad(running=10, waiting=2, sample_age_seconds=0.0)
    newer = [SiblingWord(4, 100.0, 11.0), SiblingWord(1, 10.0, 12.0)]
    older = [SiblingWord(4, 100.0, 9.0)]
    assert others_load(sample, 10.0, 3, newer, 50.0) == (5, 110.0, 2)
    assert others_load(sample, 10.0, 3, older, 50.0).inflight == 9  # 12 in the engine, 3 of them ours
    assert others_load(EngineLoad(), None, 0, older, 50.0).inflight == 4
    assert others_load(EngineLoad(), None, 0, [], 50.0) == (0, 0.0, 0)


def test_a_siblings_word_lapses_after_its_time() -> None:
    made = simple({"eu-west-a": 2})
    made.now += 0.01
    made.view.set_sibling_load("router-2", {"a1": (50, 20_000.0)}, made.now)
    assert made.view.endpoints["a1"].others == 50
    assert names(made) == {"a2"}
    made.tick(1.1)
    assert made.view.endpoints["a1"].others == 0
    assert made.view.endpoints["a1"].others_unread == 0.0


def test_a_siblings_new_word_replaces_its_old_one() -> None:
    made = simple({"eu-west-a": 2})
    made.now += 0.01
    made.view.set_sibling_load("router-2", {"a1": (5, 0.0)}, made.now)
    made.view.set_sibling_load("router-2", {"a2": (7, 0.0)}, made.now)
    assert [made.view.endpoints[n].others for n in ("a1", "a2")] == [0, 7]


def test_unknown_load_is_not_zero_load() -> None:
    made = rig()
    made.report("n1", [endpoint("known", host="10.0.0.1")])
    made.report("n2", [endpoint("unknown", host="10.0.0.1", load=EngineLoad())])
    made.tick(0.1)
    made.tick(6.0)
    for node, name in (("n1", "known"), ("n2", "unknown")):
        load = EngineLoad() if name == "unknown" else EngineLoad(running=0, waiting=0, sample_age_seconds=0.0)
        made.report(node, [endpoint(name, load=load)])
    made.tick()
    assert names(made) == {"known"}


# Devices


def spread() -> Rig:
    """Two nodes: one endpoint on a GPU each, one over both nodes, one on a MIG instance."""
    made = rig()
    for n in ("1", "2"):
        made.report(
            f"n{n}",
            [endpoint(f"single{n}", [f"G{n}"])]
            + ([endpoint("both", ["G1b", "G2b"]), endpoint("mig", ["MIG-1"])] if n == "1" else []),
            gpus=[gpu(f"G{n}"), gpu(f"G{n}b"), *([gpu("P"), gpu("MIG-1", parent="P")] if n == "1" else [])],
        )
    made.tick(0.1)
    assert names(made) == {"single1", "single2", "both", "mig"}
    return made


def again(made: Rig, node: str, bad: str, health: DeviceHealth = DeviceHealth.FAILED) -> None:
    state = made.view.nodes[node]
    gpus = [gpu(u, health if u == bad else DeviceHealth.OK, parent=g.parent_uuid) for u, g in state.gpus.items()]
    reports = [e.report for e in state.endpoints.values() if e.report is not None]
    made.report(node, reports, gpus=gpus)


@pytest.mark.parametrize(
    ("node", "bad", "left"),
    [
        ("n1", "G1", {"single2", "both", "mig"}),
        ("n1", "G1b", {"single1", "single2", "mig"}),
        ("n2", "G2b", {"single1", "single2", "mig"}),
        ("n1", "P", {"single1", "single2", "both"}),
        ("n1", "MIG-1", {"single1", "single2", "both"}),
    ],
)
def test_a_failed_gpu_takes_out_exactly_its_endpoints(node: str, bad: str, left: set[str]) -> None:
    made = spread()
    lost: list[tuple[str, ...]] = []
    made.view.subscribe_lost(lambda uids, scope: lost.append((*uids, scope)))
    again(made, node, bad)
    assert names(made) == left
    assert [entry[1] for entry in lost] == ["gpu"]
    again(made, node, "")
    made.tick()
    assert names(made) == {"single1", "single2", "both", "mig"}


def test_case_g05_an_unreadable_gpu_leaves_its_endpoints_in() -> None:
    made = spread()
    again(made, "n1", "G1", DeviceHealth.UNKNOWN)
    assert "single1" in names(made)


def test_a_failed_gpu_revokes_what_waits_there_and_nothing_else() -> None:
    made = spread()
    revoked: list[str] = []
    lives = []
    for i in range(40):
        uid = str(i)
        life, step = made.core.begin(facts(uid), made.now, lambda uid=uid: revoked.append(uid))  # type: ignore[misc]
        assert isinstance(step, SendToEndpoint)
        if i % 2:
            life.on_first_byte(made.now)
        lives.append((uid, step.target.name, i % 2 == 0))
    again(made, "n1", "G1")
    assert revoked == [uid for uid, name, waiting in lives if name == "single1" and waiting]
    assert revoked


def test_case_g07_the_index_of_a_gpu_says_nothing() -> None:
    made = spread()
    state = made.view.nodes["n1"]
    gpus = [
        AcceleratorState(u, index=9 - i, product=g.product, health=DeviceHealth.OK, parent_uuid=g.parent_uuid)
        for i, (u, g) in enumerate(state.gpus.items())
    ]
    made.report("n1", [e.report for e in state.endpoints.values() if e.report], gpus=gpus)
    assert names(made) == {"single1", "single2", "both", "mig"}


def test_case_g11_a_machine_installed_anew_replaces_its_former_self_once_that_is_silent() -> None:
    made = rig()
    made.report("old", [endpoint("e-old", ["g1"])], gpus=[gpu("g1"), gpu("g2")])
    made.report("new", [endpoint("e-new", ["g1"])], gpus=[gpu("g1"), gpu("g2")], accepted=False)
    made.now += 600
    made.report("new", [endpoint("e-new", ["g1"])], gpus=[gpu("g1"), gpu("g2")])
    assert set(made.view.nodes) == {"new"}
    assert made.view.counts(made.now).gpus == {"ok": 2}
    made.tick(0.1)
    assert names(made) == {"e-new"}


# Reports


def test_case_x03_only_newer_reports_are_taken() -> None:
    made = rig()
    told = made.report("n", [endpoint("e")])
    made.report("n", [endpoint("e"), endpoint("f")])
    assert made.view.apply_report(told, made.now).verdict is ReportVerdict.STALE
    assert set(made.view.endpoints) == {"e", "f"}
    made.sequences["n"] = 0
    made.report("n", [endpoint("e")], incarnation=2)  # a restarted agent counts from the start again
    assert set(made.view.endpoints) == {"e"}


def test_a_node_of_another_region_is_refused() -> None:
    made = rig()
    made.report("n", [endpoint("e")], zone="us-east-a", accepted=False)
    assert made.view.endpoints == {}


def test_case_s13_an_agent_speaks_for_its_own_endpoints_only() -> None:
    made = simple({"eu-west-a": 1})
    answer, _ = made.core.on_report(made.report("evil", []), made.now)
    made.report("evil", [endpoint("a1", host="10.0.0.1")])
    assert made.view.endpoints["a1"].node.uid == "node-a1"
    assert not answer.accepted  # the same report twice


def test_case_s13_numbers_that_cannot_be_true_are_bounded_and_do_not_hide_own_work() -> None:
    told = bounded(
        endpoint(
            "e", max_inflight=10**12, kv_tokens=-5, load=EngineLoad(running=-3, kv_usage=7.0, sample_age_seconds=-1.0)
        )
    )
    assert (told.max_inflight, told.kv_tokens, told.load.running, told.load.kv_usage) == (100_000, None, None, None)
    assert told.load.sample_age_seconds is None
    made = simple({"eu-west-a": 2})
    lives = [made.core.begin(facts(str(i)), made.now, no_revoke)[0] for i in range(20)]
    busy = made.view.endpoints["a1"].own
    liar = endpoint("a1", ["GPU-a1"], load=EngineLoad(running=0, waiting=0, sample_age_seconds=0.0))
    made.report("node-a1", [liar], gpus=[gpu("GPU-a1")])
    assert made.view.endpoints["a1"].inflight >= busy > 0
    for life in lives:
        life.on_end(Outcome.OK, Usage(), made.now)


@pytest.mark.parametrize(
    ("url", "ranges", "own", "good"),
    [
        ("http://10.2.3.4:9000", ("10.2.0.0/16",), (), True),
        ("http://10.3.3.4:9000", ("10.2.0.0/16",), ("10.3.3.4",), False),
        ("http://[::ffff:10.2.3.4]:9000", ("10.2.0.0/16",), (), True),
        ("http://10.3.3.4:9000", (), ("10.3.3.4",), True),
        ("http://10.3.3.5:9000", (), ("10.3.3.4",), False),
        ("http://169.254.169.254", (), ("169.254.169.254",), False),
        ("http://[fd00::10]:8000", ("fd00::/8",), (), True),
        ("http://0x0a020304:9000", ("10.2.0.0/16",), (), False),
        ("http://012.2.3.4:9000", ("10.2.0.0/16",), (), False),
        ("http://engine-1:9000", ("10.2.0.0/16",), ("engine-1",), True),
        ("http://metadata.internal", ("10.2.0.0/16",), (), False),
        ("http://user:pw@10.2.3.4", ("10.2.0.0/16",), (), False),
        ("ftp://10.2.3.4", ("10.2.0.0/16",), (), False),
        ("http://10.2.3.4/path", ("10.2.0.0/16",), (), False),
        ("http://10.2.3.4:99999999", ("10.2.0.0/16",), (), False),
    ],
)
def test_case_s08_an_endpoint_lies_in_its_zone(
    url: str, ranges: tuple[str, ...], own: tuple[str, ...], good: bool
) -> None:
    assert (url_problem(url, ranges, own, declared=False) == "") is good


def test_an_address_outside_the_zone_is_refused_and_told() -> None:
    zones = {**ZONES, "eu-west-a": Zone("z", "eu-west-a", "eu-west", frozenset({"EU"}), ("10.0.0.0/24",))}
    made = rig(given=intent(zones=zones))
    told = made.report("n", [endpoint("good"), endpoint("bad", host="192.168.1.1")])
    assert set(made.view.endpoints) == {"good"}
    answer = made.view.apply_report(told, made.now)
    assert answer.verdict is ReportVerdict.STALE


def test_endpoints_of_an_agent_vanish_a_day_after_it_fell_silent() -> None:
    made = simple({"eu-west-a": 1})
    made.tick(86_000)
    assert "a1" in made.view.endpoints
    made.tick(500)
    made.tick(20)
    assert made.view.endpoints == {}
    assert made.view.nodes == {}


# Intent


def test_an_engine_that_lists_an_alias_serves_the_model_that_has_it_also_when_the_alias_comes_later() -> None:
    made = rig()
    made.report("n-1", [endpoint("ep-1", models=["Llama"])])
    made.tick(0.1)
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    assert (step.target.name, step.target.served_as) == ("ep-1", "Llama")
    life.on_end(Outcome.ABORTED, Usage(), made.now)
    told = [e for n in made.view.inventory(made.now) for e in n.endpoints]
    assert [e.models for e in told] == [(ServedModel(MODEL, "Llama"),)]
    made.view.set_intent(intent(2, aliases={}), made.now)
    assert names(made) == set(), "without the alias it is another model"
    made.view.set_intent(intent(3), made.now)
    assert names(made) == {"ep-1"}


def declared(**changes: object) -> EndpointIntent:
    values: dict[str, object] = {
        "uid": "d1",
        "name": "engine-1",
        "node": "written",
        "url": "http://127.0.0.1:9300",
        "engine": EngineKind.VLLM,
        "models": (ServedModel(MODEL, "served"),),
        "gpus": ("GPU-d",),
        "api_key": "key-of-the-engine",
    }
    return EndpointIntent(**{**values, **changes})  # type: ignore[arg-type]


NODE = NodeIntent("n-w", "written", "eu-west-a", (DeclaredGpus("h100-sxm-80", 8),))


def test_a_declared_endpoint_is_there_at_once_and_behind_those_that_were_seen() -> None:
    given = intent(nodes={"written": NODE}, endpoints={"d1": declared()})
    made = rig(given=given)
    made.tick()
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    assert (step.target.name, step.target.served_as, step.target.api_key) == ("engine-1", "served", "key-of-the-engine")
    life.on_end(Outcome.ABORTED, Usage(), made.now)
    made.report("n", [endpoint("seen")])
    made.tick(0.2)
    assert names(made) == {"seen"}
    made.report("n-w", [endpoint("d1", host="127.0.0.1")])
    made.tick()
    assert "d1" in names(made)
    made.view.set_intent(intent(2), made.now)
    assert names(made) == {"seen"}


def test_a_node_that_still_reports_from_a_zone_that_is_gone_holds_up_no_intent() -> None:
    made = rig(given=intent(nodes={"written": NODE}))
    made.report("n-w", [endpoint("seen")], zone="eu-west-a")
    zones = {name: zone for name, zone in ZONES.items() if name != "eu-west-a"}
    moved = NodeIntent("n-w", "written", "eu-west-b", NODE.gpus)
    made.view.set_intent(intent(2, zones=zones, nodes={"written": moved}, endpoints={"d1": declared()}), made.now)
    assert made.view.endpoints["d1"].declared


def test_a_declared_endpoint_outside_its_zone_is_not_used() -> None:
    zones = {**ZONES, "eu-west-a": Zone("z", "eu-west-a", "eu-west", frozenset({"EU"}), ("10.0.0.0/24",))}
    made = rig(given=intent(zones=zones, nodes={"written": NODE}, endpoints={"d1": declared()}))
    assert made.view.endpoints == {}


@pytest.mark.parametrize(
    ("kind", "target", "left"),
    [
        ("endpoint", "a1", {"a2", "b1"}),
        ("gpu", "GPU-a1", {"a2", "b1"}),
        ("node", "node-a1", {"a2", "b1"}),
        ("zone", "z-eu-west-a", {"b1"}),
        ("region", "r-eu", set()),
    ],
)
@pytest.mark.parametrize("state", list(HoldState))
def test_a_hold_reaches_what_it_covers_and_survives_a_re_join(
    kind: str, target: str, left: set[str], state: HoldState
) -> None:
    made = simple({"eu-west-a": 2, "eu-west-b": 1})
    made.view.set_intent(intent(2, holds=hold(kind, target, state)), made.now)
    assert names(made) == left
    made.report("node-a1", [])
    made.report("node-a1", [endpoint("a1", ["GPU-a1"])], gpus=[gpu("GPU-a1")], incarnation=2)
    made.tick(0.1)
    assert names(made) == left
    cordoned, draining = made.view.wanted("node-a1")
    assert cordoned is (kind in ("node", "zone", "region"))
    assert draining is (cordoned and state is HoldState.DRAINING)
    made.view.set_intent(intent(3), made.now)
    assert names(made) == {"a1", "a2", "b1"}


def test_a_node_that_goes_away_takes_no_new_work_and_finishes_what_runs() -> None:
    made = simple({"eu-west-a": 2})
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    going = step.target.name
    told = [endpoint(going, [f"GPU-{going}"])]
    made.report(f"node-{going}", told, gpus=[gpu(f"GPU-{going}")], phase=AgentPhase.DRAINING)
    assert names(made) == {"a1", "a2"} - {going}
    assert made.view.counts(made.now).endpoints == {"ready": 1, "draining": 1}
    assert made.view.counts(made.now).nodes == {"ready": 1, "draining": 1}
    life.on_first_byte(made.now)
    assert life.on_end(Outcome.OK, Usage(), made.now).outcome is Outcome.OK


def test_a_hold_on_a_gpu_reaches_its_mig_instances() -> None:
    made = spread()
    made.view.set_intent(intent(2, holds=hold("gpu", "P")), made.now)
    assert names(made) == {"single1", "single2", "both"}


# What goes out


def test_rows_count_by_zone_and_model_and_leave_the_unknown_unknown() -> None:
    made = simple({"eu-west-a": 2, "eu-west-b": 1})
    life, _ = made.core.begin(facts(), made.now, no_revoke)
    rows = {r.zone: r for r in made.view.capacity_rows(made.now)}
    assert {z: (r.endpoints_ready, r.endpoints_total) for z, r in rows.items()} == {
        "eu-west-a": (2, 2),
        "eu-west-b": (1, 1),
    }
    assert sum(r.inflight for r in rows.values()) == 1
    assert rows["eu-west-a"].kv_free_tokens is None
    assert rows["eu-west-a"].waiting == 0
    life.on_end(Outcome.OK, Usage(), made.now)
    for n in ("a1", "a2"):
        made.report(f"node-{n}", [endpoint(n, [f"GPU-{n}"])], gpus=[gpu(f"GPU-{n}", DeviceHealth.LOST)])
    row = {r.zone: r for r in made.view.capacity_rows(made.now)}["eu-west-a"]
    assert (row.endpoints_ready, row.decode_tokens_per_second, row.expected_wait_seconds) == (0, None, None)


def test_the_inventory_tells_findings_and_no_keys() -> None:
    made = rig()
    made.report("n", [endpoint("e", ["g"], api_key="secret-key")], gpus=[gpu("g", DeviceHealth.FAILED)])
    (node,) = made.view.inventory(made.now)
    assert node.endpoints[0].api_key == ""
    assert node.endpoints[0].phase is EndpointPhase.UNREACHABLE
    assert "g" in node.endpoints[0].reason
    assert "secret-key" not in repr(node)


def test_own_load_and_bans_are_told_to_siblings() -> None:
    made = simple({"eu-west-a": 1, "eu-west-b": 1})
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    assert made.view.own_load() == {step.target.uid: (1, 100.0)}
    life.on_attempt_failed(AttemptResult(Outcome.OVERLOADED, 429, 15.0), made.now)
    assert made.view.own_bans(made.now) == {step.target.uid: pytest.approx(15.0)}
    other = simple({"eu-west-a": 1, "eu-west-b": 1})
    other.view.set_sibling_bans("router-1", made.view.own_bans(made.now), other.now)
    assert step.target.uid not in names(other)
    life.on_end(Outcome.ABORTED, Usage(), made.now)
