"""Conditions: what is true of a node, GPU, endpoint or region now, in words that people and programs rely on.

``status`` is ``True``, ``False`` or ``Unknown``; unknown is never shown as false.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.capacity import InventoryNode
from fleet.endpoint import EndpointPhase, EndpointReport
from fleet.intent import HoldState

Condition = dict[str, Any]
"""type, status, reason, message, last_transition_time, observed_generation."""

SATURATED_KV_USAGE = 0.95


def condition(kind: str, state: bool | None, reason: str, message: str = "") -> Condition:
    """A condition without its time, which :func:`merged` gives it. ``state`` None is unknown."""
    status = "Unknown" if state is None else str(state)
    return {"type": kind, "status": status, "reason": reason, "message": message}


def merged(old: Iterable[Mapping[str, Any]], new: Iterable[Condition], at: str, generation: int = 1) -> list[Condition]:
    """``new`` with the time of each condition's last change: kept while its status stays, else ``at`` (RFC 3339)."""
    before = {c.get("type"): c for c in old}
    result = []
    for item in new:
        was = before.get(item["type"])
        unchanged = was is not None and was.get("status") == item["status"]
        since = was["last_transition_time"] if was is not None and unchanged else at
        result.append({**item, "last_transition_time": since, "observed_generation": generation})
    return result


def node_conditions(node: InventoryNode) -> list[Condition]:
    """Of a node that at least one live router knows."""
    lost = [g for g in node.gpus if not g.health.usable]
    unread = [g for g in node.gpus if g.health is DeviceHealth.UNKNOWN]
    fresh = node.state not in ("suspect", "dead", "degraded")
    ready = node.state == "ready"
    reason = {"ready": "Reporting", "draining": "Draining", "degraded": "AgentSilentEnginesAnswer"}.get(
        node.state, "AgentSilent"
    )
    if lost:
        devices = condition("DevicesHealthy", False, "DeviceFailed", ", ".join(f"{g.uuid} {g.health}" for g in lost))
    elif node.device_error or unread:
        devices = condition("DevicesHealthy", None, "DevicesUnreadable", node.device_error)
    else:
        devices = condition("DevicesHealthy", True, "AllDevicesOk" if node.gpus else "NoDevices")
    return [
        condition("Ready", ready, reason),
        condition("ReportsFresh", fresh, "Reporting" if fresh else "LeaseLapsed"),
        devices,
    ]


def gpu_conditions(gpu: AcceleratorState) -> list[Condition]:
    """Of one device: Ready says whether endpoints may use it."""
    ready = None if gpu.health is DeviceHealth.UNKNOWN else gpu.health.usable
    reason = {
        DeviceHealth.OK: "Ok",
        DeviceHealth.DEGRADED: "Degraded",
        DeviceHealth.FAILED: "Failed",
        DeviceHealth.LOST: "Lost",
        DeviceHealth.UNKNOWN: "Unreadable",
    }[gpu.health]
    return [condition("Ready", ready, reason, gpu.health_reason)]


def endpoint_conditions(endpoint: EndpointReport, node_state: str) -> list[Condition]:
    """Of one engine. ``node_state`` is that of the node it runs on."""
    dead = node_state == "dead"
    reachable = not dead and endpoint.phase not in (EndpointPhase.UNREACHABLE, EndpointPhase.STOPPED)
    warm: bool | None = endpoint.phase in (EndpointPhase.READY, EndpointPhase.DRAINING) if reachable else None
    return [
        condition("Reachable", reachable, "NodeDead" if dead else endpoint.phase.value.capitalize(), endpoint.reason),
        condition("MetricsFresh", endpoint.metrics_fresh, "Scraped" if endpoint.metrics_fresh else "NoRecentScrape"),
        condition("Warm", warm, endpoint.phase.value.capitalize()),
        _saturated(endpoint),
        condition(
            "EngineAuthFailed",
            endpoint.auth_failed,
            "KeyRefused" if endpoint.auth_failed else "KeyAccepted",
            "the engine refuses the key it was given" if endpoint.auth_failed else "",
        ),
        condition(
            "GPUsUnknown",
            not endpoint.gpus_known,
            "NotDeclaredNotDetected" if not endpoint.gpus_known else "Known",
            "" if endpoint.gpus_known else "name the engine's GPUs in the agent's settings",
        ),
    ]


def _saturated(endpoint: EndpointReport) -> Condition:
    load = endpoint.load
    if not endpoint.metrics_fresh or (load.waiting is None and load.kv_usage is None):
        return condition("Saturated", None, "NoMetrics")
    waiting = load.waiting is not None and load.waiting > 0
    full = load.kv_usage is not None and load.kv_usage >= SATURATED_KV_USAGE
    return condition("Saturated", waiting or full, "Queueing" if waiting else "KvCacheFull" if full else "HasRoom")


def region_conditions(live: int, ready: int) -> list[Condition]:
    """Of a region with ``live`` reporting routers, ``ready`` of them ready for traffic."""
    if not live:
        return [
            condition("RouterConnected", False, "NoReports", "no router of this region reports to the control plane")
        ]
    message = f"{ready} of {live} routers are ready"
    return [condition("RouterConnected", True, "Reporting" if ready else "NotReady", message)]


def hold_conditions(holds: Iterable[tuple[str, str]]) -> list[Condition]:
    """Cordoned and Draining from the holds (state, reason) that lie on a target, its own or those of a place around it."""
    reasons = dict(holds)
    draining = reasons.get(HoldState.DRAINING)
    cordoned = reasons.get(HoldState.CORDONED, draining)
    return [
        condition("Cordoned", cordoned is not None, "Held" if cordoned is not None else "NotHeld", cordoned or ""),
        condition("Draining", draining is not None, "Held" if draining is not None else "NotHeld", draining or ""),
    ]


def as_seen(conditions: Sequence[Mapping[str, Any]], region_connected: bool) -> list[Condition]:
    """Kept conditions as they may be shown now: when no router of the region reports, nobody knows (unknown, not false)."""
    if region_connected:
        return [dict(c) for c in conditions]
    return [
        {**c, "status": "Unknown", "reason": "RegionNotReporting", "message": "no router of the region reports it"}
        for c in conditions
    ]
