"""One report about a node, put together from what is known of its devices and engines. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agents.lifecycle import GpuBinding, device_fault, readable
from fleet.accelerator import AcceleratorState
from fleet.endpoint import EndpointPhase, EndpointReport
from fleet.report import AgentPhase, NodeReport


@dataclass(frozen=True, slots=True)
class NodeIdentityWords:
    """Who reports."""

    node_uid: str
    node_name: str
    zone: str
    incarnation: int
    addresses: tuple[str, ...]
    agent_version: str


def endpoint_uid(node_uid: str, engine_name: str) -> str:
    """An engine's identity: its name on its node, whatever its port (and the same in every router)."""
    try:
        namespace = uuid.UUID(node_uid)
    except ValueError:
        namespace = uuid.uuid5(uuid.NAMESPACE_OID, node_uid)
    return str(uuid.uuid5(namespace, engine_name))


def build_report(
    who: NodeIdentityWords,
    sequence: int,
    phase: AgentPhase,
    interval_seconds: float,
    devices: Sequence[AcceleratorState],
    device_error: str,
    endpoints: Sequence[EndpointReport],
    bindings: Mapping[str, GpuBinding],
    *,
    restart_grace_seconds: float = 120.0,
) -> NodeReport:
    """The full state of the node. ``bindings`` is by engine name; endpoints come from the watcher, without devices."""
    can_read = readable(devices) and not device_error
    return NodeReport(
        who.node_uid,
        who.node_name,
        who.zone,
        who.incarnation,
        sequence,
        phase,
        interval_seconds,
        tuple(devices),
        tuple(
            _endpoint(who.node_uid, e, bindings.get(e.name, GpuBinding()), devices, can_read, phase) for e in endpoints
        ),
        who.addresses,
        restart_grace_seconds,
        device_error,
        who.agent_version,
    )


def _endpoint(
    node_uid: str,
    endpoint: EndpointReport,
    binding: GpuBinding,
    devices: Sequence[AcceleratorState],
    can_read: bool,
    phase: AgentPhase,
) -> EndpointReport:
    fault = device_fault(binding, devices, readable=can_read)
    own_phase, reason = endpoint.phase, endpoint.reason
    if fault:
        own_phase, reason = EndpointPhase.STOPPED, fault
    elif phase is AgentPhase.DRAINING and own_phase in (EndpointPhase.READY, EndpointPhase.WARMING):
        own_phase, reason = EndpointPhase.DRAINING, "the node is draining"
    return replace(
        endpoint,
        uid=endpoint_uid(node_uid, endpoint.name),
        phase=own_phase,
        reason=reason,
        gpu_uuids=binding.uuids,
        gpus_known=binding.known,
    )
