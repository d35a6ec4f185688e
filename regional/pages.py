"""What the debugging pages show: the router's own picture, in plain JSON values, without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.capacity import CapacityRow, InventoryNode
from fleet.intent import Intent
from regional.shared.base import RouterLoad


def node_page(node: InventoryNode) -> dict[str, Any]:
    """One node with its devices and endpoints."""
    return {
        "uid": node.node_uid,
        "name": node.node_name,
        "zone": node.zone,
        "state": node.state,
        "incarnation": node.incarnation,
        "sequence": node.sequence,
        "report_age_seconds": round(node.report_age_seconds, 3),
        "device_error": node.device_error,
        "gpus": [
            {
                "uuid": g.uuid,
                "index": g.index,
                "product": g.product,
                "health": g.health.value,
                "reason": g.health_reason,
                "utilisation": g.utilisation,
                "temperature_celsius": g.temperature_celsius,
            }
            for g in node.gpus
        ],
        "endpoints": [
            {
                "uid": e.uid,
                "name": e.name,
                "kind": e.kind.value,
                "url": e.url,
                "phase": e.phase.value,
                "reason": e.reason,
                "models": {m.model: m.served_as for m in e.models},
                "gpus": list(e.gpu_uuids),
                "running": e.load.running,
                "waiting": e.load.waiting,
                "kv_usage": e.load.kv_usage,
                "sample_age_seconds": e.load.sample_age_seconds,
            }
            for e in node.endpoints
        ],
    }


def row_page(row: CapacityRow) -> dict[str, Any]:
    return {
        "zone": row.zone,
        "model": row.model,
        "endpoints_ready": row.endpoints_ready,
        "endpoints_total": row.endpoints_total,
        "inflight": row.inflight,
        "waiting": row.waiting,
        "expected_wait_seconds": row.expected_wait_seconds,
        "kv_free_tokens": row.kv_free_tokens,
    }


def intent_page(
    intent: Intent, age_seconds: float | None, connected: bool, rejections: Sequence[str]
) -> dict[str, Any]:
    """Which intent is in use and how fresh it is; counts only, since it holds everybody's names."""
    return {
        "region": intent.region,
        "epoch": intent.at.epoch,
        "version": intent.at.version,
        "chain": intent.at.chain.hex(),
        "age_seconds": None if age_seconds is None else round(age_seconds, 3),
        "controlplane_connected": connected,
        "rejected_sections": list(rejections),
        "counts": {
            "regions": len(intent.regions),
            "zones": len(intent.zones),
            "nodes": len(intent.nodes),
            "endpoints": len(intent.endpoints),
            "models": len(intent.models),
            "routes": len(intent.routes),
            "tenants": len(intent.tenants),
            "keys": len(intent.keys_by_digest),
            "holds": len(intent.holds),
        },
    }


def sibling_page(load: RouterLoad) -> dict[str, Any]:
    return {
        "router_uid": load.router_uid,
        "incarnation": load.incarnation,
        "sequence": load.sequence,
        "grpc_addresses": list(load.grpc_addresses),
        "http_addresses": list(load.http_addresses),
        "outstanding": {uid: list(pair) for uid, pair in load.outstanding.items()},
    }
