"""Sessions: writes fail fast or work, useless connections are thrown away, nothing leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from datetime import UTC, datetime

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import func, select, text

from controlplane.api.app import build_api
from controlplane.api.context import ApiContext
from controlplane.secrets import DeploymentSecrets
from controlplane.store.database import Database, DatabaseUnavailable, database_url
from controlplane.store.intent import IntentFeed
from controlplane.tables import StoredSecret
from fleet.clock import ManualClock
from fleet.errors import InvalidInput
from tests.controlplane.conftest import BOOTSTRAP, Client
from tests.services import free_port

_NOW = datetime(2026, 9, 21, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "driver"),
    [
        ("postgres://user@host/name", "postgresql+psycopg"),
        ("postgresql://user@host/name?sslmode=require", "postgresql+psycopg"),
        ("postgresql+psycopg://user@host/name", "postgresql+psycopg"),
        ("sqlite:////var/lib/x.sqlite3", "sqlite+aiosqlite"),
    ],
)
def test_urls_get_our_driver(written: str, driver: str) -> None:
    assert database_url(written).drivername == driver


@pytest.mark.parametrize("written", ["mysql://host/name", "sqlite://", "not a url", ""])
def test_other_urls_are_refused_by_name(written: str) -> None:
    with pytest.raises(InvalidInput, match="database_url"):
        database_url(written)


def test_a_password_is_not_in_the_repr() -> None:
    assert "canary" not in repr(Database("postgres://user:canary@host/name"))


async def _put(database: Database, name: str) -> None:
    async with database.write() as session:
        session.add(StoredSecret(name=name, sealed="x", updated_at=_NOW))


async def _names(database: Database) -> list[str]:
    async with database.read() as session:
        return list(await session.scalars(select(StoredSecret.name).order_by(StoredSecret.name)))


async def test_a_write_is_whole_or_nothing(database: Database) -> None:
    async def halfway() -> None:
        async with database.write() as session:
            session.add(StoredSecret(name="one", sealed="x", updated_at=_NOW))
            await session.flush()
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        await halfway()
    await _put(database, "two")

    assert await _names(database) == ["two"]
    assert database.checked_out() == 0


async def test_a_read_sees_one_moment(database: Database) -> None:
    count = select(func.count()).select_from(StoredSecret)
    async with database.read() as session:
        before = (await session.execute(count)).scalar_one()
        await _put(database, "meanwhile")
        assert (await session.execute(count)).scalar_one() == before == 0
    assert await _names(database) == ["meanwhile"]


async def test_a_read_cannot_write(postgres_url: str) -> None:
    database = Database(postgres_url)
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        async with database.read() as session:
            await session.execute(text("DELETE FROM secrets_store"))
    await database.close()


async def test_case_d01_connections_to_a_server_that_became_read_only_are_discarded(postgres_url: str) -> None:
    """The old primary still answers SELECT 1; only writes fail. New connections reach a writable server."""
    database = Database(postgres_url, pool_size=3, max_overflow=0)
    barrier = asyncio.Barrier(3)

    async def demote() -> None:
        async with database.write() as session:
            await session.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
            await barrier.wait()

    await asyncio.gather(*(demote() for _ in range(3)))
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        await _put(database, "refused")
    assert database.last_write_failed, "readiness must show it"

    await _put(database, "works")

    assert not database.last_write_failed
    await database.probe_write()
    assert await _names(database) == ["works"]
    await database.close()


async def test_connections_cut_by_a_restart_are_replaced(postgres_url: str) -> None:
    database = Database(postgres_url)
    await _put(database, "before")
    async with database.read() as session:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        await session.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))  # noqa: S608
    await _put(database, "after")
    assert await _names(database) == ["after", "before"]
    await database.close()


async def test_a_lock_that_is_not_had_in_time_is_an_error_not_a_hang(
    postgres_url: str, secrets: DeploymentSecrets
) -> None:
    database = Database(postgres_url, wait_seconds=0.2)
    feed = IntentFeed(database, secrets)
    async with database.write() as holder:
        await feed.lock(holder)
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            async with database.write() as session:
                await feed.lock(session)
    await _put(database, "after")
    await database.close()


async def test_without_a_database_the_api_answers_503_and_says_when_to_retry(
    secrets: DeploymentSecrets, clock: ManualClock
) -> None:
    database = Database(f"postgres://nobody@127.0.0.1:{free_port()}/none")
    feed = IntentFeed(database, secrets, clock)
    client = _client(build_api(ApiContext(database, feed, secrets, clock, BOOTSTRAP)))

    answer = await client.get("/api/v1/regions")

    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:headrace:problem:unavailable"
    assert "127.0.0.1" not in answer.text
    await client.aclose()
    await database.close()


async def test_case_d03_cancelled_requests_leak_no_connections(
    database_url: str, secrets: DeploymentSecrets, clock: ManualClock
) -> None:
    """Pool of two, twenty calls given up after 1 to 50 ms, then one more."""
    database = Database(database_url, pool_size=2, max_overflow=0)
    feed = IntentFeed(database, secrets, clock)
    client = _client(build_api(ApiContext(database, feed, secrets, clock, BOOTSTRAP)))

    async def give_up(after_ms: float, number: int) -> None:
        body = {"name": f"region-{number}", "spec": {}}

        async def ask() -> None:
            while True:
                await client.post("/api/v1/regions", json=body)
                await client.get("/api/v1/regions")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(), after_ms / 1000)

    await asyncio.gather(*(give_up(1 + number * 2.5, number) for number in range(20)))

    answer = await client.get("/api/v1/regions")
    assert answer.status_code == 200, answer.text
    assert database.checked_out() == 0
    created = await client.post("/api/v1/regions", json={"name": "after", "spec": {}})
    assert created.status_code == 201, created.text
    verified = (await client.get("/api/v1/audit:verify")).json()
    assert verified["ok"], verified
    await client.aclose()
    await feed.close()
    await database.close()


async def test_sqlite_keeps_every_acknowledged_write_when_killed(sqlite_url: str) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio
        from datetime import UTC, datetime
        from controlplane.store.database import Database
        from controlplane.tables import StoredSecret

        async def main():
            database = Database({sqlite_url!r})
            for number in range(100_000):
                async with database.write() as session:
                    session.add(StoredSecret(name=f"n{{number:06}}", sealed="x", updated_at=datetime.now(UTC)))
                print(number, flush=True)

        asyncio.run(main())
        """
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    acknowledged = -1
    while acknowledged < 50:
        acknowledged = int(await child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    rest = (await child.stdout.read()).split(b"\n")
    acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
    await child.wait()

    database = Database(sqlite_url)
    names = await _names(database)
    async with database.read() as session:
        assert (await session.execute(text("PRAGMA integrity_check"))).scalar_one() == "ok"
        assert (await session.execute(text("PRAGMA synchronous"))).scalar_one() == 2
        assert (await session.execute(text("PRAGMA journal_mode"))).scalar_one() == "wal"
    await database.close()
    assert set(names) >= {f"n{number:06}" for number in range(acknowledged + 1)}


def _client(app: FastAPI) -> Client:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    return Client(transport=transport, base_url="http://controlplane", headers={"Authorization": f"Bearer {BOOTSTRAP}"})
