"""What must hold of a resource beside its schema: its references exist, and it does not clash with another.

A route beats an alias beats a name, so those may coincide; two of the same rank may not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import select

from controlplane.api import references
from controlplane.api.kinds import API_KINDS
from controlplane.api.work import Transaction
from controlplane.tables import InventoryItem, Resource
from fleet.errors import FieldError


async def check(tx: Transaction, row: Resource) -> list[FieldError]:
    """Everything that is wrong with a written resource, pointers into its document."""
    kind = API_KINDS[row.kind]
    errors = []
    for absent in await references.missing(tx.world, kind, row.spec):
        if absent.kind == "node" and await _reported_node(tx, absent.name) is not None:
            continue
        errors.append(FieldError(absent.pointer, f"there is no {absent.kind} {absent.name}"))
    clash = _CLASHES.get(row.kind)
    if clash is not None:
        errors += await clash(tx, row)
    return errors


async def _aliases(tx: Transaction, row: Resource) -> list[FieldError]:
    owners = {
        alias: other.name
        for other in (await tx.world.all("model")).values()
        if other.name != row.name
        for alias in other.spec.get("aliases", ())
    }
    own: list[str] = row.spec.get("aliases", [])
    errors = [
        FieldError(f"/spec/aliases/{index}", f"model {owners[alias]} has this alias")
        for index, alias in enumerate(own)
        if alias in owners
    ]
    return errors + [
        FieldError(f"/spec/aliases/{index}", "is listed twice")
        for index, alias in enumerate(own)
        if alias in own[:index]
    ]


async def _routes(tx: Transaction, row: Resource) -> list[FieldError]:
    def match_of(spec: dict[str, Any]) -> tuple[Any, ...]:
        match = spec["match"]
        headers = {name.lower(): value for name, value in match.get("headers", {}).items()}
        return match["model"], sorted(set(match.get("tenants", ["*"]))), sorted(headers.items())

    for other in (await tx.world.all("route")).values():
        if other.name != row.name and match_of(other.spec) == match_of(row.spec):
            return [FieldError("/spec/match", f"route {other.name} has the same match")]
    return []


async def _links(tx: Transaction, row: Resource) -> list[FieldError]:
    ends = (row.spec["from"], row.spec["to"])
    if ends[0] == ends[1]:
        return [FieldError("/spec/to", "is the region the link comes from")]
    for other in (await tx.world.all("link")).values():
        if other.name != row.name and (other.spec["from"], other.spec["to"]) == ends:
            return [FieldError("/spec/to", f"link {other.name} joins the same regions")]
    return []


async def _region(tx: Transaction, row: Resource) -> list[FieldError]:
    seen, parent = {row.name}, (row.spec.get("edge") or {}).get("parent")
    while parent is not None:
        if parent in seen:
            return [FieldError("/spec/edge/parent", "leads back to this region")]
        seen.add(parent)
        above = await tx.world.get("region", parent)
        parent = (above.spec.get("edge") or {}).get("parent") if above is not None else None
    return []


async def _endpoint(tx: Transaction, row: Resource) -> list[FieldError]:
    """An address must lie in its zone's ranges. A host name is judged by the router, at the address it connects to."""
    try:
        address = ipaddress.ip_address(urlsplit(row.spec["url"]).hostname or "")
    except ValueError:
        return []
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    ranges = [ipaddress.ip_network(r) for r in await _zone_ranges(tx, row.spec["node"])]
    if ranges and not any(address in r for r in ranges if r.version == address.version):
        return [FieldError("/spec/url", "lies outside the endpoint_ranges of the node's zone")]
    if not ranges and (address.is_link_local or address.is_multicast or address.is_unspecified):
        return [FieldError("/spec/url", "is not the address of an engine")]
    return []


async def _zone_ranges(tx: Transaction, node: str) -> list[str]:
    written = await tx.world.get("node", node)
    zone_name = written.spec.get("zone") if written is not None else await _reported_node(tx, node)
    zone = await tx.world.get("zone", zone_name) if zone_name else None
    return list(zone.spec.get("endpoint_ranges", ())) if zone is not None else []


async def _reported_node(tx: Transaction, name: str) -> str | None:
    """The zone of a node that an agent reports."""
    found = select(InventoryItem.zone).where(InventoryItem.kind == "node", InventoryItem.name == name).limit(1)
    zone: str | None = (await tx.session.execute(found)).scalar_one_or_none()
    return zone


_CLASHES: dict[str, Callable[[Transaction, Resource], Coroutine[Any, Any, list[FieldError]]]] = {
    "model": _aliases,
    "route": _routes,
    "link": _links,
    "region": _region,
    "endpoint": _endpoint,
}
