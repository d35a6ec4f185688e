"""Places, and how far apart they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

EARTH_RADIUS_KM = 6371.0088

# Least squares over 552 measured pairs of cloud regions: rtt_ms = 27 + 0.0142 * km (standard deviation 36 ms).
# A prior only: a measured or configured round trip always wins. Source: docs/decisions, `geo/` data.
RTT_PRIOR_BASE_MS = 27.0
RTT_PRIOR_MS_PER_KM = 0.0142
SAME_ZONE_RTT_SECONDS = 0.0002
CROSS_ZONE_RTT_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Locality:
    """The region / zone / node triple used for closeness. An empty part is not known."""

    region: str
    zone: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Degrees, WGS 84. Latitude -90 to 90, longitude -180 to 180."""

    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a client is, as resolved from its address."""

    address: str = ""
    country: str = ""
    """ISO 3166 alpha-2 of the location; empty when unknown. Never a *registered* country (case-Z04)."""
    continent: str = ""
    """Two letters: AF AN AS EU NA OC SA; empty when unknown."""
    coordinates: Coordinates | None = None
    source: str = "unknown"
    """What it rests on: ``database``, ``country`` or ``continent`` (its middle), ``private``, ``unknown``, or ``hop`` when a
    peer router said so."""


@dataclass(frozen=True, slots=True)
class Region:
    uid: str
    name: str
    coordinates: Coordinates | None = None
    jurisdictions: frozenset[str] = frozenset()
    public_url: str = ""
    edge_parent: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Zone:
    uid: str
    name: str
    region: str
    jurisdictions: frozenset[str] = frozenset()
    endpoint_ranges: tuple[str, ...] = ()
    """CIDRs that endpoint addresses of this zone must lie in; empty means no limit."""


@dataclass(frozen=True, slots=True)
class Link:
    """What it costs to go from one region to another. Directed; a missing reverse is taken as equal."""

    uid: str
    name: str
    source: str
    target: str
    rtt_seconds: float | None = None
    egress_usd_per_gb: float | None = None


def great_circle_km(a: Coordinates, b: Coordinates) -> float:
    """Haversine distance in kilometres on a sphere of mean Earth radius."""
    lat1, lat2 = math.radians(a.latitude), math.radians(b.latitude)
    half_dlat = (lat2 - lat1) / 2
    half_dlon = math.radians(b.longitude - a.longitude) / 2
    h = math.sin(half_dlat) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin(half_dlon) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(h)))


def rtt_prior_seconds(a: Coordinates, b: Coordinates) -> float:
    """Expected round trip between two places when nobody has measured it, in seconds."""
    km = great_circle_km(a, b)
    if km < 50.0:
        return 0.002
    return (RTT_PRIOR_BASE_MS + RTT_PRIOR_MS_PER_KM * km) / 1000.0


def nearest_regions(origin: Origin, regions: Iterable[Region]) -> list[tuple[Region, float]]:
    """Regions with known coordinates by distance prior from ``origin``, nearest first, as (region, RTT in seconds).

    Empty when the origin has no coordinates: an unknown place is not a place at latitude 0.
    Ties are broken by name so that every router gives the same answer.
    """
    where = origin.coordinates
    if where is None:
        return []
    ranked = [(r, rtt_prior_seconds(where, r.coordinates)) for r in regions if r.coordinates is not None]
    # Distance breaks the tie that the flat prior leaves between places less than 50 km away.
    return sorted(ranked, key=lambda item: (item[1], item[0].name))
