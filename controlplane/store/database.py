"""One database, PostgreSQL (psycopg 3) or SQLite (aiosqlite), behind the same two doors: ``read`` and ``write``.

    DatabaseUnavailable     cannot be reached or written now; the caller answers 503 and tries later

A connection that has shown itself useless (gone, or on a server that has become read-only, case-D01) takes its whole pool
generation with it, so that the next use connects anew and finds the new primary.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, event, make_url, text
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from fleet.errors import FieldError, HeadraceError, InvalidInput, Unavailable

RETRY_AFTER_SECONDS = 2
SQLITE_BUSY_MS = 5000
STATEMENT_MS = 10_000
"""What one statement may take beside waiting for its locks."""
_IMMEDIATE = "headrace_immediate"
_READ_ONLY_TRANSACTION = "25006"
_GONE = ("08", "57P0")
"""SQLSTATE prefixes of a lost connection and of a server that is going away or not ready."""


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached or written now. Nothing of the transaction has been kept."""


def database_url(url: str) -> URL:
    """The URL with the driver we use: ``postgres://`` means psycopg, ``sqlite:///`` aiosqlite. Raises InvalidInput."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInput([FieldError("/database_url", "is not a URL such as postgres://user@host/name")]) from None
    match parsed.get_backend_name():
        case "postgres" | "postgresql":
            return parsed.set(drivername="postgresql+psycopg")
        case "sqlite" if parsed.database and parsed.database != ":memory:":
            return parsed.set(drivername="sqlite+aiosqlite")
        case "sqlite":
            raise InvalidInput([FieldError("/database_url", "SQLite needs a file: sqlite:////path/to/file")])
        case other:
            raise InvalidInput(
                [FieldError("/database_url", f"{other} is not supported; use postgres:// or sqlite:///")]
            )


def sqlstate(error: BaseException | None) -> str:
    """PostgreSQL's five-character code of a driver error; empty when there is none."""
    return str(getattr(error, "sqlstate", None) or "")


def _useless(error: BaseException | None) -> bool:
    """True when the connection that raised ``error`` must not be used again."""
    code = sqlstate(error)
    return code == _READ_ONLY_TRANSACTION or code.startswith(_GONE)


def _unavailable(error: DBAPIError) -> bool:
    return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated or _useless(error.orig)


class DatabaseDamaged(HeadraceError):
    """The file is there and is no database that can be read; waiting would not mend it."""


def make_home(file: Path) -> None:
    """The directory of a SQLite file and of what lies beside it, for nobody else. Raises InvalidInput when it is no use."""
    home = file.parent
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = "" if os.access(home, os.W_OK | os.X_OK) else "cannot be written"
    except OSError as error:
        problem = error.strerror or "cannot be made"
    if problem:
        raise InvalidInput(
            [FieldError("state_dir", f"{home}: {problem}; choose another directory, or make it writable")]
        )


class Database:
    """A pool of connections and how to use it. One per process; ``close`` releases it."""

    def __init__(self, url: str, *, pool_size: int = 5, max_overflow: int = 5, wait_seconds: float = 2.0) -> None:
        """``wait_seconds`` bounds the wait for a connection and, on PostgreSQL, for a lock: writes fail fast or work."""
        self.url = database_url(url)
        self.postgres = self.url.get_backend_name() == "postgresql"
        self._wait_seconds = wait_seconds
        self.engine = self._engine(pool_size, max_overflow)
        event.listen(self.engine.sync_engine, "handle_error", self._discard_useless)
        reader = self.engine
        writer = self.engine.execution_options(**{_IMMEDIATE: True})
        if self.postgres:
            reader = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._readers = async_sessionmaker(reader, expire_on_commit=False)
        self._writers = async_sessionmaker(writer, expire_on_commit=False)
        self._one_writer = asyncio.Lock()
        """SQLite has one writer at a time; queueing here is fair, its own busy handler is not."""
        self.last_write_failed = False

    def __repr__(self) -> str:
        return f"Database({self.url.render_as_string(hide_password=True)})"

    def _engine(self, pool_size: int, max_overflow: int) -> AsyncEngine:
        common: dict[str, Any] = {
            "pool_size": pool_size,
            "max_overflow": max_overflow,
            "pool_timeout": self._wait_seconds,
            "hide_parameters": True,
        }
        if self.postgres:
            return create_async_engine(
                self.url,
                **common,
                pool_pre_ping=True,
                connect_args={
                    "connect_timeout": 2,
                    "keepalives_idle": 5,
                    "keepalives_interval": 2,
                    "keepalives_count": 3,
                    "tcp_user_timeout": 5000,
                    "prepare_threshold": None,  # prepared statements do not survive a transaction pooler
                    "application_name": "headrace",
                },
            )
        assert self.url.database is not None
        make_home(Path(self.url.database))
        engine = create_async_engine(self.url, **common)
        event.listen(engine.sync_engine, "connect", _sqlite_connect)
        event.listen(engine.sync_engine, "begin", _sqlite_begin)
        return engine

    def _discard_useless(self, context: ExceptionContext) -> None:
        if _useless(context.original_exception):
            context.is_disconnect = True

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A read-only transaction that sees one moment. Raises DatabaseUnavailable."""
        try:
            async with self._readers() as session, session.begin():
                yield session
        except PoolTimeout as error:
            raise DatabaseUnavailable("no database connection is free") from error
        except DBAPIError as error:
            if _unavailable(error):
                raise DatabaseUnavailable(_short(error)) from error
            raise

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A writing transaction: committed when the block ends, rolled back when it raises. Raises DatabaseUnavailable.

        Whoever writes intent, tokens or audit locks the feed first (``IntentFeed.lock``), before any other row.
        """
        try:
            async with self._turn(), self._writers() as session, session.begin():
                if self.postgres:
                    wait_ms = round(self._wait_seconds * 1000)
                    limits = {"lock": str(wait_ms), "all": str(wait_ms + STATEMENT_MS)}
                    await session.execute(
                        text(
                            "SELECT set_config('lock_timeout', :lock, true), set_config('statement_timeout', :all, true)"
                        ),
                        limits,
                    )
                yield session
        except PoolTimeout as error:
            self.last_write_failed = True
            raise DatabaseUnavailable("no database connection is free") from error
        except DBAPIError as error:
            if _unavailable(error):
                self.last_write_failed = True
                raise DatabaseUnavailable(_short(error)) from error
            raise
        else:
            self.last_write_failed = False

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """On SQLite, this process's turn to write."""
        if self.postgres:
            yield
            return
        try:
            async with asyncio.timeout(SQLITE_BUSY_MS / 1000):
                await self._one_writer.acquire()
        except TimeoutError:
            raise DatabaseUnavailable("the database is busy") from None
        try:
            yield
        finally:
            self._one_writer.release()

    async def probe_write(self) -> None:
        """Raises DatabaseUnavailable unless a write would work now. Changes nothing; for readiness."""
        async with self.write() as session:
            await session.execute(text("UPDATE leases SET token = token WHERE place = ''"))

    def checked_out(self) -> int:
        """Connections in use now."""
        return int(self.engine.sync_engine.pool.checkedout())  # type: ignore[attr-defined]

    async def close(self) -> None:
        await self.engine.dispose()


def _short(error: DBAPIError) -> str:
    """One line for operators, without statement and parameters."""
    lines = str(error.orig).strip().splitlines()
    return f"database: {lines[0] if lines else type(error.orig).__name__}"


def _sqlite_connect(connection: DBAPIConnection, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun by us, not by the driver
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={SQLITE_BUSY_MS}", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_IMMEDIATE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
