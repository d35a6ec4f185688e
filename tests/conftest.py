"""Fixtures for every test folder: fresh databases and keyspaces on real servers, and a plain account of what was skipped."""

from __future__ import annotations

import itertools
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
import structlog
from psycopg import sql

from controlplane.store import migrate
from tests import services


@pytest.fixture(autouse=True)
def _logs() -> None:
    """Every test starts with the same logs, whatever the one before it set up; errors are told without local variables."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        context_class=dict,
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RUN] = (services.open_run(), not hasattr(config, "workerinput"))


def pytest_unconfigure(config: pytest.Config) -> None:
    folder, owner = config.stash[_RUN]
    if owner:
        services.close_run(folder)


_RUN = pytest.StashKey[tuple[Path, bool]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines say which parts were not tested, and why."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = re.sub(r"^Skipped: ", "", text)
        reasons[reason] = reasons.get(reason, 0) + 1
    terminalreporter.section("parts not tested")
    if not reasons:
        terminalreporter.line("none: every part ran against the real thing")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} skipped: {reason}")


@pytest.fixture(scope="session")
def run_folder(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.stash[_RUN][0]


# PostgreSQL


@pytest.fixture(scope="session")
def postgres_admin_url(run_folder: Path) -> str:
    """A real PostgreSQL server; tests that need it are skipped only when none can be had."""
    try:
        return services.postgres_admin_url(run_folder)
    except services.NoService as missing:
        pytest.skip(str(missing))


@pytest.fixture
def empty_postgres_url(postgres_admin_url: str) -> Iterator[str]:
    """A fresh database without tables."""
    name = f"headrace_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(postgres_admin_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield _with_database(postgres_admin_url, name)
    _drop(postgres_admin_url, name)


@pytest.fixture(scope="session")
def _migrated_template(postgres_admin_url: str) -> Iterator[str]:
    """A migrated database to copy, one per pytest process: copying takes a tenth of migrating."""
    name = f"headrace_template_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(postgres_admin_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    migrate.upgrade(_with_database(postgres_admin_url, name))
    yield name
    _drop(postgres_admin_url, name)


@pytest.fixture
def postgres_url(postgres_admin_url: str, _migrated_template: str) -> Iterator[str]:
    """A fresh database with all tables, empty."""
    name = f"headrace_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(postgres_admin_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(_migrated_template))
        )
    yield _with_database(postgres_admin_url, name)
    _drop(postgres_admin_url, name)


def _with_database(url: str, name: str) -> str:
    base, mark, query = url.partition("?")
    return base.rsplit("/", 1)[0] + "/" + name + mark + query


def _drop(admin_url: str, name: str) -> None:
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


# SQLite


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'headrace.sqlite3'}"


@pytest.fixture
def sqlite_url(empty_sqlite_url: str) -> str:
    """A SQLite database with all tables, empty."""
    migrate.upgrade(empty_sqlite_url)
    return empty_sqlite_url


# Both, one after the other


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty database; the test runs once on each engine."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """A database without tables; the test runs once on each engine."""
    return str(request.getfixturevalue(f"empty_{request.param}_url"))


# Redis

_redis_numbers = itertools.count()


@pytest.fixture
def redis_url(run_folder: Path) -> Iterator[str]:
    """An empty keyspace of a real Redis or Valkey. Each pytest process has numbers of its own, used in turn."""
    try:
        server = services.redis_server_url(run_folder)
    except services.NoService as missing:
        pytest.skip(str(missing))
    worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "gw0")) or 0)
    own = bool(os.environ.get("HEADRACE_TEST_REDIS_URL"))
    number = worker % 8 + 8 if own else (worker % 8) * 32 + next(_redis_numbers) % 32
    url = server if re.search(r"/\d+$", server) else f"{server}/{number}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    yield url
    with redis.Redis.from_url(url) as client:
        client.flushdb()
