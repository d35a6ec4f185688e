"""A router's report in the JSON form in which it is kept, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from fleet.capacity import CapacityRow, DemandRow, RegionReport

Row = TypeVar("Row", CapacityRow, DemandRow)


def report_body(report: RegionReport) -> dict[str, Any]:
    """Everything but who, order, inventory and events."""
    return {
        "http_addresses": list(report.http_addresses),
        "grpc_addresses": list(report.grpc_addresses),
        "ready": report.ready,
        "applied": [report.applied_epoch, report.applied_version],
        "rows": [asdict(r) for r in report.rows],
        "demand": [asdict(r) for r in report.demand],
        "peer_rtt_seconds": dict(report.peer_rtt_seconds),
        "rejections": list(report.rejections),
        "version": report.version,
    }


def report_from_body(
    router_uid: str, region: str, incarnation: int, sequence: int, body: Mapping[str, Any]
) -> RegionReport:
    """The report as it was kept; fields that another release wrote and we do not know are left out."""
    epoch, version = body.get("applied") or (0, 0)
    return RegionReport(
        router_uid=router_uid,
        incarnation=incarnation,
        sequence=sequence,
        region=region,
        http_addresses=tuple(body.get("http_addresses", ())),
        grpc_addresses=tuple(body.get("grpc_addresses", ())),
        ready=bool(body.get("ready")),
        applied_epoch=int(epoch),
        applied_version=int(version),
        rows=tuple(_known(CapacityRow, r) for r in body.get("rows", ())),
        demand=tuple(_known(DemandRow, r) for r in body.get("demand", ())),
        peer_rtt_seconds=tuple(sorted(body.get("peer_rtt_seconds", {}).items())),
        rejections=tuple(body.get("rejections", ())),
        version=str(body.get("version", "")),
    )


def _known(kind: type[Row], data: Mapping[str, Any]) -> Row:
    names = {f.name for f in fields(kind)}
    return kind(**{k: v for k, v in data.items() if k in names})
