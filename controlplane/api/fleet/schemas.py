"""Answers of the fleet's own paths."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, field_validator

from fleet.geo.addresses import parse_address
from fleet.resources.base import Strict

Unknown = "null is unknown, never zero"


class CapacityItem(BaseModel):
    """One model in one zone."""

    region: str
    zone: str
    model: str
    endpoints_ready: int
    endpoints_total: int
    prefill_tokens_per_second: float | None = Field(description=Unknown)
    decode_tokens_per_second: float | None = Field(description=Unknown)
    inflight: int = Field(description="Over all live routers")
    waiting: int | None = Field(description=Unknown)
    expected_wait_seconds: float | None = Field(description=Unknown)
    kv_free_tokens: int | None = Field(description=Unknown)


class DemandItem(BaseModel):
    """What arrives at a region from one origin for one model, over all live routers."""

    region: str
    origin: str
    model: str
    sla_class: str
    requests_per_second: float
    input_tokens_per_second: float | None = Field(description=Unknown)
    output_tokens_per_second: float | None = Field(description=Unknown)


class RouterItem(BaseModel):
    uid: str
    ready: bool
    http_addresses: list[str]
    grpc_addresses: list[str]
    applied_epoch: int
    applied_version: int
    report_age_seconds: float
    rejections: list[str] = Field(description="Sections of the snapshot that it found implausible and did not apply")
    peer_rtt_seconds: dict[str, float]
    version: str


class RegionItem(BaseModel):
    name: str
    connected: bool = Field(description="At least one of its routers has reported within the last five seconds")
    routers: list[RouterItem]


class Capacity(BaseModel):
    items: list[CapacityItem]
    demand: list[DemandItem]
    regions: list[RegionItem]


class SnapshotObject(BaseModel):
    kind: str
    uid: str
    name: str
    generation: int
    labels: dict[str, str]
    spec: dict[str, Any]


class SnapshotAt(BaseModel):
    epoch: int
    version: int


class Snapshot(BaseModel):
    """What the routers of a region are told, without secrets."""

    at: SnapshotAt
    region: str
    objects: list[SnapshotObject]


class LocateRequest(Strict):
    address: Annotated[str, StringConstraints(min_length=2, max_length=80)] | None = Field(
        None, description="The client's address; left out, that of the caller"
    )

    @field_validator("address")
    @classmethod
    def _address(cls, text: str | None) -> str | None:
        if text is not None and parse_address(text) is None:
            raise ValueError("must be an IPv4 or IPv6 address")
        return text


class LocatedOrigin(BaseModel):
    address: str
    country: str
    continent: str
    latitude: float | None
    longitude: float | None
    source: str = Field(description="What it rests on: database, country, continent, private, unknown")


class LocatedRegion(BaseModel):
    name: str
    expected_ms: float | None = Field(description="Round trip; " + Unknown)
    public_url: str
    connected: bool
    routers_ready: int


class Located(BaseModel):
    """Regions for a client, nearest first."""

    origin: LocatedOrigin
    regions: list[LocatedRegion]


class SigningKeys(BaseModel):
    """A JWK set (RFC 7517)."""

    keys: list[dict[str, str]]
