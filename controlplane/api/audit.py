"""The audit log: entries bound to one another by hashes, so that an altered, removed or inserted one is found."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.api.auth import Principal
from controlplane.tables import AuditEntry
from fleet.snapshot import canonical_json

GENESIS = bytes(32)
_BATCH = 500


@dataclass(frozen=True, slots=True)
class AuditDraft:
    """An entry before it has its place in the log."""

    occurred_at: datetime
    who: Principal
    action: str
    kind: str
    name: str
    outcome: int
    request_id: str
    detail: dict[str, Any]


def entry_hash(previous: bytes, entry: AuditEntry) -> bytes:
    body = [
        entry.sequence,
        entry.occurred_at.isoformat(timespec="microseconds"),
        entry.actor,
        entry.actor_uid,
        entry.role,
        entry.action,
        entry.kind,
        entry.name,
        entry.outcome,
        entry.request_id,
        entry.detail,
    ]
    return hashlib.blake2b(previous + canonical_json(body), digest_size=32, person=b"headrace-audit").digest()


async def append(session: AsyncSession, draft: AuditDraft) -> None:
    """Add an entry, under the writers' lock (``IntentFeed.lock``): the log has one end."""
    last = select(AuditEntry.sequence, AuditEntry.hash).order_by(AuditEntry.sequence.desc()).limit(1)
    end = (await session.execute(last)).one_or_none()
    sequence, previous = (end.sequence, end.hash) if end else (0, GENESIS)
    entry = AuditEntry(
        sequence=sequence + 1,
        occurred_at=draft.occurred_at,
        actor=draft.who.name,
        actor_uid=draft.who.uid,
        role=draft.who.role.value,
        action=draft.action[:64],
        kind=draft.kind[:64],
        name=draft.name[:256],
        outcome=draft.outcome,
        request_id=draft.request_id,
        detail=draft.detail,
    )
    values = {c.key: getattr(entry, c.key) for c in AuditEntry.__table__.columns if c.key != "hash"}
    await session.execute(insert(AuditEntry).values(values | {"hash": entry_hash(previous, entry)}))


async def entries(session: AsyncSession) -> AsyncIterator[AuditEntry]:
    """All entries, oldest first, a batch at a time."""
    after = 0
    while True:
        query = select(AuditEntry).where(AuditEntry.sequence > after).order_by(AuditEntry.sequence).limit(_BATCH)
        batch = list(await session.scalars(query))
        for entry in batch:
            yield entry
            session.expunge(entry)
        if len(batch) < _BATCH:
            return
        after = batch[-1].sequence


async def first_broken(session: AsyncSession) -> tuple[int, int | None]:
    """(entries checked, sequence of the first that does not follow from the one before; None when all do)."""
    previous, count = GENESIS, 0
    async for entry in entries(session):
        count += 1
        if entry.sequence != count or entry.hash != entry_hash(previous, entry):
            return count, entry.sequence
        previous = entry.hash
    return count, None
