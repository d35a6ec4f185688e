"""Which intent objects a region is told, and in what form.

Its own region's zones, nodes, endpoints, deployments and holds travel in full; of other regions only what choosing among
regions needs: the regions, their links, and their zones without address ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.resources.kinds import KINDS
from fleet.resources.translate import HOLD_KIND
from fleet.snapshot import IntentObject

Key = tuple[str, str]
"""(kind, uid)"""

PUBLISHED_KINDS = frozenset({*KINDS, HOLD_KIND})
"""Anything else (tokens, for one) never leaves the control plane."""
PLACED_KINDS = frozenset({"region", "zone", "node"})
"""A change to one of these may move other objects into or out of a region."""

_SUMMARY_DROPS = {"zone": frozenset({"endpoint_ranges"})}


@dataclass(frozen=True, slots=True)
class Placement:
    """Which region an object belongs to, by the references in the specs."""

    zone_region: Mapping[str, str] = field(default_factory=dict)
    """Zone name to region name."""
    node_zone: Mapping[str, str] = field(default_factory=dict)
    """Node name to zone name."""
    region_of_uid: Mapping[str, str] = field(default_factory=dict)
    """uid of a zone, node or endpoint to region name."""

    @classmethod
    def of(cls, objects: Iterable[IntentObject]) -> Placement:
        zones: dict[str, str] = {}
        nodes: dict[str, str] = {}
        endpoints: list[IntentObject] = []
        uids: list[tuple[str, str, str]] = []
        for obj in objects:
            if obj.kind == "zone":
                zones[obj.name] = _text(obj.spec, "region")
                uids.append((obj.uid, "zone", obj.name))
            elif obj.kind == "node":
                nodes[obj.name] = _text(obj.spec, "zone")
                uids.append((obj.uid, "node", obj.name))
            elif obj.kind == "endpoint":
                endpoints.append(obj)
        of_uid = {uid: zones.get(name if kind == "zone" else nodes.get(name, ""), "") for uid, kind, name in uids}
        of_uid.update((e.uid, zones.get(nodes.get(_text(e.spec, "node"), ""), "")) for e in endpoints)
        return cls(zones, nodes, of_uid)

    def region_of(self, obj: IntentObject) -> str | None:
        """The region that ``obj`` belongs to; None when it belongs to none or to all."""
        match obj.kind:
            case "zone":
                return _text(obj.spec, "region")
            case "node":
                return self.zone_region.get(_text(obj.spec, "zone"))
            case "endpoint":
                return self.zone_region.get(self.node_zone.get(_text(obj.spec, "node"), ""))
            case _:
                return None


def _text(spec: Mapping[str, Any], name: str) -> str:
    value = spec.get(name)
    return value if isinstance(value, str) else ""


def seen_from(obj: IntentObject, region: str, placement: Placement) -> IntentObject | None:
    """``obj`` as ``region`` is told of it: whole, in summary, or not at all (None)."""
    if obj.kind not in PUBLISHED_KINDS:
        return None
    match obj.kind:
        case "zone":
            return obj if placement.region_of(obj) == region else _summary(obj)
        case "node" | "endpoint":
            return obj if placement.region_of(obj) == region else None
        case "deployment":
            zones = obj.spec.get("zones")
            here = any(placement.zone_region.get(z) == region for z in zones) if isinstance(zones, list) else False
            return obj if here else None
        case "hold":
            # Held regions concern everybody; so does a target that only agents know (a GPU, a reported endpoint).
            place = placement.region_of_uid.get(_text(obj.spec, "target"))
            return obj if place is None or place == region else None
        case _:
            return obj


def _summary(obj: IntentObject) -> IntentObject:
    drops = _SUMMARY_DROPS[obj.kind]
    if not drops & obj.spec.keys():
        return obj
    return replace(obj, spec={k: v for k, v in obj.spec.items() if k not in drops})


def project(objects: Iterable[IntentObject], region: str, placement: Placement) -> Iterator[IntentObject]:
    """All that ``region`` is told."""
    for obj in objects:
        seen = seen_from(obj, region, placement)
        if seen is not None:
            yield seen
