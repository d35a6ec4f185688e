"""Leadership for jobs: a lease row with a fencing token. Works through a transaction pooler and on SQLite.

A leader may believe in its lease for longer than it holds it (it was paused, its clock is slow). Therefore every write it does
as leader checks the token in the same transaction: a former leader's write fails, whatever it believes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.store.database import Database
from controlplane.tables import LeaseRow
from fleet.clock import Clock, SystemClock
from fleet.errors import HeadraceError


class Fenced(HeadraceError):
    """The writer is no longer the leader; the transaction must be given up."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of leadership, to be checked inside every write of the leader."""

    place: str
    token: int


class Leadership:
    """One place, such as ``housekeeping``, that at most one holder has at a time."""

    def __init__(
        self, database: Database, place: str, holder: str, *, ttl_seconds: float = 10.0, clock: Clock | None = None
    ) -> None:
        """``holder`` is unique per process start. Time is the database's on PostgreSQL, this machine's on SQLite."""
        self._database = database
        self._place = place
        self._holder = holder
        self._ttl = timedelta(seconds=ttl_seconds)
        self._clock = clock or SystemClock()

    async def hold(self) -> Fence | None:
        """Take the place if it is free or lapsed, renew it if it is ours; None while another has it."""
        try:
            async with self._database.write() as session:
                now = await self._now(session)
                row = (
                    await session.execute(select(LeaseRow).where(LeaseRow.place == self._place).with_for_update())
                ).scalar_one_or_none()
                if row is None:
                    values = {"place": self._place, "holder": self._holder, "token": 1, "expires_at": now + self._ttl}
                    await session.execute(insert(LeaseRow).values(values))
                    return Fence(self._place, 1)
                if row.holder != self._holder:
                    if row.expires_at > now:
                        return None
                    row.holder, row.token = self._holder, row.token + 1
                row.expires_at = now + self._ttl
                return Fence(self._place, row.token)
        except IntegrityError:
            return None  # another made the row in the same moment and has it

    async def release(self) -> None:
        """Let the next one in at once. Harmless when the place is not ours."""
        async with self._database.write() as session:
            lapsed = update(LeaseRow).where(LeaseRow.place == self._place, LeaseRow.holder == self._holder)
            await session.execute(lapsed.values(expires_at=datetime.fromtimestamp(0, UTC), holder=""))

    async def _now(self, session: AsyncSession) -> datetime:
        if not self._database.postgres:
            return datetime.fromtimestamp(self._clock.wall(), UTC)
        moment = (await session.execute(text("SELECT clock_timestamp()"))).scalar_one()
        assert isinstance(moment, datetime)
        return moment


async def check_fence(session: AsyncSession, fence: Fence) -> None:
    """Raises Fenced unless ``fence`` still leads; holds the lease row until the transaction ends, so nobody overtakes it."""
    row = select(LeaseRow.token).where(LeaseRow.place == fence.place).with_for_update(read=True)
    if (await session.execute(row)).scalar_one_or_none() != fence.token:
        raise Fenced(f"no longer leading {fence.place}")
