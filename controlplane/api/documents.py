"""Resources as the API shows them: what users wrote and what agents report, under one name.

A thing that only agents report (a GPU, a node that joined, an engine they watch) has no row among the resources; it is shown all
the same, with ``managed_by: agent``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.api.holds import held
from controlplane.api.kinds import ApiKind
from controlplane.api.writing import full_spec
from controlplane.registry.status import hold_conditions
from controlplane.tables import InventoryItem, JoinToken, Resource, Status


async def find(session: AsyncSession, kind: ApiKind, name: str) -> tuple[Resource | None, InventoryItem | None]:
    """The resource and the reported item of that name; a uid does as well for what agents report."""
    row = (
        await session.scalars(
            select(Resource).where(Resource.kind == kind.name, Resource.name == name, Resource.deleted_at.is_(None))
        )
    ).one_or_none()
    if not kind.observed:
        return row, None
    if row is not None:
        return row, await session.get(InventoryItem, (kind.name, row.uid))
    named = select(InventoryItem).where(InventoryItem.kind == kind.name, InventoryItem.name == name)
    newest = named.order_by(InventoryItem.last_seen_at.desc(), InventoryItem.uid).limit(1)
    item = (await session.scalars(newest)).one_or_none() or await session.get(InventoryItem, (kind.name, name))
    if item is None:
        return None, None
    row = await session.get(Resource, item.uid)
    return (row if row is not None and row.deleted_at is None else None), item


async def keys_after(
    session: AsyncSession, kind: ApiKind, position: Sequence[str] | None, limit: int
) -> list[tuple[str, str]]:
    """(name, uid) of what is listed, in order, after a position."""
    written = select(Resource.name.label("name"), Resource.uid.label("uid")).where(
        Resource.kind == kind.name, Resource.deleted_at.is_(None)
    )
    parts = [written]
    if kind.observed:
        known = select(Resource.uid).where(Resource.kind == kind.name, Resource.deleted_at.is_(None))
        reported = select(InventoryItem.name.label("name"), InventoryItem.uid.label("uid"))
        parts.append(reported.where(InventoryItem.kind == kind.name, InventoryItem.uid.not_in(known)))
    listed = union_all(*parts).subquery()
    query = select(listed.c.name, listed.c.uid).order_by(listed.c.name, listed.c.uid).limit(limit)
    if position is not None:
        name, uid = position
        query = query.where(
            (listed.c.name > literal(name)) | ((listed.c.name == literal(name)) & (listed.c.uid > literal(uid)))
        )
    return [(row.name, row.uid) for row in await session.execute(query)]


async def documents(session: AsyncSession, kind: ApiKind, uids: Sequence[str]) -> list[dict[str, Any]]:
    """The documents of these uids, in that order; one that has gone meanwhile is left out."""
    rows = {
        r.uid: r
        for r in await session.scalars(select(Resource).where(Resource.uid.in_(uids), Resource.deleted_at.is_(None)))
    }
    items: dict[str, InventoryItem] = {}
    if kind.observed:
        found = select(InventoryItem).where(InventoryItem.kind == kind.name, InventoryItem.uid.in_(uids))
        items = {i.uid: i for i in await session.scalars(found)}
    seen = select(Status).where(Status.kind == kind.name, Status.uid.in_(uids))
    states = {s.uid: s for s in await session.scalars(seen)}
    holds = await held(session, kind.name, uids) if kind.holdable else {}
    uses: dict[str, JoinToken] = {}
    if kind.name == "join-token":
        uses = {t.uid: t for t in await session.scalars(select(JoinToken).where(JoinToken.uid.in_(uids)))}
    return [
        document(kind, rows.get(uid), items.get(uid), states.get(uid), holds.get(uid), uses.get(uid))
        for uid in uids
        if uid in rows or uid in items
    ]


def document(
    kind: ApiKind,
    row: Resource | None,
    item: InventoryItem | None,
    state: Status | None,
    hold: tuple[str, str] | None,
    token: JoinToken | None,
) -> dict[str, Any]:
    conditions = [_condition(c) for c in (state.conditions if state is not None else ())]
    if kind.holdable:
        own = [_condition(c) for c in hold_conditions([hold] if hold else [])]
        conditions = [c for c in conditions if c["type"] not in {o["type"] for o in own}] + own
    status = {
        "managed_by": row.owner if row is not None else "agent",
        "secret_hint": row.secret_hint if row is not None else None,
        "conditions": conditions,
        "observed": (dict(state.observed) if state is not None else {}) | _observed(item) | _token_use(token),
    }
    if row is not None:
        spec = full_spec(kind, row.spec)
        return {
            "kind": kind.name,
            "name": row.name,
            "uid": row.uid,
            "labels": row.labels,
            "annotations": row.annotations,
            "spec": spec,
            "status": status,
            "generation": row.generation,
            "resource_version": row.resource_version,
            "created_at": _time(row.created_at),
            "updated_at": _time(row.updated_at),
        }
    assert item is not None
    return {
        "kind": kind.name,
        "name": item.name,
        "uid": item.uid,
        "labels": {},
        "annotations": {},
        "spec": _reported_spec(item),
        "status": status,
        "generation": 1,
        "resource_version": f"r{item.incarnation}-{item.sequence}",
        "created_at": _time(item.first_seen_at),
        "updated_at": _time(item.last_seen_at),
    }


def _observed(item: InventoryItem | None) -> dict[str, Any]:
    if item is None:
        return {}
    return dict(item.body) | {
        "state": item.state,
        "zone": item.zone,
        "region": item.region,
        "node_uid": item.node_uid,
        "last_seen_at": _time(item.last_seen_at),
    }


def _token_use(token: JoinToken | None) -> dict[str, Any]:
    return {} if token is None else {"used": token.used, "uses": token.uses, "expires_at": _time(token.expires_at)}


def _reported_spec(item: InventoryItem) -> dict[str, Any]:
    """What the spec of a reported thing would be if a user had written it."""
    body: Mapping[str, Any] = item.body
    match item.kind:
        case "node":
            return {"zone": item.zone, "gpus": []}
        case "endpoint":
            return {
                "node": body.get("node", ""),
                "url": body.get("url", ""),
                "engine": body.get("kind", "openai"),
                "models": body.get("models", []),
                "gpus": body.get("gpu_uuids", []),
                "tensor_parallel": body.get("tensor_parallel", 1),
                "max_inflight": body.get("max_inflight"),
                "kv_tokens": body.get("kv_tokens"),
            }
        case _:
            return {}


def _condition(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": raw["type"],
        "status": raw["status"],
        "reason": raw.get("reason", ""),
        "message": raw.get("message", ""),
        "last_transition_time": raw.get("last_transition_time"),
        "observed_generation": raw.get("observed_generation"),
    }


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
