"""Well-known cloud regions: coordinates, measured round trips and egress prices. Sources in ``data/README.md``."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fleet.locality import Coordinates, great_circle_km, rtt_prior_seconds

NEAR_KM = 300.0
"""A place this close to a well-known region has its round trips, within a few milliseconds."""


@dataclass(frozen=True, slots=True)
class BuiltinRegion:
    name: str
    display_name: str
    coordinates: Coordinates
    country: str
    jurisdiction: str
    aliases: tuple[str, ...]
    """Names of other providers' regions close by."""
    internet_egress_usd_per_gb: float | None


@cache
def builtin_regions() -> Mapping[str, BuiltinRegion]:
    """The 24 regions by name."""
    return {
        row["region"]: BuiltinRegion(
            row["region"],
            row["display_name"],
            Coordinates(float(row["lat"]), float(row["lon"])),
            row["country"],
            row["jurisdiction"],
            tuple(name for name in (row["aws_near"], row["gcp_near"]) if name),
            _number(row["azure_internet_egress_usd_per_gb"]),
        )
        for row in _rows("regions.csv")
    }


def builtin_region(name: str) -> BuiltinRegion | None:
    """The region called ``name``, by its own name or that of another provider's region beside it."""
    return _by_any_name().get(name.lower())


def nearest_builtin(where: Coordinates, within_km: float = NEAR_KM) -> BuiltinRegion | None:
    """The closest well-known region, or None when none lies within ``within_km``."""
    region = min(builtin_regions().values(), key=lambda r: great_circle_km(where, r.coordinates))
    return region if great_circle_km(where, region.coordinates) <= within_km else None


def rtt_seconds(region_a: str, region_b: str) -> float | None:
    """Measured median round trip between two named regions; None when either is not known."""
    a, b = builtin_region(region_a), builtin_region(region_b)
    if a is None or b is None:
        return None
    return _rtts().get((a.name, b.name))


def rtt_between(a: Coordinates, b: Coordinates) -> float:
    """Expected round trip between two places: as measured between the regions they are in, else by distance."""
    near_a, near_b = nearest_builtin(a), nearest_builtin(b)
    if near_a is None or near_b is None or near_a is near_b:
        return rtt_prior_seconds(a, b)
    measured = _rtts().get((near_a.name, near_b.name))
    return rtt_prior_seconds(a, b) if measured is None else measured


def egress_usd_per_gb(region_a: str, region_b: str) -> float | None:
    """List price of traffic from one named region to another; 0 inside one; None when not known."""
    a, b = builtin_region(region_a), builtin_region(region_b)
    if a is None or b is None:
        return None
    return 0.0 if a is b else _egress().get((a.name, b.name))


@cache
def _by_any_name() -> Mapping[str, BuiltinRegion]:
    found: dict[str, BuiltinRegion] = {}
    for region in builtin_regions().values():
        for alias in region.aliases:
            found.setdefault(alias, region)
    return {**found, **builtin_regions()}


@cache
def _rtts() -> Mapping[tuple[str, str], float]:
    measured = {(row["src"], row["dst"]): float(row["rtt_ms"]) / 1000 for row in _rows("rtt.csv")}
    return measured | {(name, name): 0.002 for name in builtin_regions()}


@cache
def _egress() -> Mapping[tuple[str, str], float]:
    return {(row["src"], row["dst"]): float(row["azure_usd_per_gb"]) for row in _rows("egress.csv")}


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = (resources.files("fleet.geo") / "data" / name).read_text("utf-8")
    return iter(csv.DictReader(text.splitlines()))


def _number(text: str) -> float | None:
    return float(text) if text else None
