"""Phases of an engine, models on offer, freshness, devices of an engine: pure decisions."""

from __future__ import annotations

import pytest

from agents.lifecycle import (
    EngineFacts,
    GpuBinding,
    Limits,
    bind_gpus,
    device_fault,
    engine_phase,
    idle,
    load_as_of,
    process_gpus,
    served_models,
)
from agents.report import NodeIdentityWords, build_report, endpoint_uid
from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, EngineLoad, ServedModel
from fleet.report import AgentPhase

NOW = 1000.0
UP = EngineFacts(last_answer_at=NOW, listed=("m",))
NODE = "0b5c1f7e-4a77-4b6e-9a0e-5a1f3c1f0001"


@pytest.mark.parametrize(
    ("facts", "phase", "why"),
    [
        (EngineFacts(), EndpointPhase.STARTING, "not answered"),
        (EngineFacts(refused=True, failure="connection refused"), EndpointPhase.STARTING, "refused"),
        (UP, EndpointPhase.READY, ""),
        (
            EngineFacts(last_answer_at=NOW - 1, refused=True, failure="connection refused"),
            EndpointPhase.UNREACHABLE,
            "refused",
        ),
        (EngineFacts(last_answer_at=NOW - 4, failure="timeout"), EndpointPhase.READY, ""),
        (EngineFacts(last_answer_at=NOW - 6, failure="timeout"), EndpointPhase.UNREACHABLE, "no answer for 6 s"),
        (EngineFacts(last_answer_at=NOW, auth_failed=True), EndpointPhase.UNREACHABLE, "api_key"),
        (EngineFacts(last_answer_at=NOW, loading=True), EndpointPhase.STARTING, "loading"),
        (EngineFacts(last_answer_at=NOW, unhealthy="HTTP 503"), EndpointPhase.STARTING, "503"),
        (EngineFacts(last_answer_at=NOW, unhealthy="HTTP 503", was_ready=True), EndpointPhase.UNREACHABLE, "503"),
        (EngineFacts(last_answer_at=NOW, asleep=True), EndpointPhase.STOPPED, "asleep"),
        (EngineFacts(last_answer_at=NOW, listed=()), EndpointPhase.STARTING, "no model"),
        (EngineFacts(last_answer_at=NOW, warm=False), EndpointPhase.WARMING, "warming"),
        (
            EngineFacts(last_answer_at=NOW, running=2, progress_at=NOW - 61),
            EndpointPhase.UNREACHABLE,
            "no token for 61 s",
        ),
        (EngineFacts(last_answer_at=NOW, running=0, progress_at=NOW - 61), EndpointPhase.READY, ""),
        (EngineFacts(last_answer_at=NOW, running=None, progress_at=NOW - 61), EndpointPhase.READY, ""),
        (EngineFacts(last_answer_at=NOW, running=2, progress_at=None), EndpointPhase.READY, ""),
    ],
)
def test_phase(facts: EngineFacts, phase: EndpointPhase, why: str) -> None:
    found, reason = engine_phase(facts, NOW, Limits())
    assert found is phase
    assert why in reason
    assert (reason == "") == (phase is EndpointPhase.READY)


def test_a_busy_engine_is_not_a_hanging_one() -> None:
    """Slow to answer but moving: kept. Answering but not moving: out (case-E01). They are told apart by tokens."""
    slow = EngineFacts(last_answer_at=NOW - 4.9, failure="timeout", running=60, progress_at=NOW - 5)
    assert engine_phase(slow, NOW, Limits())[0] is EndpointPhase.READY


def test_models_on_offer() -> None:
    llama, other = ServedModel("llama", "meta/llama"), ServedModel("other", "other")
    assert served_models((), ("a", "b"), strict=True)[0] == (ServedModel("a", "a"), ServedModel("b", "b"))
    assert served_models((), None, strict=True) == ((), "its models are not known: name them in the engine's models")
    assert served_models((llama, other), ("meta/llama",), strict=True)[0] == (llama,)
    assert served_models((llama,), ("x",), strict=True) == ((), "serves x, not meta/llama")
    assert served_models((llama,), ("x",), strict=False)[0] == (llama,)
    assert served_models((llama,), None, strict=True)[0] == (llama,)


def test_a_scrape_older_than_three_intervals_is_no_data() -> None:
    """Trap i."""
    load = EngineLoad(running=3, waiting=1, kv_usage=0.5)
    assert load_as_of(load, NOW - 1.1, NOW, 1.2) == (EngineLoad(3, 1, 0.5, sample_age_seconds=pytest.approx(1.1)), True)
    old, fresh = load_as_of(load, NOW - 1.3, NOW, 1.2)
    assert (old.running, old.waiting, old.kv_usage, fresh) == (None, None, None, False)
    assert old.sample_age_seconds == pytest.approx(1.3)
    assert load_as_of(load, None, NOW, 1.2) == (EngineLoad(), False)


def test_idle_is_known_or_not() -> None:
    assert idle(EngineLoad(running=0, waiting=0), True) is True
    assert idle(EngineLoad(running=0, waiting=2), True) is False
    assert idle(EngineLoad(), True) is None
    assert idle(EngineLoad(running=0), False) is None


def device(uuid: str, index: int, health: DeviceHealth = DeviceHealth.OK, **more: str) -> AcceleratorState:
    return AcceleratorState(uuid, index, health=health, **more)  # type: ignore[arg-type]


def test_case_g07_an_index_means_the_same_device_after_a_reorder() -> None:
    binding, pins = bind_gpus(["1"], [device("A", 0), device("B", 1)], {}, ())
    assert binding == GpuBinding(("B",), True)
    again, kept = bind_gpus(["1"], [device("B", 0), device("A", 1)], pins, ())
    assert again.uuids == ("B",)
    assert kept == pins
    by_uuid, _ = bind_gpus(["B", "MIG-1"], [device("B", 0)], {}, ())
    assert by_uuid == GpuBinding(("B", "MIG-1"), True)


def test_devices_from_the_process_list_or_not_known() -> None:
    assert bind_gpus([], [device("A", 0)], {}, ("A",))[0] == GpuBinding(("A",), True)
    assert not bind_gpus([], [device("A", 0)], {}, ())[0].known
    missing = bind_gpus(["7"], [device("A", 0)], {}, ())[0]
    assert (missing.known, missing.uuids) == (False, ())
    assert "index 7" in missing.reason
    instance = device("MIG-1", 0, parent_uuid="A")
    assert bind_gpus(["0"], [instance], {}, ())[0].known is False, "an index counts whole GPUs"


def test_processes_of_an_engine_are_found_by_descent() -> None:
    parents = {10: 1, 11: 10, 12: 11, 20: 1, 30: 31, 31: 30}
    assert process_gpus({10}, parents, {"A": (12,), "B": (20,), "C": (10, 99)}) == ("A", "C")
    assert process_gpus({10}, parents, {"A": (30,)}) == (), "a loop in the table ends"
    assert process_gpus(set(), parents, {"A": (12,)}) == ()


def test_a_device_takes_out_its_endpoint_only_when_something_is_known_against_it() -> None:
    lost = [device("A", 0, DeviceHealth.LOST, health_reason="gone"), device("B", 1)]
    both = GpuBinding(("A", "B"), True)
    assert "A lost: gone" in device_fault(both, lost, readable=True)
    assert device_fault(GpuBinding(("B",), True), lost, readable=True) == ""
    assert device_fault(GpuBinding(("Z",), True), lost, readable=True) == "Z is not on this node"
    assert device_fault(GpuBinding(("Z",), True), lost, readable=False) == ""
    assert device_fault(GpuBinding(), lost, readable=True) == ""
    unknown = [device("A", 0, DeviceHealth.UNKNOWN)]
    assert device_fault(GpuBinding(("A",), True), unknown, readable=False) == "", "case-G05"


def endpoint(name: str, phase: EndpointPhase = EndpointPhase.READY) -> EndpointReport:
    return EndpointReport("", name, EngineKind.VLLM, "http://10.0.0.1:1", (), phase)


def test_a_report_takes_out_exactly_the_endpoints_on_a_bad_device() -> None:
    who = NodeIdentityWords(NODE, "n", "z", 5, ("10.0.0.1",), "1")
    devices = [device("A", 0, DeviceHealth.FAILED, health_reason="XID 48"), device("B", 1)]
    bindings = {"a": GpuBinding(("A",), True), "b": GpuBinding(("B",), True), "ab": GpuBinding(("A", "B"), True)}
    endpoints = [endpoint(n) for n in ("a", "b", "ab", "c")]
    report = build_report(who, 9, AgentPhase.RUNNING, 0.4, devices, "", endpoints, bindings)
    phases = {e.name: e.phase for e in report.endpoints}
    stopped, ready = EndpointPhase.STOPPED, EndpointPhase.READY
    assert phases == {"a": stopped, "b": ready, "ab": stopped, "c": ready}
    assert "XID 48" in report.endpoints[0].reason
    assert report.order == (5, 9)
    assert report.endpoints[0].uid == endpoint_uid(NODE, "a")
    assert [e.gpus_known for e in report.endpoints] == [True, True, True, False]


def test_a_draining_node_drains_its_endpoints() -> None:
    who = NodeIdentityWords(NODE, "n", "z", 5, (), "1")
    endpoints = [endpoint("a"), endpoint("b", EndpointPhase.UNREACHABLE)]
    report = build_report(who, 1, AgentPhase.DRAINING, 0.4, (), "", endpoints, {})
    assert [e.phase for e in report.endpoints] == [EndpointPhase.DRAINING, EndpointPhase.UNREACHABLE]


def test_an_endpoints_uid_is_its_name_on_its_node() -> None:
    assert endpoint_uid(NODE, "llama-a") == endpoint_uid(NODE, "llama-a")
    assert endpoint_uid(NODE, "llama-a") != endpoint_uid(NODE, "llama-b")
    assert endpoint_uid("not-a-uuid", "llama-a") != endpoint_uid("another", "llama-a")
