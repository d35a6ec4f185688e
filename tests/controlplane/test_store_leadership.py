"""Leadership: one holder at a time, and a former one is fenced off whatever it believes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update

from controlplane.store.database import Database
from controlplane.store.housekeeping import tidy
from controlplane.store.leadership import Fenced, Leadership, check_fence
from controlplane.tables import Event, IdempotentCall, LeaseRow, Resource, StoredSecret
from fleet.clock import ManualClock


async def _lapse(database: Database) -> None:
    """As if the holder had been paused for longer than its lease, by the database's own clock."""
    async with database.write() as session:
        await session.execute(update(LeaseRow).values(expires_at=datetime.fromtimestamp(0, UTC)))


async def test_one_leads_until_it_lapses_or_lets_go(database: Database, clock: ManualClock) -> None:
    one, two = (Leadership(database, "planning", holder, clock=clock) for holder in ("one", "two"))

    first = await one.hold()
    assert first is not None
    assert await one.hold() == first, "renewing keeps the token"
    assert await two.hold() is None
    assert await Leadership(database, "rollups", "two", clock=clock).hold() is not None, "places are apart"

    await _lapse(database)
    second = await two.hold()
    assert second is not None
    assert second.token > first.token
    assert await one.hold() is None

    await two.release()
    third = await one.hold()
    assert third is not None
    assert third.token > second.token


async def test_many_that_ask_at_once_get_one_leader(database: Database, clock: ManualClock) -> None:
    holders = [Leadership(database, "planning", f"h{n}", clock=clock) for n in range(10)]

    fences = await asyncio.gather(*(h.hold() for h in holders))

    assert sum(f is not None for f in fences) == 1


async def test_a_leader_that_wakes_up_late_writes_nothing(database: Database, clock: ManualClock) -> None:
    """rel-R8, shortened: the paused leader still thinks it leads."""
    one, two = (Leadership(database, "planning", holder, clock=clock) for holder in ("one", "two"))
    accepted = 0
    for trial in range(20):
        old = await one.hold()
        assert old is not None
        await _lapse(database)
        new = await two.hold()
        assert new is not None
        try:
            async with database.write() as session:
                session.add(StoredSecret(name=f"old-{trial}", sealed="x", updated_at=datetime.now(UTC)))
                await check_fence(session, old)
            accepted += 1
        except Fenced:
            pass
        async with database.write() as session:
            await check_fence(session, new)
        await two.release()
    async with database.read() as session:
        written = list(await session.scalars(select(StoredSecret.name)))

    assert accepted == 0
    assert written == []


async def test_housekeeping_removes_what_has_lapsed_and_nothing_else(database: Database) -> None:
    now = datetime(2026, 9, 21, tzinfo=UTC)

    def resource(uid: str, deleted_days: int | None) -> Resource:
        deleted = None if deleted_days is None else now - timedelta(days=deleted_days)
        return Resource(
            uid=uid,
            kind="region",
            name=uid,
            spec={},
            resource_version="1",
            created_at=now,
            updated_at=now,
            deleted_at=deleted,
        )

    def event(uid: str, days: int) -> Event:
        at = now - timedelta(days=days)
        return Event(uid=uid, reason="X", message="", kind="node", name="n", occurred_at=at, recorded_at=at)

    def call(key: str, hours: int) -> IdempotentCall:
        at = now - timedelta(hours=hours)
        return IdempotentCall(
            actor_uid="a",
            key_digest=key,
            request_digest=b"",
            owner="o",
            started_at=at,
            expires_at=at + timedelta(hours=24),
        )

    async with database.write() as session:
        session.add_all([resource("live", None), resource("young", 89), resource("old", 91)])
        session.add_all([event("new", 29), event("past", 31), call("kept", 23), call("gone", 25)])
    async with database.write() as session:
        gone = await tidy(session, now)

    assert gone == {"tombstones": 1, "answers": 1, "events": 1, "join_answers": 0, "join_tokens": 0}
    async with database.read() as session:
        assert set(await session.scalars(select(Resource.uid))) == {"live", "young"}
        assert set(await session.scalars(select(Event.uid))) == {"new"}
        assert set(await session.scalars(select(IdempotentCall.key_digest))) == {"kept"}
