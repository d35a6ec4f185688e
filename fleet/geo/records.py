"""What a database record says about a place. MaxMind's nested records and the flat ones of other makers."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from geoip2.models import City

from fleet.locality import Coordinates

_CONTINENTS: Mapping[str, Coordinates] = {
    # The rough middle of where the networks are, not of the land.
    "AF": Coordinates(0.0, 20.0),
    "AN": Coordinates(-77.0, 167.0),
    "AS": Coordinates(25.0, 105.0),
    "EU": Coordinates(50.0, 10.0),
    "NA": Coordinates(39.0, -92.0),
    "OC": Coordinates(-33.0, 149.0),
    "SA": Coordinates(-20.0, -52.0),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place without an address. Empty and None are unknown."""

    country: str = ""
    continent: str = ""
    coordinates: Coordinates | None = None
    source: str = "unknown"
    """``database`` (coordinates from the record), ``country`` or ``continent`` (its middle), ``unknown``."""


NOWHERE = Place()


def place_of(record: Any) -> Place:
    """The place in a record: its coordinates, else its country's middle, else its continent's, else unknown.

    A *registered* country says who owns the addresses, not where they are, and is never used (case-Z04). Never raises.
    """
    if not isinstance(record, Mapping):
        return NOWHERE
    nested = any(
        isinstance(record.get(name), Mapping) for name in ("country", "continent", "location", "registered_country")
    )
    country, continent, where = _nested(record) if nested else _flat(record)
    known = countries().get(country)
    if not continent and known is not None:
        continent = known[0]
    if where is not None:
        return Place(country, continent, where, "database")
    if known is not None:
        return Place(country, continent, known[1], "country")
    if continent in _CONTINENTS:
        return Place(country, continent, _CONTINENTS[continent], "continent")
    return Place(country, continent)


@cache
def countries() -> Mapping[str, tuple[str, Coordinates]]:
    """Country code to (continent, rough middle)."""
    text = (resources.files("fleet.geo") / "data" / "countries.csv").read_text("utf-8")
    return {
        row["country"]: (row["continent"], Coordinates(float(row["latitude"]), float(row["longitude"])))
        for row in csv.DictReader(text.splitlines())
    }


def _nested(record: Mapping[str, Any]) -> tuple[str, str, Coordinates | None]:
    def part(name: str) -> dict[str, Any]:
        value = record.get(name)
        return dict(value) if isinstance(value, Mapping) else {}

    try:
        city = City(["en"], country=part("country"), continent=part("continent"), location=part("location"))
    except (TypeError, ValueError, AttributeError):
        return "", "", None
    where = _coordinates(city.location.latitude, city.location.longitude)
    return _code(city.country.iso_code), _code(city.continent.code), where


def _flat(record: Mapping[str, Any]) -> tuple[str, str, Coordinates | None]:
    country = _code(_first(record, "country_code", "country", "country_iso_code"))
    continent = _code(_first(record, "continent_code", "continent"))
    latitude, longitude = _first(record, "latitude", "lat"), _first(record, "longitude", "lng", "lon")
    pair = record.get("loc")
    if latitude is None and isinstance(pair, str) and pair.count(",") == 1:
        latitude, longitude = pair.split(",")
    return country, continent, _coordinates(latitude, longitude)


def _first(record: Mapping[str, Any], *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)


def _code(value: Any) -> str:
    """A two-letter code in capitals; anything else is unknown."""
    if isinstance(value, str) and len(value) == 2 and value.isascii() and value.isalpha():
        return value.upper()
    return ""


def _coordinates(latitude: Any, longitude: Any) -> Coordinates | None:
    try:
        north, east = float(latitude), float(longitude)
    except (TypeError, ValueError):
        return None
    if not (math.isfinite(north) and math.isfinite(east)) or abs(north) > 90 or abs(east) > 180:
        return None
    return Coordinates(north, east)
