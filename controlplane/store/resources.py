"""Rows of resources: reading the live ones, writing with generation and version, tombstones. No rules of the API are here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.tables import Resource
from fleet.snapshot import IntentObject, IntentVersion

TOMBSTONE_DAYS = 90
_BATCH = 500


def resource_version(at: IntentVersion) -> str:
    """The opaque version of what was written at ``at``."""
    return f"{at.epoch}-{at.version}"


def intent_object(row: Resource, secrets: Mapping[str, Any]) -> IntentObject:
    """The row as published; ``secrets`` in clear."""
    return IntentObject(row.kind, row.uid, row.name, row.generation, row.spec, row.labels, secrets)


class World:
    """The live resources as a transaction sees them, its own writes included. Kinds are read when they are asked for."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._kinds: dict[str, dict[str, Resource]] = {}
        self._single: dict[tuple[str, str], Resource | None] = {}
        self._key_owners: dict[str, str] | None = None

    async def all(self, kind: str) -> dict[str, Resource]:
        """Every live resource of a kind by name. The dict is this object's own: do not change it."""
        if kind not in self._kinds:
            rows = await self._session.scalars(
                select(Resource).where(Resource.kind == kind, Resource.deleted_at.is_(None))
            )
            self._kinds[kind] = {row.name: row for row in rows} | {
                name: row
                for (k, name), row in self._single.items()
                if k == kind and row is not None and row.deleted_at is None
            }
        return self._kinds[kind]

    async def get(self, kind: str, name: str) -> Resource | None:
        """The live resource of that name."""
        if kind in self._kinds:
            return self._kinds[kind].get(name)
        if (kind, name) not in self._single:
            found = select(Resource).where(Resource.kind == kind, Resource.name == name, Resource.deleted_at.is_(None))
            self._single[kind, name] = (await self._session.scalars(found)).one_or_none()
        return self._single[kind, name]

    async def by_uid(self, uid: str) -> Resource | None:
        row = await self._session.get(Resource, uid)
        return row if row is not None and row.deleted_at is None else None

    async def key_owner(self, digests: Collection[str]) -> str | None:
        """The uid of the live key that is known by one of these digests."""
        if "key" in self._kinds:
            if self._key_owners is None:
                rows = self._kinds["key"].values()
                self._key_owners = {row.secret_digest: row.uid for row in rows if row.secret_digest is not None}
            return next((self._key_owners[d] for d in digests if d in self._key_owners), None)
        known = select(Resource.uid).where(
            Resource.kind == "key", Resource.deleted_at.is_(None), Resource.secret_digest.in_(digests)
        )
        with self._session.no_autoflush:
            return (await self._session.scalars(known.limit(1))).one_or_none()

    def key_digest_changed(self, row: Resource, old: str | None) -> None:
        """``row`` is known by another digest than before."""
        if self._key_owners is not None:
            self._key_owners.pop(old or "", None)
            assert row.secret_digest is not None
            self._key_owners[row.secret_digest] = row.uid

    def add(self, row: Resource) -> None:
        """A new resource of this transaction."""
        self._session.add(row)
        self._single[row.kind, row.name] = row
        if row.kind in self._kinds:
            self._kinds[row.kind][row.name] = row

    def bury(self, row: Resource, now: datetime, version: str) -> None:
        """Make a tombstone: the name is free again, the uid never is. Its secrets are gone at once."""
        row.deleted_at = row.updated_at = now
        row.resource_version = version
        row.sealed = row.secret_digest = row.secret_hint = None
        self._single[row.kind, row.name] = None
        self._kinds.get(row.kind, {}).pop(row.name, None)


async def rows_by_uid(session: AsyncSession, uids: Collection[str]) -> dict[str, Resource]:
    found: dict[str, Resource] = {}
    for batch in _batches(uids):
        rows = await session.scalars(select(Resource).where(Resource.uid.in_(batch), Resource.deleted_at.is_(None)))
        found |= {row.uid: row for row in rows}
    return found


async def purge_tombstones(session: AsyncSession, now: datetime) -> int:
    """Remove tombstones older than 90 days; how many there were."""
    old = Resource.deleted_at < now - timedelta(days=TOMBSTONE_DAYS)
    gone = await session.execute(delete(Resource).where(old).returning(Resource.uid))
    return len(gone.all())


def _batches(items: Iterable[str]) -> Iterable[list[str]]:
    listed = list(items)
    for start in range(0, len(listed), _BATCH):
        yield listed[start : start + _BATCH]
