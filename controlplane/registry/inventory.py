"""Nodes, GPUs and endpoints as routers report them, in the form in which they are kept and shown."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleet.accelerator import AcceleratorState
from fleet.capacity import InventoryNode
from fleet.endpoint import EndpointReport
from fleet.snapshot import canonical_json

KEEP_SECONDS = 24 * 3600.0
"""What nobody has reported for this long is gone."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing of a node, as kept. ``body`` is JSON and holds no secret."""

    kind: str
    """``node``, ``gpu`` or ``endpoint``."""
    uid: str
    name: str
    state: str
    body: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return (self.kind, self.uid)


def items_of(node: InventoryNode, declared: Mapping[str, str]) -> tuple[Item, ...]:
    """The node, its GPUs and its endpoints. ``declared`` names endpoints that are resources (uid to name).

    A thing that is listed twice counts once; the last one wins.
    """
    items = {
        ("node", node.node_uid): Item("node", node.node_uid, node.node_name, node.state, _node_body(node)),
    }
    for gpu in node.gpus:
        items["gpu", gpu.uuid] = Item("gpu", gpu.uuid, gpu.uuid, gpu.health.value, _gpu_body(gpu, node))
    for endpoint in node.endpoints:
        name = declared.get(endpoint.uid) or f"{node.node_name}.{endpoint.name}"
        body = _endpoint_body(endpoint, node)
        items["endpoint", endpoint.uid] = Item("endpoint", endpoint.uid, name, endpoint.phase.value, body)
    return tuple(items.values())


def _node_body(node: InventoryNode) -> dict[str, Any]:
    return {
        "zone": node.zone,
        "state": node.state,
        "device_error": node.device_error,
        "gpus": [g.uuid for g in node.gpus],
        "endpoints": [e.uid for e in node.endpoints],
        "report_age_seconds": node.report_age_seconds,
    }


def _gpu_body(gpu: AcceleratorState, node: InventoryNode) -> dict[str, Any]:
    body = asdict(gpu)
    body["throttle_reasons"] = list(gpu.throttle_reasons)
    body["xids"] = [{"code": x.code, "age_seconds": x.age_seconds} for x in gpu.xids]
    body["node"] = node.node_name
    body["endpoints"] = [e.uid for e in node.endpoints if gpu.uuid in e.gpu_uuids]
    return body


def _endpoint_body(endpoint: EndpointReport, node: InventoryNode) -> dict[str, Any]:
    body = asdict(endpoint)
    del body["api_key"]
    body["models"] = [{"name": m.model, "served_as": m.served_as} for m in endpoint.models]
    body["gpu_uuids"] = list(endpoint.gpu_uuids)
    body["node"] = node.node_name
    return body


_VOLATILE = frozenset(
    {
        "load",
        "memory_used_mib",
        "power_watts",
        "report_age_seconds",
        "sample_age_seconds",
        "sm_clock_mhz",
        "temperature_celsius",
        "utilisation",
        "xids",
    }
)


def signature(items: tuple[Item, ...]) -> bytes:
    """Digest of what is worth writing down at once; readings that always move are left out."""
    stable = [[i.kind, i.uid, i.name, i.state, {k: v for k, v in i.body.items() if k not in _VOLATILE}] for i in items]
    return hashlib.blake2b(canonical_json(stable), digest_size=16).digest()
