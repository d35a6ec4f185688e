"""Region reports, directives and observed aggregates, to and from protobuf."""

from __future__ import annotations

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
from fleet.wire.headrace.v1 import region_pb2
from fleet.wire.reports import (
    accelerator_from_wire,
    accelerator_to_wire,
    endpoint_from_wire,
    endpoint_to_wire,
    finite,
    seconds_to_ms,
)


def row_to_wire(r: CapacityRow) -> region_pb2.CapacityRow:
    return region_pb2.CapacityRow(
        zone=r.zone,
        model=r.model,
        endpoints_ready=r.endpoints_ready,
        endpoints_total=r.endpoints_total,
        prefill_tokens_per_second=r.prefill_tokens_per_second,
        decode_tokens_per_second=r.decode_tokens_per_second,
        inflight=r.inflight,
        waiting=r.waiting,
        expected_wait_seconds=r.expected_wait_seconds,
        kv_free_tokens=r.kv_free_tokens,
    )


def row_from_wire(m: region_pb2.CapacityRow) -> CapacityRow:
    return CapacityRow(
        m.zone,
        m.model,
        m.endpoints_ready,
        m.endpoints_total,
        finite(m.prefill_tokens_per_second, 0, 1e12) if m.HasField("prefill_tokens_per_second") else None,
        finite(m.decode_tokens_per_second, 0, 1e12) if m.HasField("decode_tokens_per_second") else None,
        m.inflight,
        m.waiting if m.HasField("waiting") else None,
        finite(m.expected_wait_seconds, 0, 1e6) if m.HasField("expected_wait_seconds") else None,
        m.kv_free_tokens if m.HasField("kv_free_tokens") else None,
    )


def _node_to_wire(n: InventoryNode) -> region_pb2.InventoryNode:
    return region_pb2.InventoryNode(
        node_uid=n.node_uid,
        node_name=n.node_name,
        zone=n.zone,
        incarnation=n.incarnation,
        sequence=n.sequence,
        state=n.state,
        report_age_ms=seconds_to_ms(n.report_age_seconds),
        gpus=[accelerator_to_wire(g) for g in n.gpus],
        endpoints=[endpoint_to_wire(e, with_api_key=False) for e in n.endpoints],
        device_error=n.device_error,
    )


def _node_from_wire(m: region_pb2.InventoryNode) -> InventoryNode:
    return InventoryNode(
        m.node_uid,
        m.node_name,
        m.zone,
        m.incarnation,
        m.sequence,
        m.state,
        m.report_age_ms / 1000,
        tuple(accelerator_from_wire(g) for g in m.gpus),
        tuple(endpoint_from_wire(e) for e in m.endpoints),
        m.device_error,
    )


def region_report_to_wire(r: RegionReport) -> region_pb2.RegionReport:
    return region_pb2.RegionReport(
        router_uid=r.router_uid,
        incarnation=r.incarnation,
        sequence=r.sequence,
        region=r.region,
        http_addresses=r.http_addresses,
        grpc_addresses=r.grpc_addresses,
        ready=r.ready,
        applied_epoch=r.applied_epoch,
        applied_version=r.applied_version,
        rows=[row_to_wire(x) for x in r.rows],
        demand=[
            region_pb2.DemandRow(
                origin=d.origin,
                model=d.model,
                sla_class=d.sla_class,
                requests_per_second=d.requests_per_second,
                input_tokens_per_second=d.input_tokens_per_second,
                output_tokens_per_second=d.output_tokens_per_second,
            )
            for d in r.demand
        ],
        peer_rtt_seconds=dict(r.peer_rtt_seconds),
        inventory_digest=r.inventory_digest,
        inventory_full=r.inventory_full,
        inventory=[_node_to_wire(n) for n in r.inventory],
        inventory_removed=r.inventory_removed,
        events=[
            region_pb2.FleetEvent(
                uid=e.uid,
                reason=e.reason,
                message=e.message,
                kind=e.kind,
                name=e.name,
                region=e.region,
                severity=e.severity,
                wall=e.wall,
            )
            for e in r.events
        ],
        rejections=r.rejections,
        software_version=r.version,
    )


def region_report_from_wire(m: region_pb2.RegionReport) -> RegionReport:
    return RegionReport(
        m.router_uid,
        m.incarnation,
        m.sequence,
        m.region,
        tuple(m.http_addresses),
        tuple(m.grpc_addresses),
        m.ready,
        m.applied_epoch,
        m.applied_version,
        tuple(row_from_wire(x) for x in m.rows),
        tuple(
            DemandRow(
                d.origin,
                d.model,
                d.sla_class,
                finite(d.requests_per_second, 0, 1e9) or 0.0,
                finite(d.input_tokens_per_second, 0, 1e12) if d.HasField("input_tokens_per_second") else None,
                finite(d.output_tokens_per_second, 0, 1e12) if d.HasField("output_tokens_per_second") else None,
            )
            for d in m.demand
        ),
        tuple((k, v) for k, v in sorted(m.peer_rtt_seconds.items()) if finite(v, 0, 3600) == v),
        m.inventory_digest,
        m.inventory_full,
        tuple(_node_from_wire(n) for n in m.inventory),
        tuple(m.inventory_removed),
        tuple(
            FleetEvent(e.uid, e.reason, e.message, e.kind, e.name, e.region, e.severity, finite(e.wall, 0, 1e11) or 0.0)
            for e in m.events
        ),
        tuple(m.rejections),
        m.software_version,
    )


def region_directive_to_wire(d: RegionDirective) -> region_pb2.RegionDirective:
    return region_pb2.RegionDirective(
        acknowledged_incarnation=d.acknowledged_incarnation,
        acknowledged_sequence=d.acknowledged_sequence,
        report_interval_ms=seconds_to_ms(d.report_interval_seconds),
        want_full_inventory=d.want_full_inventory,
        acknowledged_events=d.acknowledged_events,
    )


def region_directive_from_wire(m: region_pb2.RegionDirective) -> RegionDirective:
    return RegionDirective(
        m.acknowledged_incarnation,
        m.acknowledged_sequence,
        min(max(m.report_interval_ms / 1000, 0.1), 60.0),
        m.want_full_inventory,
        tuple(m.acknowledged_events),
    )


def observed_to_wire(o: RegionObserved) -> region_pb2.RegionObserved:
    return region_pb2.RegionObserved(
        region=o.region,
        routers=[
            region_pb2.RouterObserved(
                router_uid=r.router_uid,
                incarnation=r.incarnation,
                sequence=r.sequence,
                ready=r.ready,
                http_addresses=r.http_addresses,
                grpc_addresses=r.grpc_addresses,
            )
            for r in o.routers
        ],
        rows=[row_to_wire(x) for x in o.rows],
        age_ms=seconds_to_ms(o.age_seconds),
    )


def observed_from_wire(m: region_pb2.RegionObserved) -> RegionObserved:
    return RegionObserved(
        m.region,
        tuple(
            RouterObserved(
                r.router_uid, r.incarnation, r.sequence, r.ready, tuple(r.http_addresses), tuple(r.grpc_addresses)
            )
            for r in m.routers
        ),
        tuple(row_from_wire(x) for x in m.rows),
        m.age_ms / 1000,
    )
