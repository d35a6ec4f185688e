"""Which region lies nearest to a client, as far as anybody outside the regions can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fleet.locality import Coordinates, Origin, Region


@dataclass(frozen=True, slots=True)
class Ranked:
    region: Region
    expected_seconds: float | None
    """Round trip from the client; None when the client's place or the region's is not known."""


def rank(
    origin: Origin, regions: Iterable[Region], rtt_seconds: Callable[[Coordinates, Coordinates], float]
) -> list[Ranked]:
    """Nearest first; places that are not known come last, by name, so that every copy gives the same answer."""
    where = origin.coordinates
    ranked = [
        Ranked(r, rtt_seconds(where, r.coordinates) if where is not None and r.coordinates is not None else None)
        for r in regions
    ]
    return sorted(ranked, key=lambda x: (x.expected_seconds is None, x.expected_seconds or 0.0, x.region.name))
