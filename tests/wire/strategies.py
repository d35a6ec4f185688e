"""Hypothesis strategies for the words that travel. Numbers lie on the wire's own grid, so that a round trip can be exact."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fleet.accelerator import AcceleratorState, DeviceHealth, XidEvent
from fleet.capacity import (
    CapacityRow,
    DemandRow,
    FleetEvent,
    InventoryNode,
    RegionDirective,
    RegionObserved,
    RegionReport,
    RouterObserved,
)
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, EngineLoad, ServedModel
from fleet.report import AgentPhase, NodeDirective, NodeReport
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion

text = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.text("abcdefghij-", min_size=1, max_size=8)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
millis = st.integers(0, 10**9).map(lambda ms: ms / 1000)
ratio = st.floats(0, 1)
amount = st.floats(0, 1e9)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value, or unknown."""
    return st.none() | strategy


def tuples(strategy: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=size).map(tuple)


accelerators = st.builds(
    AcceleratorState,
    uuid=text,
    index=maybe(u32),
    parent_uuid=text,
    raw_name=text,
    product=text,
    mig_profile=text,
    pci_bus_id=text,
    memory_total_mib=maybe(u64),
    memory_used_mib=maybe(u64),
    utilisation=maybe(ratio),
    temperature_celsius=maybe(st.floats(-100, 1000)),
    power_watts=maybe(st.floats(0, 1e6)),
    sm_clock_mhz=maybe(u32),
    sm_clock_max_mhz=maybe(u32),
    throttle_reasons=tuples(text),
    ecc_uncorrected=maybe(u64),
    xids=tuples(st.builds(XidEvent, code=u32, age_seconds=millis)),
    health=st.sampled_from(DeviceHealth),
    health_reason=text,
    sample_age_seconds=maybe(millis),
)
loads = st.builds(
    EngineLoad,
    running=maybe(u32),
    waiting=maybe(u32),
    kv_usage=maybe(ratio),
    prompt_tokens_total=maybe(amount),
    cached_tokens_total=maybe(amount),
    generated_tokens_total=maybe(amount),
    preemptions_total=maybe(amount),
    sample_age_seconds=maybe(millis),
)
endpoints = st.builds(
    EndpointReport,
    uid=text,
    name=text,
    kind=st.sampled_from(EngineKind),
    url=text,
    models=tuples(st.builds(ServedModel, model=names, served_as=names)),
    phase=st.sampled_from(EndpointPhase),
    reason=text,
    gpu_uuids=tuples(text),
    gpus_known=st.booleans(),
    tensor_parallel=st.integers(1, 64),
    max_inflight=maybe(u32),
    kv_tokens=maybe(u64),
    context_tokens=maybe(u64),
    engine_incarnation=u64,
    load=loads,
    auth_failed=st.booleans(),
    metrics_fresh=st.booleans(),
    api_key=text,
)
node_reports = st.builds(
    NodeReport,
    node_uid=text,
    node_name=text,
    zone=text,
    incarnation=u64,
    sequence=u64,
    phase=st.sampled_from(AgentPhase),
    interval_seconds=st.integers(50, 60_000).map(lambda ms: ms / 1000),
    gpus=tuples(accelerators),
    endpoints=tuples(endpoints),
    addresses=tuples(text),
    restart_grace_seconds=st.integers(0, 3_600_000).map(lambda ms: ms / 1000),
    device_error=text,
    agent_version=text,
)
node_directives = st.builds(
    NodeDirective,
    epoch=u64,
    version=u64,
    routers=tuples(text),
    cordoned=st.booleans(),
    draining=st.booleans(),
    report_interval_seconds=maybe(st.integers(0, 60_000).map(lambda ms: ms / 1000)),
    rejoin=st.booleans(),
)
capacity_rows = st.builds(
    CapacityRow,
    zone=text,
    model=text,
    endpoints_ready=u32,
    endpoints_total=u32,
    prefill_tokens_per_second=maybe(amount),
    decode_tokens_per_second=maybe(amount),
    inflight=u32,
    waiting=maybe(u32),
    expected_wait_seconds=maybe(st.floats(0, 1e6)),
    kv_free_tokens=maybe(u64),
)
inventory_nodes = st.builds(
    InventoryNode,
    node_uid=text,
    node_name=text,
    zone=text,
    incarnation=u64,
    sequence=u64,
    state=text,
    report_age_seconds=millis,
    gpus=tuples(accelerators, 2),
    endpoints=tuples(endpoints.map(lambda e: _without_key(e)), 2),
    device_error=text,
)
events = st.builds(
    FleetEvent,
    uid=text,
    reason=text,
    message=text,
    kind=text,
    name=text,
    region=text,
    severity=text,
    wall=st.floats(0, 1e11),
)
region_reports = st.builds(
    RegionReport,
    router_uid=text,
    incarnation=u64,
    sequence=u64,
    region=text,
    http_addresses=tuples(text),
    grpc_addresses=tuples(text),
    ready=st.booleans(),
    applied_epoch=u64,
    applied_version=u64,
    rows=tuples(capacity_rows),
    demand=tuples(
        st.builds(
            DemandRow,
            origin=text,
            model=text,
            sla_class=text,
            requests_per_second=amount,
            input_tokens_per_second=st.none() | amount,
            output_tokens_per_second=st.none() | amount,
        )
    ),
    peer_rtt_seconds=st.dictionaries(text, st.floats(0, 3600), max_size=3).map(lambda d: tuple(sorted(d.items()))),
    inventory_digest=st.binary(max_size=16),
    inventory_full=st.booleans(),
    inventory=tuples(inventory_nodes, 2),
    inventory_removed=tuples(text),
    events=tuples(events, 2),
    rejections=tuples(text),
    version=text,
)
region_directives = st.builds(
    RegionDirective,
    acknowledged_incarnation=u64,
    acknowledged_sequence=u64,
    report_interval_seconds=st.integers(100, 60_000).map(lambda ms: ms / 1000),
    want_full_inventory=st.booleans(),
    acknowledged_events=tuples(text),
)
observed = st.builds(
    RegionObserved,
    region=text,
    routers=tuples(
        st.builds(
            RouterObserved,
            router_uid=text,
            incarnation=u64,
            sequence=u64,
            ready=st.booleans(),
            http_addresses=tuples(text),
            grpc_addresses=tuples(text),
        )
    ),
    rows=tuples(capacity_rows),
    age_seconds=millis,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
specs = st.dictionaries(names, json_values, max_size=3)
objects = st.builds(
    IntentObject,
    kind=st.sampled_from(["region", "zone", "node", "model", "tenant", "key", "new-kind"]),
    uid=st.integers(0, 12).map(str),
    name=names,
    generation=u64,
    spec=specs,
    labels=st.dictionaries(text, text, max_size=2),
    secrets=specs,
)
versions = st.builds(IntentVersion, epoch=u32, version=st.integers(1, 2**40), chain=st.binary(min_size=1, max_size=16))


@st.composite
def snapshots(draw: st.DrawFn) -> IntentSnapshot:
    return IntentSnapshot.of(draw(versions), draw(names), draw(st.lists(objects, max_size=8)))


@st.composite
def histories(draw: st.DrawFn, steps: int = 5) -> list[IntentSnapshot]:
    """Snapshots of one region at consecutive versions of one epoch."""
    first = draw(snapshots())
    history = [first]
    for number in range(draw(st.integers(1, steps))):
        table = dict(history[-1].objects)
        for obj in draw(st.lists(objects, max_size=3)):
            table[obj.key] = obj
        if table and draw(st.booleans()):
            del table[draw(st.sampled_from(sorted(table)))]
        at = IntentVersion(first.at.epoch, first.at.version + number + 1, draw(st.binary(min_size=1, max_size=16)))
        history.append(IntentSnapshot.of(at, first.region, table.values()))
    return history


def _without_key(endpoint: EndpointReport) -> EndpointReport:
    from dataclasses import replace

    return replace(endpoint, api_key="")
