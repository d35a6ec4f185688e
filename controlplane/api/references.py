"""Which resources name which others. Read from the specs' own declarations (``Spec.references``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.api.kinds import API_KINDS, ApiKind
from controlplane.store.resources import World
from controlplane.tables import Resource
from fleet.resources.tenants import DEFAULT_SLA_CLASSES


@dataclass(frozen=True, slots=True)
class Reference:
    pointer: str
    """Into the document: ``/spec/split/0/model``."""
    kind: str
    name: str


def references_of(kind: ApiKind, spec: dict[str, Any]) -> Iterator[Reference]:
    """Every reference a spec holds."""
    for path, target in kind.spec.references.items():
        for pointer, name in _values(spec, path.split("."), "/spec"):
            yield Reference(pointer, target, name)


def _values(value: Any, path: list[str], pointer: str) -> Iterator[tuple[str, str]]:
    if not path:
        if isinstance(value, str):
            yield pointer, value
        return
    part, rest = path[0], path[1:]
    listed = part.endswith("[]")
    part = part.removesuffix("[]")
    if not isinstance(value, dict) or value.get(part) is None:
        return
    if not listed:
        yield from _values(value[part], rest, f"{pointer}/{part}")
        return
    for index, item in enumerate(value[part]):
        yield from _values(item, rest, f"{pointer}/{part}/{index}")


def built_in(kind: str, name: str) -> bool:
    """Present in every deployment without being written."""
    return kind == "sla-class" and name in DEFAULT_SLA_CLASSES


async def missing(world: World, kind: ApiKind, spec: dict[str, Any]) -> list[Reference]:
    """References to things that are not there."""
    absent = []
    for reference in references_of(kind, spec):
        if built_in(reference.kind, reference.name):
            continue
        if await world.get(reference.kind, reference.name) is None:
            absent.append(reference)
    return absent


async def referrers(world: World, kind: str, name: str) -> list[Resource]:
    """Live resources that name this one, by kind and name."""
    if built_in(kind, name):
        return []
    found: list[Resource] = []
    for other in API_KINDS.values():
        if kind not in other.spec.references.values():
            continue
        rows = (await world.all(other.name)).values()
        found += [row for row in rows if any((r.kind, r.name) == (kind, name) for r in references_of(other, row.spec))]
    return sorted(found, key=lambda row: (row.kind, row.name))
