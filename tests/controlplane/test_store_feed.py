"""The intent feed on both engines: gapless versions, one history, sealed secrets."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import select, text, update

from controlplane.secrets import DeploymentSecrets
from controlplane.store import migrate
from controlplane.store.database import Database
from controlplane.store.intent import Change, IntentFeed, next_chain, seal_context
from controlplane.tables import IntentChange, IntentHead, Resource
from fleet.clock import ManualClock
from fleet.snapshot import IntentObject, IntentVersion, canonical_json

WRITERS, TRANSACTIONS = 8, 1000


def _object(name: str, generation: int = 1, **secrets: str) -> IntentObject:
    return IntentObject(
        "endpoint", f"uid-{name}", name, generation, {"number": generation, "share": 0.1}, {"a": "b"}, secrets
    )


async def _record(database: Database, feed: IntentFeed, *objects: IntentObject) -> IntentVersion:
    async with database.write() as session:
        await feed.lock(session)
        return await feed.record(session, upserts=objects)


async def test_versions_are_consecutive_and_carry_what_changed(database: Database, feed: IntentFeed) -> None:
    start = await feed.head()
    first = await _record(database, feed, _object("one"))
    second = await _record(database, feed, _object("one", 2), _object("two"))
    async with database.write() as session:
        await feed.lock(session)
        third = await feed.record(session, removals=[("endpoint", "uid-two")])

    changes = await feed.changes_since(start)

    assert [v.version for v in (first, second, third)] == [start.version + 1, start.version + 2, start.version + 3]
    assert changes == [
        Change(first, (_object("one"),), ()),
        Change(second, (_object("one", 2), _object("two")), ()),
        Change(third, (), (("endpoint", "uid-two"),)),
    ]
    assert await feed.changes_since(second) == changes[2:]
    assert await feed.changes_since(third) == []
    assert await feed.at(second.epoch, second.version) == second


async def test_the_chain_binds_every_version_to_all_before(database: Database, feed: IntentFeed) -> None:
    start = await feed.head()
    for number in range(3):
        await _record(database, feed, _object(f"n{number}"))

    chain = start.chain
    for change in await feed.changes_since(start) or []:
        chain = next_chain(chain, change.at.epoch, change.at.version, change.upserts, change.removals)
        assert change.at.chain == chain
    assert (await feed.head()).chain == chain


@pytest.mark.parametrize("damage", ["chain", "epoch", "ahead"])
async def test_what_is_not_in_the_history_wants_a_full_snapshot(
    database: Database, feed: IntentFeed, damage: str
) -> None:
    at = await _record(database, feed, _object("one"))
    have = {
        "chain": IntentVersion(at.epoch, at.version, b"other"),
        "epoch": IntentVersion(at.epoch + 1, at.version, at.chain),
        "ahead": IntentVersion(at.epoch, at.version + 1, at.chain),
    }[damage]

    assert await feed.changes_since(have) is None


async def test_old_history_is_trimmed(database: Database, secrets: DeploymentSecrets, clock: ManualClock) -> None:
    feed = IntentFeed(database, secrets, clock, history_versions=20)
    start = await feed.head()
    for number in range(100):
        kept = await _record(database, feed, _object("one", number))

    assert await feed.changes_since(start) is None
    async with database.read() as session:
        versions = list(await session.scalars(select(IntentChange.version).order_by(IntentChange.version)))
    assert versions == list(range(81, kept.version + 1))


async def test_a_failed_transaction_uses_up_no_version(database: Database, feed: IntentFeed) -> None:
    before = await feed.head()

    async def give_up() -> None:
        async with database.write() as session:
            await feed.lock(session)
            await feed.record(session, upserts=[_object("one")])
            raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError, match="changed my mind"):
        await give_up()

    assert await feed.head() == before
    assert (await _record(database, feed, _object("one"))).version == before.version + 1


async def test_secrets_are_published_in_clear_and_kept_sealed(
    database: Database, feed: IntentFeed, secrets: DeploymentSecrets, clock: ManualClock
) -> None:
    start, now = await feed.head(), feed.now()
    sealed = secrets.seal(canonical_json({"api_key": "canary-7f3a"}).decode(), seal_context("endpoint", "uid-one"))
    async with database.write() as session:
        await feed.lock(session)
        row = Resource(
            uid="uid-one",
            kind="endpoint",
            name="one",
            spec={},
            sealed=sealed,
            resource_version="1",
            created_at=now,
            updated_at=now,
        )
        session.add(row)
        await feed.record(session, upserts=[_object("one", api_key="canary-7f3a")])

    _, objects = await feed.load_objects()
    changes = await feed.changes_since(start) or []
    assert objects[0].secrets == {"api_key": "canary-7f3a"}
    assert changes[0].upserts[0].secrets == {"api_key": "canary-7f3a"}
    async with database.read() as session:
        for table in ("resources", "intent_changes"):
            rows = (await session.execute(text(f"SELECT * FROM {table}"))).all()  # noqa: S608
            assert rows
            assert "canary" not in str(rows)

    other = IntentFeed(database, DeploymentSecrets.of(["another root key for tests"]), clock)
    _, unopened = await other.load_objects()
    assert unopened[0].secrets == {}, "what cannot be opened is left out, and the rest still applies"


async def test_tombstones_and_tokens_are_not_published(database: Database, feed: IntentFeed) -> None:
    now = feed.now()
    async with database.write() as session:
        for uid, kind, deleted in (("1", "region", None), ("2", "region", now), ("3", "admin-token", None)):
            session.add(
                Resource(
                    uid=uid,
                    kind=kind,
                    name=f"n{uid}",
                    spec={},
                    resource_version="1",
                    created_at=now,
                    updated_at=now,
                    deleted_at=deleted,
                )
            )

    _, objects = await feed.load_objects()

    assert [o.uid for o in objects] == ["1"]


async def test_waiting_ends_with_the_next_version_written_by_another_copy(
    database: Database, database_url: str, feed: IntentFeed, secrets: DeploymentSecrets
) -> None:
    head = await feed.head()
    assert await feed.wait(head, 0.3) == head, "nothing new is a normal answer"
    other_database = Database(database_url)
    other = IntentFeed(other_database, secrets)
    waiting = [asyncio.create_task(feed.wait(head, 20)) for _ in range(20)]
    await asyncio.sleep(0)

    new = await _record(other_database, other, _object("one"))

    assert await asyncio.gather(*waiting) == [new] * 20
    await other.close()
    await other_database.close()


async def test_restoring_starts_a_higher_epoch_each_time(
    database: Database, database_url: str, feed: IntentFeed
) -> None:
    at = await _record(database, feed, _object("one"))

    first = await asyncio.to_thread(migrate.restored, database_url)
    second = await asyncio.to_thread(migrate.restored, database_url)

    head = await feed.head()
    assert at.epoch < first < second == head.epoch
    assert head.version == at.version
    assert head.chain != at.chain
    assert await feed.changes_since(at) is None
    assert await feed.changes_since(head) == []
    assert (await _record(database, feed, _object("two"))).order == (second, at.version + 1)


async def test_an_epoch_is_never_lower_than_the_time_it_starts(
    database: Database, feed: IntentFeed, clock: ManualClock
) -> None:
    clock.step_wall(10_000_000_000)
    async with database.write() as session:
        await feed.lock(session)
        started = await feed.new_epoch(session, "test")

    assert started.epoch == int(clock.wall())


async def test_another_postgres_system_or_timeline_starts_an_epoch(
    postgres_url: str, secrets: DeploymentSecrets
) -> None:
    database = Database(postgres_url)
    feed = IntentFeed(database, secrets)
    before = await _record(database, feed, _object("one"))
    async with database.write() as session:
        await session.execute(update(IntentHead).values(timeline="00000042"))

    after = await _record(database, feed, _object("two"))
    async with database.write() as session:
        await session.execute(update(IntentHead).values(system_id="1"))
    await feed.check_lineage()

    head = await feed.head()
    assert before.epoch < after.epoch < head.epoch
    assert after.version == before.version + 1
    assert await feed.changes_since(before) is None
    await database.close()


@pytest.mark.timeout(120)
async def test_concurrent_writers_lose_no_version(postgres_url: str, secrets: DeploymentSecrets) -> None:
    """1,000 transactions over eight connections, while two readers see every version once and in order."""
    database = Database(postgres_url, pool_size=WRITERS, max_overflow=0, wait_seconds=30)
    reading = Database(postgres_url)
    feed, readers = IntentFeed(database, secrets), [IntentFeed(reading, secrets) for _ in range(2)]
    start = await feed.head()
    given: list[int] = []

    async def write(worker: int) -> None:
        for number in range(TRANSACTIONS // WRITERS):
            async with database.write() as session:
                await feed.lock(session)
                at = await feed.record(session, upserts=[_object(f"w{worker}-{number}")])
            given.append(at.version)

    async def read(reader: IntentFeed) -> list[Change]:
        seen: list[Change] = []
        at = start
        while len(seen) < TRANSACTIONS:
            await reader.wait(at, 5)
            changes = await reader.changes_since(at)
            assert changes is not None, "a version vanished from under a reader"
            seen += changes
            at = seen[-1].at if seen else at
        return seen

    started = time.monotonic()
    *_, first, second = await asyncio.gather(*(write(w) for w in range(WRITERS)), *(read(r) for r in readers))
    print(f"{TRANSACTIONS} transactions over {WRITERS} connections in {time.monotonic() - started:.1f} s")

    assert sorted(given) == list(range(start.version + 1, start.version + 1 + TRANSACTIONS))
    assert first == second
    assert [c.at.version for c in first] == sorted(given)
    names = {o.name for c in first for o in c.upserts}
    assert len(names) == TRANSACTIONS
    for part in (feed, *readers):
        await part.close()
    await database.close()
    await reading.close()
