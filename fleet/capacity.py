"""What a region tells the centre, and what the centre tells other regions: aggregates, never single requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.accelerator import AcceleratorState
from fleet.endpoint import EndpointReport


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """One zone x model. Rates in tokens per second; None is unknown."""

    zone: str
    model: str
    endpoints_ready: int
    endpoints_total: int
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    inflight: int = 0
    waiting: int | None = None
    expected_wait_seconds: float | None = None
    """Expected time to first token of a request of median length that arrives now, network left out."""
    kv_free_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DemandRow:
    """Requests and tokens per second arriving at a router from one origin for one model."""

    origin: str
    model: str
    sla_class: str
    requests_per_second: float
    input_tokens_per_second: float | None
    """Of all these requests, from those whose engine counted; None when none did."""
    output_tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class InventoryNode:
    """One node with its devices and endpoints, as the freshest router of its region knows it."""

    node_uid: str
    node_name: str
    zone: str
    incarnation: int
    sequence: int
    state: str
    """``ready``, ``suspect``, ``degraded``, ``draining`` or ``dead``."""
    report_age_seconds: float
    gpus: tuple[AcceleratorState, ...] = ()
    endpoints: tuple[EndpointReport, ...] = ()
    device_error: str = ""


def inventory_digest(nodes: Iterable[InventoryNode]) -> bytes:
    """Digest of an inventory as it was told: which nodes, which report of each, in what state. 16 bytes, order-free.

    Sender and receiver both compute it over what has travelled, so it does not change while nothing is sent.
    """
    lines = sorted(f"{n.node_uid}\x00{n.incarnation}\x00{n.sequence}\x00{n.state}" for n in nodes)
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something that happened, for people: ``reason`` is PascalCase and stable, ``message`` free text."""

    uid: str
    reason: str
    message: str
    kind: str
    name: str
    region: str = ""
    severity: str = "info"
    """``info``, ``warning`` or ``error``."""
    wall: float = 0.0


@dataclass(frozen=True, slots=True)
class RegionReport:
    """One router's report. Accepted only when (incarnation, sequence) is newer than what is held for this router."""

    router_uid: str
    incarnation: int
    sequence: int
    region: str
    http_addresses: tuple[str, ...]
    """Base URLs where peers and clients reach this router's inference port."""
    grpc_addresses: tuple[str, ...]
    ready: bool
    applied_epoch: int
    applied_version: int
    rows: tuple[CapacityRow, ...] = ()
    demand: tuple[DemandRow, ...] = ()
    peer_rtt_seconds: tuple[tuple[str, float], ...] = ()
    inventory_digest: bytes = b""
    inventory_full: bool = False
    inventory: tuple[InventoryNode, ...] = ()
    inventory_removed: tuple[str, ...] = ()
    events: tuple[FleetEvent, ...] = ()
    rejections: tuple[str, ...] = ()
    """Sections of a snapshot that this router found implausible and did not apply."""
    version: str = ""

    @property
    def order(self) -> tuple[int, int]:
        return (self.incarnation, self.sequence)


@dataclass(frozen=True, slots=True)
class RegionDirective:
    """The centre's answer to a report."""

    acknowledged_incarnation: int
    acknowledged_sequence: int
    report_interval_seconds: float
    want_full_inventory: bool = False
    acknowledged_events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouterObserved:
    router_uid: str
    incarnation: int
    sequence: int
    ready: bool
    http_addresses: tuple[str, ...]
    grpc_addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegionObserved:
    """Latest aggregate of one region. Unversioned; ordered per router by (incarnation, sequence)."""

    region: str
    routers: tuple[RouterObserved, ...]
    rows: tuple[CapacityRow, ...]
    age_seconds: float
