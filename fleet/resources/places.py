"""Specs of places: region, zone, link, node."""

from __future__ import annotations

import ipaddress
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from fleet.resources.base import BaseUrl, Jurisdiction, Money, ResourceName, Spec, Strict


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(f"must be a CIDR such as 10.2.0.0/16: {error}") from None
    return value


class Edge(Strict):
    parent: ResourceName


class RegionSpec(Spec):
    references: ClassVar[dict[str, str]] = {"edge.parent": "region"}

    latitude: float | None = Field(None, ge=-90, le=90)
    longitude: float | None = Field(None, ge=-180, le=180)
    jurisdictions: list[Jurisdiction] = []
    public_url: BaseUrl | None = None
    """Where clients and peer regions reach this region's routers."""
    edge: Edge | None = None


class ZoneSpec(Spec):
    references: ClassVar[dict[str, str]] = {"region": "region"}

    region: ResourceName
    jurisdictions: list[Jurisdiction] = []
    """Empty takes those of the region."""
    endpoint_ranges: list[Annotated[str, AfterValidator(_network)]] = []


class LinkSpec(Spec):
    references: ClassVar[dict[str, str]] = {"from": "region", "to": "region"}

    source: ResourceName = Field(alias="from")
    target: ResourceName = Field(alias="to")
    rtt_ms: float | None = Field(None, ge=0, le=10_000)
    egress_per_gb: Money | None = None


class GpuGroup(Strict):
    product: ResourceName
    count: int = Field(1, ge=1, le=64)
    memory_gib: float | None = Field(None, gt=0, le=10_000)


class NodeSpec(Spec):
    references: ClassVar[dict[str, str]] = {"zone": "zone"}

    zone: ResourceName
    gpus: list[GpuGroup] = []
