"""Cordon and drain: intent objects of their own (kind ``hold``), so that they outlive reboots and re-joins of what they hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.api.work import Transaction
from controlplane.tables import Resource
from fleet.intent import HoldState
from fleet.resources.translate import HOLD_KIND


def hold_name(target_kind: str, target_uid: str) -> str:
    return f"{target_kind}.{target_uid}"


async def held(session: AsyncSession, target_kind: str, target_uids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """(state, reason) by target uid, of those that are held."""
    names = [hold_name(target_kind, uid) for uid in target_uids]
    if not names:
        return {}
    rows = select(Resource.spec).where(
        Resource.kind == HOLD_KIND, Resource.name.in_(names), Resource.deleted_at.is_(None)
    )
    specs: list[Mapping[str, Any]] = list(await session.scalars(rows))
    return {spec["target"]: (spec["state"], spec.get("reason", "")) for spec in specs}


async def hold(tx: Transaction, target_kind: str, target_uid: str, state: HoldState, reason: str) -> bool:
    """Set the hold; False when it is set so already. A drain replaces a cordon and the other way round."""
    name = hold_name(target_kind, target_uid)
    spec = {"target_kind": target_kind, "target": target_uid, "state": state.value, "reason": reason}
    row = await tx.world.get(HOLD_KIND, name)
    if row is None:
        row = Resource(
            uid=str(uuid.uuid4()),
            kind=HOLD_KIND,
            name=name,
            owner="user",
            labels={},
            annotations={},
            spec=spec,
            generation=1,
            resource_version=tx.version,
            created_at=tx.now,
            updated_at=tx.now,
        )
        tx.world.add(row)
    elif row.spec == spec:
        return False
    else:
        row.spec, row.generation = spec, row.generation + 1
        row.resource_version, row.updated_at = tx.version, tx.now
    tx.written("held", row, {})
    return True


async def release(tx: Transaction, target_kind: str, target_uid: str) -> bool:
    """Take the hold away; False when there is none."""
    row = await tx.world.get(HOLD_KIND, hold_name(target_kind, target_uid))
    if row is None:
        return False
    tx.world.bury(row, tx.now, tx.version)
    tx.removed(row)
    return True
