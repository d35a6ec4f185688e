"""The intent feed: a gapless, ordered history of what users want, and the objects as they stand.

Version: a one-row counter. A writer locks the row before anything else and updates it as the last statement of its
transaction, so commits serialise, versions have no gaps, and checks of references and names race with nobody. SQLite gives the
same by BEGIN IMMEDIATE. Reports and status never come here.

Epoch: raised when history may have been lost (``headrace db restored``, another PostgreSQL system or timeline). It is at least
the Unix time of its raising, so that restoring one backup twice gives two epochs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, text, update
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.secrets import DeploymentSecrets, SealBroken
from controlplane.store.database import Database, DatabaseUnavailable
from controlplane.store.hints import CHANNEL, listen
from controlplane.tables import IntentChange, IntentHead, Resource
from fleet.clock import Clock, SystemClock
from fleet.process.logs import get_logger
from fleet.snapshot import IntentObject, IntentVersion, canonical_json

UNPUBLISHED_KINDS = frozenset({"admin-token", "join-token"})
"""Resources that routers are never told about."""
HISTORY_VERSIONS = 10_000
LINEAGE_CHECK_SECONDS = 5.0

log = get_logger("controlplane.store.intent")


@dataclass(frozen=True, slots=True)
class Change:
    """What one version changed. Versions of an epoch are consecutive."""

    at: IntentVersion
    upserts: tuple[IntentObject, ...]
    removals: tuple[tuple[str, str], ...]
    """(kind, uid)"""


def seal_context(kind: str, uid: str) -> str:
    return f"{kind}/{uid}"


def next_chain(
    chain: bytes, epoch: int, version: int, upserts: Iterable[IntentObject], removals: Iterable[tuple[str, str]]
) -> bytes:
    """The chain digest after one more version: binds it to all changes before and to their order."""
    body = [epoch, version, [f"{o.digest():x}" for o in upserts], [list(r) for r in removals]]
    return hashlib.blake2b(chain + canonical_json(body), digest_size=32, person=b"headrace-chain").digest()


class IntentFeed:
    """Reads and writes the feed. One per process; ``close`` ends its background polling."""

    def __init__(
        self,
        database: Database,
        secrets: DeploymentSecrets,
        clock: Clock | None = None,
        *,
        direct_url: str = "",
        poll_seconds: float = 0.2,
        history_versions: int = HISTORY_VERSIONS,
    ) -> None:
        """``direct_url`` reaches the same PostgreSQL past a transaction pooler, for notifications (only a hint)."""
        self._database = database
        self._secrets = secrets
        self._clock = clock or SystemClock()
        self._direct_url = direct_url
        self._poll_seconds = poll_seconds
        self._history_versions = history_versions
        self._lineage_readable: bool | None = None
        self._seen: IntentVersion | None = None
        self._news = asyncio.Condition()
        self._hint = asyncio.Event()
        self._waiters = 0
        self._poller: asyncio.Task[None] | None = None

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)

    # Writing

    async def lock(self, session: AsyncSession) -> IntentVersion:
        """Take the writers' lock until the transaction ends; the head as it stands. Call it before touching any other row."""
        await self._learn_lineage(session)
        statement = select(
            IntentHead.epoch, IntentHead.version, IntentHead.chain, IntentHead.system_id, IntentHead.timeline
        )
        row = (await session.execute(statement.with_for_update())).one_or_none()
        if row is None:
            raise DatabaseUnavailable("the database has no intent feed yet; run: headrace db upgrade")
        lineage = await self._lineage(session)
        if lineage is None or lineage == (row.system_id, row.timeline):
            return IntentVersion(row.epoch, row.version, row.chain)
        system_id, timeline = lineage
        await session.execute(update(IntentHead).values(system_id=system_id, timeline=timeline))
        if not row.system_id:
            return IntentVersion(row.epoch, row.version, row.chain)
        return await self.new_epoch(session, "another PostgreSQL system or timeline")

    async def record(
        self,
        session: AsyncSession,
        *,
        upserts: Sequence[IntentObject] = (),
        removals: Sequence[tuple[str, str]] = (),
        head: IntentVersion | None = None,
    ) -> IntentVersion:
        """Publish a change as the next version: the last thing a writing transaction does, after the rows it tells of.

        ``secrets`` of the objects are in clear here and sealed in the history. ``head`` is what ``lock`` gave in this transaction.
        """
        head = head or await self.lock(session)
        version = head.version + 1
        chain = next_chain(head.chain, head.epoch, version, upserts, removals)
        row = {
            "epoch": head.epoch,
            "version": version,
            "chain": chain,
            "upserts": [self._to_row(o) for o in upserts],
            "removals": [list(r) for r in removals],
            "created_at": self.now(),
        }
        await session.execute(insert(IntentChange).values(row))
        if version % 100 == 0:
            await session.execute(delete(IntentChange).where(IntentChange.version <= version - self._history_versions))
        await self._advance(session, head.epoch, version, chain)
        return IntentVersion(head.epoch, version, chain)

    async def new_epoch(self, session: AsyncSession, reason: str) -> IntentVersion:
        """Start a new epoch at the present version, under the writers' lock. Every router resyncs."""
        row = (
            await session.execute(select(IntentHead.epoch, IntentHead.version, IntentHead.chain).with_for_update())
        ).one()
        epoch = max(row.epoch + 1, int(self._clock.wall()))
        chain = hashlib.blake2b(row.chain + os.urandom(16), digest_size=32).digest()
        values = {
            "epoch": epoch,
            "version": row.version,
            "chain": chain,
            "upserts": [],
            "removals": [],
            "created_at": self.now(),
        }
        await session.execute(insert(IntentChange).values(values))
        await self._advance(session, epoch, row.version, chain)
        log.warning("intent_epoch_started", epoch=epoch, version=row.version, reason=reason)
        return IntentVersion(epoch, row.version, chain)

    async def _advance(self, session: AsyncSession, epoch: int, version: int, chain: bytes) -> None:
        statement = update(IntentHead).values(epoch=epoch, version=version, chain=chain)
        if self._database.postgres:
            await session.execute(statement.returning(func.pg_notify(CHANNEL, f"{epoch}-{version}")))
        else:
            await session.execute(statement)
        self._hint.set()

    # Reading

    async def head(self) -> IntentVersion:
        async with self._database.read() as session:
            return await self._head(session)

    async def at(self, epoch: int, version: int) -> IntentVersion | None:
        """The version with its chain; None when it is not in the history."""
        async with self._database.read() as session:
            chain = select(IntentChange.chain).where(IntentChange.epoch == epoch, IntentChange.version == version)
            found = (await session.execute(chain)).scalar_one_or_none()
        return IntentVersion(epoch, version, found) if found is not None else None

    async def changes_since(self, have: IntentVersion, *, limit: int = 1000) -> list[Change] | None:
        """The versions after ``have``, oldest first, at most ``limit``; empty when ``have`` is the head.

        None when ``have`` is not in this history (another epoch or chain, ahead of the head, or trimmed): send a full snapshot.
        """
        async with self._database.read() as session:
            head = await self._head(session)
            if have.epoch != head.epoch or have.version > head.version:
                return None
            start = await session.get(IntentChange, (have.epoch, have.version))
            if start is None or start.chain != have.chain:
                return None
            rows = await session.execute(
                select(
                    IntentChange.epoch,
                    IntentChange.version,
                    IntentChange.chain,
                    IntentChange.upserts,
                    IntentChange.removals,
                )
                .where(IntentChange.epoch == have.epoch, IntentChange.version > have.version)
                .order_by(IntentChange.version)
                .limit(limit)
            )
            return [self._change(row) for row in rows]

    async def load_objects(self) -> tuple[IntentVersion, list[IntentObject]]:
        """Everything that is published, and the version at which it stood so."""
        async with self._database.read() as session:
            head = await self._head(session)
            rows = await session.execute(
                select(
                    Resource.kind,
                    Resource.uid,
                    Resource.name,
                    Resource.generation,
                    Resource.spec,
                    Resource.labels,
                    Resource.sealed,
                )
                .where(Resource.deleted_at.is_(None), Resource.kind.not_in(UNPUBLISHED_KINDS))
                .order_by(Resource.kind, Resource.name)
            )
            return head, [self._object(dict(row)) for row in rows.mappings()]

    # Waiting

    async def wait(self, after: IntentVersion, timeout_seconds: float) -> IntentVersion:
        """The head, as soon as it is not ``after``; else the last one seen when the time is over.

        All waiters of a process share one query every ``poll_seconds``. While the database is away they simply wait.
        """
        self._waiters += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="intent-poll")
        try:
            async with asyncio.timeout(timeout_seconds), self._news:
                while self._seen is None or self._seen == after:
                    await self._news.wait()
        except TimeoutError:
            pass  # nothing new is a normal answer
        finally:
            self._waiters -= 1
        return self._seen or after

    async def close(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)

    async def _poll(self) -> None:
        """Runs while somebody waits, and a little longer, so that a watch in a loop does not start it anew each time."""
        listener: asyncio.Task[None] | None = None
        if self._database.postgres:
            url = self._direct_url or self._database.url.render_as_string(hide_password=False)
            listener = asyncio.create_task(listen(url, self._hint.set), name="intent-listen")
        checked_at, idle = self._clock.monotonic(), 0
        try:
            while idle < 25:
                idle = 0 if self._waiters else idle + 1
                self._hint.clear()
                try:
                    if self._clock.monotonic() - checked_at >= LINEAGE_CHECK_SECONDS:
                        checked_at = self._clock.monotonic()
                        await self.check_lineage()
                    seen = await self.head()
                except (DatabaseUnavailable, SQLAlchemyError) as error:
                    # Whatever the database says, those who wait go on waiting: a fault of its own is told by whoever needs it next.
                    log.warning(
                        "intent_poll_failed",
                        error=str(error) if isinstance(error, DatabaseUnavailable) else type(error).__name__,
                    )
                    await asyncio.sleep(min(1.0, self._poll_seconds * 5))
                    continue
                if seen != self._seen:
                    self._seen = seen
                    async with self._news:
                        self._news.notify_all()
                try:
                    async with asyncio.timeout(self._poll_seconds):
                        await self._hint.wait()
                except TimeoutError:
                    pass  # the hint is only a hint
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    async def check_lineage(self) -> None:
        """Start a new epoch if PostgreSQL is no longer the one that took the last write (promoted, restored, replaced)."""
        async with self._database.read() as session:
            await self._learn_lineage(session)
            held = (await session.execute(select(IntentHead.system_id, IntentHead.timeline))).one_or_none()
            now = await self._lineage(session)
        same = now is None or held is None or not held.system_id or now == (held.system_id, held.timeline)
        if not same:
            async with self._database.write() as session:
                await self.lock(session)

    # Rows

    async def _head(self, session: AsyncSession) -> IntentVersion:
        row = (await session.execute(select(IntentHead.epoch, IntentHead.version, IntentHead.chain))).one_or_none()
        if row is None:
            raise DatabaseUnavailable("the database has no intent feed yet; run: headrace db upgrade")
        return IntentVersion(row.epoch, row.version, row.chain)

    def _to_row(self, obj: IntentObject) -> dict[str, Any]:
        sealed = None
        if obj.secrets:
            sealed = self._secrets.seal(canonical_json(obj.secrets).decode(), seal_context(obj.kind, obj.uid))
        return {
            "kind": obj.kind,
            "uid": obj.uid,
            "name": obj.name,
            "generation": obj.generation,
            "spec": dict(obj.spec),
            "labels": dict(obj.labels),
            "sealed": sealed,
        }

    def _change(self, row: Row[Any]) -> Change:
        removals = tuple((str(kind), str(uid)) for kind, uid in row.removals)
        return Change(
            IntentVersion(row.epoch, row.version, row.chain), tuple(self._object(o) for o in row.upserts), removals
        )

    def _object(self, row: Mapping[str, Any]) -> IntentObject:
        return IntentObject(
            row["kind"], row["uid"], row["name"], row["generation"], row["spec"], row["labels"], self.open_secrets(row)
        )

    def open_secrets(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The secrets of a row in clear. Empty, with a line in the log, when no SECRET_KEY opens them: the rest still applies."""
        if not row["sealed"]:
            return {}
        try:
            opened = json.loads(self._secrets.unseal(row["sealed"], seal_context(row["kind"], row["uid"])))
        except SealBroken as error:
            log.error("secret_not_opened", kind=row["kind"], name=row["name"], error=str(error))
            return {}
        assert isinstance(opened, dict)
        return opened

    # Lineage

    async def _learn_lineage(self, session: AsyncSession) -> None:
        """Find out once whether this database says which system and timeline it is; managed ones may not.

        In a savepoint of the caller's transaction: a second connection could wait for the first for ever.
        """
        if self._lineage_readable is not None:
            return
        if not self._database.postgres:
            self._lineage_readable = False
            return
        try:
            async with session.begin_nested():
                await self._read_lineage(session)
            self._lineage_readable = True
        except ProgrammingError as error:
            log.warning(
                "lineage_not_readable", error=str(error.orig), consequence="run: headrace db restored after a failover"
            )
            self._lineage_readable = False

    async def _lineage(self, session: AsyncSession) -> tuple[str, str] | None:
        return await self._read_lineage(session) if self._lineage_readable else None

    async def _read_lineage(self, session: AsyncSession) -> tuple[str, str]:
        row = (
            await session.execute(
                text(
                    "SELECT (SELECT system_identifier FROM pg_control_system())::text AS system_id,"
                    " substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS timeline"
                )
            )
        ).one()
        return row.system_id, row.timeline
