"""Node reports and directives, to and from protobuf. What a peer sends is bounded and made finite here."""

from __future__ import annotations

import math

from fleet.accelerator import AcceleratorState, DeviceHealth, XidEvent
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, EngineLoad, ServedModel
from fleet.report import AgentPhase, NodeDirective, NodeReport
from fleet.wire.headrace.v1 import agent_pb2, common_pb2

MAX_GPUS = 1024
MAX_ENDPOINTS = 1024

_HEALTH_TO_WIRE: dict[DeviceHealth, common_pb2.DeviceHealth] = {
    DeviceHealth.UNKNOWN: common_pb2.DEVICE_HEALTH_UNSPECIFIED,
    DeviceHealth.OK: common_pb2.DEVICE_HEALTH_OK,
    DeviceHealth.DEGRADED: common_pb2.DEVICE_HEALTH_DEGRADED,
    DeviceHealth.FAILED: common_pb2.DEVICE_HEALTH_FAILED,
    DeviceHealth.LOST: common_pb2.DEVICE_HEALTH_LOST,
}
_HEALTH_FROM_WIRE = {int(v): k for k, v in _HEALTH_TO_WIRE.items()}
_PHASE_TO_WIRE: dict[EndpointPhase, common_pb2.EndpointPhase] = {
    EndpointPhase.STARTING: common_pb2.ENDPOINT_PHASE_STARTING,
    EndpointPhase.WARMING: common_pb2.ENDPOINT_PHASE_WARMING,
    EndpointPhase.READY: common_pb2.ENDPOINT_PHASE_READY,
    EndpointPhase.DRAINING: common_pb2.ENDPOINT_PHASE_DRAINING,
    EndpointPhase.UNREACHABLE: common_pb2.ENDPOINT_PHASE_UNREACHABLE,
    EndpointPhase.STOPPED: common_pb2.ENDPOINT_PHASE_STOPPED,
}
_PHASE_FROM_WIRE = {int(v): k for k, v in _PHASE_TO_WIRE.items()}
_AGENT_PHASE_TO_WIRE: dict[AgentPhase, agent_pb2.AgentPhase] = {
    AgentPhase.RUNNING: agent_pb2.AGENT_PHASE_RUNNING,
    AgentPhase.RESTARTING: agent_pb2.AGENT_PHASE_RESTARTING,
    AgentPhase.DRAINING: agent_pb2.AGENT_PHASE_DRAINING,
}
_AGENT_PHASE_FROM_WIRE = {int(v): k for k, v in _AGENT_PHASE_TO_WIRE.items()}


def seconds_to_ms(seconds: float) -> int:
    """Whole milliseconds, never negative."""
    return max(0, round(seconds * 1000))


def finite(value: float, low: float, high: float) -> float | None:
    """A number a peer sent, clamped to what it can mean; None when it is not a number (rel-S13)."""
    return min(max(value, low), high) if math.isfinite(value) else None


def accelerator_to_wire(gpu: AcceleratorState) -> common_pb2.Accelerator:
    return common_pb2.Accelerator(
        uuid=gpu.uuid,
        index=gpu.index,
        parent_uuid=gpu.parent_uuid,
        raw_name=gpu.raw_name,
        product=gpu.product,
        mig_profile=gpu.mig_profile,
        pci_bus_id=gpu.pci_bus_id,
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=gpu.memory_used_mib,
        utilisation=gpu.utilisation,
        temperature_celsius=gpu.temperature_celsius,
        power_watts=gpu.power_watts,
        sm_clock_mhz=gpu.sm_clock_mhz,
        sm_clock_max_mhz=gpu.sm_clock_max_mhz,
        throttle_reasons=gpu.throttle_reasons,
        ecc_uncorrected=gpu.ecc_uncorrected,
        xids=[common_pb2.Xid(code=x.code, age_ms=seconds_to_ms(x.age_seconds)) for x in gpu.xids],
        health=_HEALTH_TO_WIRE[gpu.health],
        health_reason=gpu.health_reason,
        sample_age_ms=None if gpu.sample_age_seconds is None else seconds_to_ms(gpu.sample_age_seconds),
    )


def accelerator_from_wire(m: common_pb2.Accelerator) -> AcceleratorState:
    return AcceleratorState(
        uuid=m.uuid,
        index=m.index if m.HasField("index") else None,
        parent_uuid=m.parent_uuid,
        raw_name=m.raw_name,
        product=m.product,
        mig_profile=m.mig_profile,
        pci_bus_id=m.pci_bus_id,
        memory_total_mib=m.memory_total_mib if m.HasField("memory_total_mib") else None,
        memory_used_mib=m.memory_used_mib if m.HasField("memory_used_mib") else None,
        utilisation=finite(m.utilisation, 0.0, 1.0) if m.HasField("utilisation") else None,
        temperature_celsius=finite(m.temperature_celsius, -100.0, 1000.0)
        if m.HasField("temperature_celsius")
        else None,
        power_watts=finite(m.power_watts, 0.0, 1e6) if m.HasField("power_watts") else None,
        sm_clock_mhz=m.sm_clock_mhz if m.HasField("sm_clock_mhz") else None,
        sm_clock_max_mhz=m.sm_clock_max_mhz if m.HasField("sm_clock_max_mhz") else None,
        throttle_reasons=tuple(m.throttle_reasons),
        ecc_uncorrected=m.ecc_uncorrected if m.HasField("ecc_uncorrected") else None,
        xids=tuple(XidEvent(x.code, x.age_ms / 1000) for x in m.xids),
        health=_HEALTH_FROM_WIRE.get(m.health, DeviceHealth.UNKNOWN),
        health_reason=m.health_reason,
        sample_age_seconds=m.sample_age_ms / 1000 if m.HasField("sample_age_ms") else None,
    )


def _load_to_wire(load: EngineLoad) -> common_pb2.EngineLoad:
    return common_pb2.EngineLoad(
        running=load.running,
        waiting=load.waiting,
        kv_usage=load.kv_usage,
        prompt_tokens_total=load.prompt_tokens_total,
        cached_tokens_total=load.cached_tokens_total,
        generated_tokens_total=load.generated_tokens_total,
        preemptions_total=load.preemptions_total,
        sample_age_ms=None if load.sample_age_seconds is None else seconds_to_ms(load.sample_age_seconds),
    )


def _load_from_wire(m: common_pb2.EngineLoad) -> EngineLoad:
    def counter(name: str) -> float | None:
        return finite(getattr(m, name), 0.0, 1e18) if m.HasField(name) else None

    return EngineLoad(
        running=m.running if m.HasField("running") else None,
        waiting=m.waiting if m.HasField("waiting") else None,
        kv_usage=finite(m.kv_usage, 0.0, 1.0) if m.HasField("kv_usage") else None,
        prompt_tokens_total=counter("prompt_tokens_total"),
        cached_tokens_total=counter("cached_tokens_total"),
        generated_tokens_total=counter("generated_tokens_total"),
        preemptions_total=counter("preemptions_total"),
        sample_age_seconds=m.sample_age_ms / 1000 if m.HasField("sample_age_ms") else None,
    )


def endpoint_to_wire(e: EndpointReport, *, with_api_key: bool = True) -> common_pb2.Endpoint:
    """``with_api_key`` is for the way from agent to router only."""
    return common_pb2.Endpoint(
        uid=e.uid,
        name=e.name,
        kind=e.kind.value,
        url=e.url,
        models=[common_pb2.ServedModel(model=s.model, served_as=s.served_as) for s in e.models],
        phase=_PHASE_TO_WIRE[e.phase],
        reason=e.reason,
        gpu_uuids=e.gpu_uuids,
        gpus_known=e.gpus_known,
        tensor_parallel=e.tensor_parallel,
        max_inflight=e.max_inflight,
        kv_tokens=e.kv_tokens,
        context_tokens=e.context_tokens,
        engine_incarnation=e.engine_incarnation,
        load=_load_to_wire(e.load),
        auth_failed=e.auth_failed,
        metrics_fresh=e.metrics_fresh,
        api_key=e.api_key if with_api_key else "",
    )


def endpoint_from_wire(m: common_pb2.Endpoint) -> EndpointReport:
    try:
        kind = EngineKind(m.kind)
    except ValueError:
        kind = EngineKind.OPENAI  # a kind of a newer agent: whatever else it is, it speaks the OpenAI API
    return EndpointReport(
        uid=m.uid,
        name=m.name,
        kind=kind,
        url=m.url,
        models=tuple(ServedModel(s.model, s.served_as or s.model) for s in m.models),
        phase=_PHASE_FROM_WIRE.get(m.phase, EndpointPhase.UNREACHABLE),
        reason=m.reason,
        gpu_uuids=tuple(m.gpu_uuids),
        gpus_known=m.gpus_known,
        tensor_parallel=max(1, m.tensor_parallel),
        max_inflight=m.max_inflight if m.HasField("max_inflight") else None,
        kv_tokens=m.kv_tokens if m.HasField("kv_tokens") else None,
        context_tokens=m.context_tokens if m.HasField("context_tokens") else None,
        engine_incarnation=m.engine_incarnation,
        load=_load_from_wire(m.load),
        auth_failed=m.auth_failed,
        metrics_fresh=m.metrics_fresh,
        api_key=m.api_key,
    )


def node_report_to_wire(r: NodeReport) -> agent_pb2.NodeReport:
    return agent_pb2.NodeReport(
        node_uid=r.node_uid,
        node_name=r.node_name,
        zone=r.zone,
        incarnation=r.incarnation,
        sequence=r.sequence,
        phase=_AGENT_PHASE_TO_WIRE[r.phase],
        interval_ms=seconds_to_ms(r.interval_seconds),
        gpus=[accelerator_to_wire(g) for g in r.gpus],
        endpoints=[endpoint_to_wire(e) for e in r.endpoints],
        addresses=r.addresses,
        restart_grace_ms=seconds_to_ms(r.restart_grace_seconds),
        device_error=r.device_error,
        agent_version=r.agent_version,
    )


def node_report_from_wire(m: agent_pb2.NodeReport) -> NodeReport:
    """Raises ValueError when the report is larger than any node can be."""
    if len(m.gpus) > MAX_GPUS or len(m.endpoints) > MAX_ENDPOINTS:
        raise ValueError(f"a report holds at most {MAX_GPUS} devices and {MAX_ENDPOINTS} endpoints")
    return NodeReport(
        node_uid=m.node_uid,
        node_name=m.node_name,
        zone=m.zone,
        incarnation=m.incarnation,
        sequence=m.sequence,
        phase=_AGENT_PHASE_FROM_WIRE.get(m.phase, AgentPhase.RUNNING),
        interval_seconds=min(max(m.interval_ms / 1000, 0.05), 60.0),
        gpus=tuple(accelerator_from_wire(g) for g in m.gpus),
        endpoints=tuple(endpoint_from_wire(e) for e in m.endpoints),
        addresses=tuple(m.addresses),
        restart_grace_seconds=min(m.restart_grace_ms / 1000, 3600.0),
        device_error=m.device_error,
        agent_version=m.agent_version,
    )


def directive_to_wire(d: NodeDirective) -> agent_pb2.NodeDirective:
    return agent_pb2.NodeDirective(
        epoch=d.epoch,
        version=d.version,
        routers=d.routers,
        cordoned=d.cordoned,
        draining=d.draining,
        report_interval_ms=None if d.report_interval_seconds is None else seconds_to_ms(d.report_interval_seconds),
        rejoin=d.rejoin,
    )


def directive_from_wire(m: agent_pb2.NodeDirective) -> NodeDirective:
    return NodeDirective(
        m.epoch,
        m.version,
        tuple(m.routers),
        m.cordoned,
        m.draining,
        m.report_interval_ms / 1000 if m.HasField("report_interval_ms") else None,
        m.rejoin,
    )
