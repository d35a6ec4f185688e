"""Every word survives the wire, unknown values as unknown; what a peer must not send is bounded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.capacity import CapacityRow, InventoryNode, RegionReport
from fleet.endpoint import EndpointReport, EngineKind, EngineLoad
from fleet.report import AgentPhase, NodeReport
from fleet.snapshot import IntentSnapshot
from fleet.wire.headrace.v1 import agent_pb2, common_pb2, region_pb2, snapshot_pb2
from fleet.wire.regions import (
    observed_from_wire,
    observed_to_wire,
    region_directive_from_wire,
    region_directive_to_wire,
    region_report_from_wire,
    region_report_to_wire,
    row_from_wire,
    row_to_wire,
)
from fleet.wire.reports import (
    accelerator_from_wire,
    directive_from_wire,
    directive_to_wire,
    endpoint_from_wire,
    endpoint_to_wire,
    node_report_from_wire,
    node_report_to_wire,
)
from fleet.wire.snapshots import object_from_wire, object_to_wire, snapshot_from_chunks, snapshot_to_chunks
from tests.wire import strategies as words

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(words.node_reports)
def test_node_reports(report: NodeReport) -> None:
    wire = agent_pb2.NodeReport.FromString(node_report_to_wire(report).SerializeToString())
    assert node_report_from_wire(wire) == report


@quick
@given(words.node_directives)
def test_node_directives(directive: object) -> None:
    wire = agent_pb2.NodeDirective.FromString(directive_to_wire(directive).SerializeToString())
    assert directive_from_wire(wire) == directive


@quick
@given(words.region_reports)
def test_region_reports(report: RegionReport) -> None:
    wire = region_pb2.RegionReport.FromString(region_report_to_wire(report).SerializeToString())
    assert region_report_from_wire(wire) == report


@quick
@given(words.region_directives)
def test_region_directives(directive: object) -> None:
    wire = region_pb2.RegionDirective.FromString(region_directive_to_wire(directive).SerializeToString())
    assert region_directive_from_wire(wire) == directive


@quick
@given(words.observed)
def test_observed(observed: object) -> None:
    wire = region_pb2.RegionObserved.FromString(observed_to_wire(observed).SerializeToString())
    assert observed_from_wire(wire) == observed


@quick
@given(words.objects)
def test_intent_objects(obj: object) -> None:
    wire = snapshot_pb2.IntentObject.FromString(object_to_wire(obj).SerializeToString())
    assert object_from_wire(wire) == obj


@quick
@given(words.snapshots())
def test_snapshots(snapshot: IntentSnapshot) -> None:
    wire = [snapshot_pb2.SnapshotChunk.FromString(c.SerializeToString()) for c in snapshot_to_chunks(snapshot)]
    assert snapshot_from_chunks(wire) == snapshot


def test_unknown_stays_unknown_and_zero_stays_zero() -> None:
    unknown = CapacityRow("z", "m", 0, 0)
    zero = replace(
        unknown,
        prefill_tokens_per_second=0.0,
        decode_tokens_per_second=0.0,
        waiting=0,
        expected_wait_seconds=0.0,
        kv_free_tokens=0,
    )
    assert row_from_wire(row_to_wire(unknown)) == unknown
    assert row_from_wire(row_to_wire(zero)) == zero
    assert unknown != zero


def test_an_api_key_goes_from_agent_to_router_and_no_further() -> None:
    endpoint = EndpointReport("u", "n", EngineKind.VLLM, "http://x:1", (), words.EndpointPhase.READY, api_key="CANARY")
    assert endpoint_from_wire(endpoint_to_wire(endpoint)).api_key == "CANARY"
    node = InventoryNode("u", "n", "z", 1, 1, "ready", 0.0, endpoints=(endpoint,))
    report = RegionReport("r", 1, 1, "eu", (), (), True, 1, 1, inventory=(node,))
    assert b"CANARY" not in region_report_to_wire(report).SerializeToString()
    assert "CANARY" not in repr(endpoint)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_becomes_unknown(value: float) -> None:
    wire = common_pb2.Accelerator(uuid="g", utilisation=value, temperature_celsius=value, power_watts=value)
    assert accelerator_from_wire(wire) == AcceleratorState("g")
    load = endpoint_from_wire(common_pb2.Endpoint(load=common_pb2.EngineLoad(kv_usage=value))).load
    assert load == EngineLoad()
    row = row_from_wire(region_pb2.CapacityRow(expected_wait_seconds=value, decode_tokens_per_second=value))
    assert row == CapacityRow("", "", 0, 0)


def test_out_of_range_numbers_are_brought_into_range() -> None:
    wire = common_pb2.Accelerator(uuid="g", utilisation=1e308, power_watts=-5)
    assert (accelerator_from_wire(wire).utilisation, accelerator_from_wire(wire).power_watts) == (1.0, 0.0)
    assert node_report_from_wire(agent_pb2.NodeReport(interval_ms=0)).interval_seconds == 0.05


def test_words_of_a_newer_release_fall_back_to_the_safe_meaning() -> None:
    endpoint = endpoint_from_wire(common_pb2.Endpoint(kind="holographic", phase=99))
    assert endpoint.kind is EngineKind.OPENAI
    assert endpoint.phase is words.EndpointPhase.UNREACHABLE
    assert accelerator_from_wire(common_pb2.Accelerator(health=99)).health is DeviceHealth.UNKNOWN
    assert node_report_from_wire(agent_pb2.NodeReport(phase=99)).phase is AgentPhase.RUNNING


def test_a_report_larger_than_any_node_is_refused() -> None:
    wire = agent_pb2.NodeReport(gpus=[common_pb2.Accelerator(uuid=str(i)) for i in range(1025)])
    with pytest.raises(ValueError, match="1024"):
        node_report_from_wire(wire)


def test_fields_of_a_newer_release_are_passed_over() -> None:
    newer = snapshot_pb2.IntentObject(kind="k", uid="u").SerializeToString() + b"\xfa\x3e\x03new"  # field 1007
    assert object_from_wire(snapshot_pb2.IntentObject.FromString(newer)).uid == "u"
