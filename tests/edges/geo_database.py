"""Writes small MaxMind-format databases: the one that is shipped for the demo, and odd ones for tests.

``python -m tests.edges.geo_database fleet/geo/data/demo.mmdb`` writes the shipped one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmdb_writer import MMDBWriter
from netaddr import IPSet

CITIES: Mapping[str, tuple[str, str, float, float]] = {
    "Paris": ("FR", "EU", 48.86, 2.35),
    "London": ("GB", "EU", 51.51, -0.13),
    "Frankfurt": ("DE", "EU", 50.11, 8.68),
    "Ashburn": ("US", "NA", 39.04, -77.49),
    "Sao Paulo": ("BR", "SA", -23.55, -46.63),
    "Tokyo": ("JP", "AS", 35.68, 139.69),
    "Singapore": ("SG", "AS", 1.35, 103.82),
    "Sydney": ("AU", "OC", -33.87, 151.21),
}
NETWORKS: Mapping[str, tuple[str, ...]] = {
    # Loopback ranges let one machine play clients all over the world; the rest is for documentation (RFC 5737, RFC 3849).
    "Paris": ("127.33.0.0/16", "198.51.100.0/24", "2001:db8:33::/48"),
    "London": ("127.44.0.0/16", "2001:db8:44::/48"),
    "Frankfurt": ("127.49.0.0/16", "203.0.113.0/25", "2001:db8:49::/48"),
    "Ashburn": ("127.101.0.0/16", "203.0.113.128/25", "2001:db8:101::/48"),
    "Sao Paulo": ("127.55.0.0/16", "2001:db8:55::/48"),
    "Tokyo": ("127.81.0.0/16", "192.0.2.0/25", "2001:db8:81::/48"),
    "Singapore": ("127.65.0.0/16", "192.0.2.128/25", "2001:db8:65::/48"),
    "Sydney": ("127.61.0.0/16", "2001:db8:61::/48"),
}


def city_record(name: str) -> dict[str, Any]:
    """A record shaped like those of GeoLite2-City."""
    country, continent, latitude, longitude = CITIES[name]
    return {
        "city": {"names": {"en": name}},
        "country": {"iso_code": country, "names": {"en": country}},
        "continent": {"code": continent, "names": {"en": continent}},
        "location": {"latitude": latitude, "longitude": longitude},
    }


def write(
    path: Path,
    records: Mapping[str, Mapping[str, Any]],
    *,
    ip_version: int = 6,
    database_type: str = "GeoLite2-City",
) -> Path:
    """A database with a record for each network."""
    writer = MMDBWriter(
        ip_version, database_type, languages=["en"], description="headrace", ipv4_compatible=ip_version == 6
    )
    for network, record in records.items():
        writer.insert_network(IPSet([network]), dict(record))
    writer.to_db_file(str(path))
    return path


def write_demo(path: Path) -> Path:
    return write(path, {network: city_record(city) for city, networks in NETWORKS.items() for network in networks})


if __name__ == "__main__":
    write_demo(Path(sys.argv[1]))
