"""What the demo consists of: places, machines, ports, and the fleet as users would write it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fleet.geo.regions import builtin_regions, rtt_seconds

HOST = "127.0.0.1"
MODEL = "llama-3.1-8b"
SERVED_AS = "meta-llama/Llama-3.1-8B-Instruct"
CONTEXT_TOKENS = 131_072
GPUS_PER_NODE = 4
ZONES = ("a", "b")
_NODE_PRODUCTS = (("h100-sxm-80", "a100-sxm-80"), ("h200-141", "l40s-48"))
"""Of the first and the second node of a zone: two GPUs of each."""

# Region, the city its clients are in, and a block of their addresses in the database that ships with the package.
_REGIONS = (
    ("westeurope", "Paris", "198.51.100"),
    ("eastus", "Ashburn", "203.0.113"),
    ("japaneast", "Tokyo", "192.0.2"),
)
_FIRST_HOST = {"Paris": 10, "Ashburn": 140, "Tokyo": 10}
CLIENTS_PER_CITY = 24


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """One engine on one GPU: ``port`` is its own, ``advertised_port`` the one that routers reach it at."""

    name: str
    gpu: int
    product: str
    port: int
    advertised_port: int


@dataclass(frozen=True, slots=True)
class NodeLayout:
    name: str
    zone: str
    region: str
    admin_port: int
    engines: tuple[EngineLayout, ...]

    @property
    def devices(self) -> str:
        """As ``--devices`` wants it."""
        groups: list[list[str]] = []
        for engine in self.engines:
            if groups and groups[-1][0] == engine.product:
                groups[-1].append(engine.product)
            else:
                groups.append([engine.product])
        return "simulated:" + ",".join(f"{len(group)}x{group[0]}" for group in groups)


@dataclass(frozen=True, slots=True)
class ZoneLayout:
    name: str
    region: str
    grpc_port: int
    """Where agents of this zone reach the region's router: the zone's own way into the network."""
    nodes: tuple[NodeLayout, ...]


@dataclass(frozen=True, slots=True)
class RegionLayout:
    name: str
    city: str
    client_addresses: tuple[str, ...]
    front_port: int
    """The region's public address, in front of its router."""
    router_port: int
    router_grpc_port: int
    router_admin_port: int
    zones: tuple[ZoneLayout, ...]

    @property
    def public_url(self) -> str:
        return f"http://{HOST}:{self.front_port}"

    @property
    def nodes(self) -> tuple[NodeLayout, ...]:
        return tuple(node for zone in self.zones for node in zone.nodes)


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole demo. Every port in it is different."""

    rest_port: int
    grpc_port: int
    regions: tuple[RegionLayout, ...]
    ports: tuple[int, ...] = field(repr=False)

    @property
    def nodes(self) -> tuple[NodeLayout, ...]:
        return tuple(node for region in self.regions for node in region.nodes)

    @property
    def rest_url(self) -> str:
        return f"http://{HOST}:{self.rest_port}"

    def region(self, name: str) -> RegionLayout:
        return next(region for region in self.regions if region.name == name)

    def ranked(self, region: RegionLayout) -> list[str]:
        """Public addresses of all regions, nearest to ``region`` first."""
        by_distance = sorted(self.regions, key=lambda other: _rtt(region.name, other.name))
        return [other.public_url for other in by_distance]


def _rtt(source: str, target: str) -> float:
    if source == target:
        return 0.0
    measured = rtt_seconds(source, target)
    assert measured is not None, "the demo's regions are in the table"
    return measured


def layout(regions: int, ports: Iterator[int]) -> Layout:
    """The demo with so many regions, taking its ports one after the other."""
    taken: list[int] = []

    def port() -> int:
        taken.append(next(ports))
        return taken[-1]

    rest, grpc = port(), port()
    fronts = [port() for _ in range(regions)]
    placed = []
    for (name, city, block), front in zip(_REGIONS[:regions], fronts, strict=True):
        first = _FIRST_HOST[city]
        addresses = tuple(f"{block}.{first + i}" for i in range(CLIENTS_PER_CITY))
        router_ports = (port(), port(), port())
        zones = []
        for letter in ZONES:
            zone = f"{name}-{letter}"
            nodes = tuple(_node(zone, name, number, port) for number in range(len(_NODE_PRODUCTS)))
            zones.append(ZoneLayout(zone, name, port(), nodes))
        placed.append(RegionLayout(name, city, addresses, front, *router_ports, tuple(zones)))
    return Layout(rest, grpc, tuple(placed), tuple(taken))


def _node(zone: str, region: str, number: int, port: Any) -> NodeLayout:
    products = _NODE_PRODUCTS[number]
    engines = tuple(
        EngineLayout(f"engine-{gpu}", gpu, products[gpu * len(products) // GPUS_PER_NODE], port(), port())
        for gpu in range(GPUS_PER_NODE)
    )
    return NodeLayout(f"{zone}-{number + 1}", zone, region, port(), engines)


def ports_needed(regions: int) -> int:
    """How many ports a demo of so many regions takes."""
    return len(layout(regions, iter(range(1, 100_000))).ports)


def fleet_documents(plan: Layout, tenant_key: str, context_tokens: int = CONTEXT_TOKENS) -> list[dict[str, Any]]:
    """The fleet as ``apply`` takes it. Nodes and endpoints are left out: their agents report them."""
    documents: list[dict[str, Any]] = []

    def add(kind: str, name: str, **spec: Any) -> None:
        documents.append({"kind": kind, "name": name, "spec": spec})

    known = builtin_regions()
    for region in plan.regions:
        place = known[region.name]
        add(
            "region",
            region.name,
            latitude=place.coordinates.latitude,
            longitude=place.coordinates.longitude,
            jurisdictions=sorted({place.country, place.jurisdiction}),
            public_url=region.public_url,
        )
        for zone in region.zones:
            add("zone", zone.name, region=region.name, endpoint_ranges=["127.0.0.0/8"])
    for source in plan.regions:
        for target in plan.regions:
            if source is not target:
                rtt_ms = round(_rtt(source.name, target.name) * 1000, 1)
                add(
                    "link", f"{source.name}.{target.name}", **{"from": source.name, "to": target.name, "rtt_ms": rtt_ms}
                )
    add(
        "model",
        MODEL,
        task="chat",
        aliases=[SERVED_AS],
        context_tokens=context_tokens,
        weights_gib=16,
    )
    add("tenant", "demo", sla_class="interactive")
    add("key", "demo-1", tenant="demo", secret=tenant_key)
    return documents
