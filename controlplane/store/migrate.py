"""Migrations: the same set for PostgreSQL and SQLite, safe when several copies start together.

The whole upgrade is one transaction that holds a lock: an advisory one on PostgreSQL, the file's own (BEGIN EXCLUSIVE) on SQLite.
A leader that dies leaves neither lock nor half a schema; those who waited find the work done or do it (case-D05).

    SchemaNewer       the database was made by a newer headrace than this one
    DatabaseUnavailable
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event, insert, inspect, select, text, update
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import NullPool

import migrations
from controlplane.store.database import DatabaseDamaged, DatabaseUnavailable, database_url, make_home
from controlplane.tables import IntentChange, IntentHead
from controlplane.tables.base import utc_now
from fleet.errors import HeadraceError

_LOCK = 0x68656164  # "head": the advisory lock's number
WAIT_SECONDS = 120


class SchemaNewer(HeadraceError):
    """The database's schema is newer than this binary; nothing was changed."""

    def __init__(self, revision: str) -> None:
        super().__init__(f"schema is newer than this headrace: it is at revision {revision}; run the newer version")


def script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def head() -> str:
    """The revision this binary wants."""
    revision = script().get_current_head()
    assert revision is not None
    return revision


def current(url: str) -> str | None:
    """The database's revision; None when it has no tables. Changes nothing."""
    with _connect(url, exclusive=False) as connection:
        return _revision(connection)


def upgrade(url: str) -> str:
    """Bring the tables up to this binary's revision; returns it. Waits while another copy does it. Raises SchemaNewer."""
    with _connect(url, exclusive=True) as connection:
        _refuse_newer(connection)
        command.upgrade(_config(connection), "head")
    return head()


def downgrade(url: str, revision: str) -> str | None:
    """Take the tables back to ``revision`` (``base`` removes all). Returns the revision reached. Raises SchemaNewer."""
    with _connect(url, exclusive=True) as connection:
        _refuse_newer(connection)
        command.downgrade(_config(connection), revision)
        return _revision(connection)


def restored(url: str) -> int:
    """Start a new epoch after a restore: what routers hold may be newer than the database. Returns the epoch."""
    with _connect(url, exclusive=True) as connection:
        row = connection.execute(select(IntentHead.epoch, IntentHead.version, IntentHead.chain).with_for_update()).one()
        epoch: int = max(row.epoch + 1, int(time.time()))
        chain = hashlib.blake2b(row.chain + os.urandom(16), digest_size=32).digest()
        values = {
            "epoch": epoch,
            "version": row.version,
            "chain": chain,
            "upserts": [],
            "removals": [],
            "created_at": utc_now(),
        }
        connection.execute(insert(IntentChange).values(values))
        connection.execute(update(IntentHead).values(epoch=epoch, chain=chain))
    return epoch


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(connection: Connection) -> None:
    revision = _revision(connection)
    known = {r.revision for r in script().walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaNewer(revision)


@contextmanager
def _connect(url: str, *, exclusive: bool) -> Iterator[Connection]:
    """One transaction; ``exclusive`` keeps every other migration out until it ends."""
    parsed = database_url(url)
    postgres = parsed.get_backend_name() == "postgresql"
    if postgres:
        engine = create_engine(parsed, poolclass=NullPool, hide_parameters=True, connect_args={"connect_timeout": 5})
    else:
        assert parsed.database is not None
        make_home(Path(parsed.database))
        engine = create_engine(
            parsed.set(drivername="sqlite"), poolclass=NullPool, connect_args={"timeout": WAIT_SECONDS}
        )

        @event.listens_for(engine, "connect")
        def _no_driver_transactions(dbapi_connection: object, _record: object) -> None:
            dbapi_connection.isolation_level = None  # type: ignore[attr-defined]

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN EXCLUSIVE" if exclusive else "BEGIN")

    try:
        with engine.begin() as connection:
            if postgres and exclusive:
                connection.execute(
                    text("SELECT set_config('lock_timeout', :ms, true)"), {"ms": str(WAIT_SECONDS * 1000)}
                )
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield connection
    except OperationalError as error:
        raise DatabaseUnavailable(f"database: {str(error.orig).strip().splitlines()[0]}") from error
    except DatabaseError as error:
        if postgres or type(error) is not DatabaseError:
            raise
        raise DatabaseDamaged(f"database: {parsed.database}: {error.orig}; restore it from a backup") from error
    finally:
        engine.dispose()
