"""What the debugging pages show: the router's own picture, in plain JSON values, without secrets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fleet.capacity import CapacityRow, InventoryNode
from fleet.clock import Clock
from fleet.intent import Intent
from regional.fleetview.view import FleetView
from regional.shared.base import RouterLoad
from regional.shared.siblings import Siblings
from regional.sync.held import HeldSnapshot
from regional.sync.peers import Peers
from regional.sync.watch import Freshness


class Streams(Protocol):
    """Agents' streams, counted."""

    @property
    def streams(self) -> int: ...


def router_pages(
    view: FleetView,
    intent: Callable[[], Intent],
    freshness: Freshness,
    held: HeldSnapshot,
    peers: Peers,
    siblings: Siblings,
    agents: Streams,
    clock: Clock,
) -> dict[str, Callable[[], Any]]:
    """All pages by name. Each is made anew when it is asked for."""
    now = clock.monotonic
    return {
        "endpoints": lambda: {"nodes": [node_page(n) for n in view.inventory(now())]},
        "capacity": lambda: {"rows": [row_page(r) for r in view.capacity_rows(now())]},
        "inflight": lambda: {"endpoints": {uid: list(pair) for uid, pair in view.own_load().items()}},
        "snapshot": lambda: intent_page(
            intent(), freshness.age_seconds(), freshness.connected, [str(r) for r in held.rejections]
        ),
        "peers": lambda: {"rtt_seconds": dict(peers.rtts(now()))},
        "siblings": lambda: {"routers": [sibling_page(s) for s in siblings.routers()]},
        "agents": lambda: {"streams": agents.streams},
    }


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
        "bans": dict(load.bans),
    }
