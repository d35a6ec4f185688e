"""What the view tells upward: aggregates, inventory, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fleet.capacity import CapacityRow, InventoryNode
from fleet.endpoint import EndpointPhase, EndpointReport
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.node import Node
from regional.fleetview.pool import Pool, Seat, ZoneSlice
from regional.fleetview.standing import SUSPECT
from regional.routing.pricing import standing

ASSUMED_BATCH = 64
"""Batch at which decode capacity is reckoned where an engine does not say how many requests it runs at once."""


@dataclass(frozen=True, slots=True)
class StateCounts:
    """For gauges ``headrace_nodes{state}``, ``headrace_endpoints{state}``, ``headrace_gpus{state}``."""

    nodes: Mapping[str, int]
    endpoints: Mapping[str, int]
    gpus: Mapping[str, int]


def capacity_rows(pools: Iterable[Pool]) -> tuple[CapacityRow, ...]:
    return tuple(_row(pool, zone) for pool in pools for zone in pool.zones)


def _row(pool: Pool, zone: ZoneSlice) -> CapacityRow:
    seats = [s for s in pool.seats[zone.start : zone.stop] if s.position >= 0]
    ready = [s for s in seats if s.standing < SUSPECT]
    waiting = [s.endpoint.sample.waiting for s in seats if s.endpoint.sample.waiting is not None]
    free = [f for s in ready if (f := _kv_free(s)) is not None]
    return CapacityRow(
        zone=zone.zone,
        model=pool.model,
        endpoints_ready=len(ready),
        endpoints_total=len(seats),
        prefill_tokens_per_second=sum(1.0 / s.prefill_per_token for s in ready) if ready else None,
        decode_tokens_per_second=sum(_decode_rate(s) for s in ready) if ready else None,
        inflight=sum(s.own for s in seats),
        waiting=sum(waiting) if waiting else None,
        expected_wait_seconds=min(_first_token(s, pool.mean_input_tokens) for s in ready) if ready else None,
        kv_free_tokens=sum(free) if free else None,
    )


def _first_token(seat: Seat, input_tokens: float) -> float:
    return (
        seat.outer
        * seat.endpoint.sample_factor
        * (seat.wait + seat.prefill_floor + seat.prefill_per_token * input_tokens)
    )


def _decode_rate(seat: Seat) -> float:
    batch = seat.endpoint.max_inflight or ASSUMED_BATCH
    return batch / (seat.step_base + seat.step_per_sequence * batch)


def _kv_free(seat: Seat) -> int | None:
    endpoint = seat.endpoint
    usage = endpoint.sample.kv_usage
    if usage is None or endpoint.kv_tokens is None:
        return None
    return int(endpoint.kv_tokens * (1.0 - usage))


def inventory(nodes: Iterable[Node], now: float) -> tuple[InventoryNode, ...]:
    return tuple(
        InventoryNode(
            node_uid=node.uid,
            node_name=node.name,
            zone=node.zone,
            incarnation=node.order[0] if node.order else 0,
            sequence=node.order[1] if node.order else 0,
            state=node.state.value,
            report_age_seconds=node.silent_seconds(now),
            gpus=tuple(node.gpus.values()),
            endpoints=tuple(_told(e.report, e) for e in node.endpoints.values() if e.report is not None and not e.gone),
            device_error=node.device_error,
        )
        for node in sorted(nodes, key=lambda n: n.uid)
        if node.reported
    )


def _told(report: EndpointReport, endpoint: Endpoint) -> EndpointReport:
    """An endpoint's report with what this router found out itself, models by their own names, and without its key."""
    if report.models != endpoint.models and not endpoint.declared:
        report = replace(report, models=endpoint.models)
    if endpoint.gpu_down:
        return replace(report, api_key="", phase=EndpointPhase.UNREACHABLE, reason=endpoint.gpu_problem)
    if endpoint.dead:
        return replace(report, api_key="", phase=EndpointPhase.UNREACHABLE, reason="does not answer the router")
    if report.api_key:
        return replace(report, api_key="")
    return report


def counts(nodes: Iterable[Node], endpoints: Iterable[Endpoint], now: float) -> StateCounts:
    nodes = list(nodes)
    return StateCounts(
        nodes=Counter(n.state.value for n in nodes),
        endpoints=Counter(endpoint_state(e, now) for e in endpoints if not e.gone),
        gpus=Counter(g.health.value for n in nodes for g in n.gpus.values()),
    )


def endpoint_state(endpoint: Endpoint, now: float) -> str:
    """One word: ``ready``, or why not: ``starting``, ``device``, ``hold``, ``pause``, ``credentials``, ``ejected``, ``dead``..."""
    _, name = standing(endpoint, now)
    if name == "phase":
        ready = endpoint.phase is EndpointPhase.READY
        return EndpointPhase.DRAINING.value if ready else endpoint.phase.value
    if name == "life":
        return "dead" if endpoint.dead else "suspect"
    return name or "ready"
