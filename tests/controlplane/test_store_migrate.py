"""Migrations: the tables are what the code says, both ways, and copies that start together do not get in each other's way."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import textwrap
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from controlplane.store import migrate
from controlplane.store.database import Database, DatabaseDamaged
from controlplane.store.database import database_url as with_driver
from controlplane.tables import Table
from fleet.errors import InvalidInput

LEADER = """
import time
from controlplane.store import migrate

upgrade = migrate.command.upgrade

def upgrade_and_hang(config, revision):
    upgrade(config, revision)
    print("migrating", flush=True)
    time.sleep(600)

migrate.command.upgrade = upgrade_and_hang
migrate.upgrade({url!r})
"""
FOLLOWER = """
from controlplane.store import migrate
print("starting", flush=True)
print(migrate.upgrade({url!r}), flush=True)
"""


def _tables(url: str) -> set[str]:
    engine = create_engine(_sync(url))
    with engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
    engine.dispose()
    return names


def _sync(url: str) -> str:
    parsed = with_driver(url)
    parsed = parsed if parsed.get_backend_name() == "postgresql" else parsed.set(drivername="sqlite")
    return parsed.render_as_string(hide_password=False)


def test_up_down_and_up_again(empty_database_url: str) -> None:
    assert migrate.current(empty_database_url) is None

    assert migrate.upgrade(empty_database_url) == migrate.head()
    assert migrate.current(empty_database_url) == migrate.head()
    assert _tables(empty_database_url) == {*Table.metadata.tables, "alembic_version"}
    assert migrate.upgrade(empty_database_url) == migrate.head(), "doing it twice is harmless"

    assert migrate.downgrade(empty_database_url, "base") is None
    assert _tables(empty_database_url) == {"alembic_version"}
    assert migrate.upgrade(empty_database_url) == migrate.head()


def test_the_migrated_tables_are_those_of_the_code(database_url: str) -> None:
    engine = create_engine(_sync(database_url))
    with engine.connect() as connection:
        differences = compare_metadata(
            MigrationContext.configure(connection, opts={"compare_type": True}), Table.metadata
        )
    engine.dispose()

    assert differences == []


def test_case_d05_an_old_version_says_that_the_schema_is_newer(database_url: str) -> None:
    engine = create_engine(_sync(database_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = _tables(database_url)

    for action in (lambda: migrate.upgrade(database_url), lambda: migrate.downgrade(database_url, "base")):
        with pytest.raises(migrate.SchemaNewer, match="schema is newer"):
            action()

    assert migrate.current(database_url) == "9999"
    assert _tables(database_url) == before
    engine.dispose()


async def _python(source: str, url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(source).format(url=url), stdout=asyncio.subprocess.PIPE
    )


async def test_case_d05_copies_that_start_together_migrate_once(empty_database_url: str) -> None:
    copies = [await _python(FOLLOWER, empty_database_url) for _ in range(3)]

    outputs = [await copy.communicate() for copy in copies]

    assert [copy.returncode for copy in copies] == [0, 0, 0]
    assert {out.split()[-1].decode() for out, _ in outputs} == {migrate.head()}
    engine = create_engine(_sync(empty_database_url))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM intent_head")).scalar_one() == 1
    engine.dispose()


async def test_case_d05_a_leader_that_is_killed_leaves_neither_lock_nor_half_a_schema(empty_database_url: str) -> None:
    leader = await _python(LEADER, empty_database_url)
    assert leader.stdout is not None
    assert (await leader.stdout.readline()).strip() == b"migrating"
    followers = [await _python(FOLLOWER, empty_database_url) for _ in range(2)]
    for follower in followers:
        assert follower.stdout is not None
        assert (await follower.stdout.readline()).strip() == b"starting"
    assert all(follower.returncode is None for follower in followers), "they wait for the leader"

    os.kill(leader.pid, signal.SIGKILL)
    await leader.wait()

    outputs = [await asyncio.wait_for(follower.communicate(), 60) for follower in followers]
    assert [out.strip().decode() for out, _ in outputs] == [migrate.head()] * 2
    assert _tables(empty_database_url) == {*Table.metadata.tables, "alembic_version"}


def test_a_damaged_sqlite_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "controlplane.sqlite3"
    path.write_bytes(b"no database at all " * 400)
    for action in (migrate.upgrade, migrate.current):
        with pytest.raises(DatabaseDamaged, match=r"controlplane\.sqlite3: file is not a database; restore it"):
            action(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"no database at all"), "what may still be saved is left as it is"


async def test_the_directory_of_a_sqlite_file_is_for_nobody_else_and_is_named_when_it_is_no_use(tmp_path: Path) -> None:
    home = tmp_path / "state"
    await Database(f"sqlite:///{home}/controlplane.sqlite3").close()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    (home / "file").touch()
    for action in (Database, migrate.upgrade):
        with pytest.raises(InvalidInput, match=r"^state_dir: .*/file/below: Not a directory; choose another"):
            action(f"sqlite:///{home}/file/below/controlplane.sqlite3")
