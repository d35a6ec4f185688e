"""A database with a small fleet, and control planes over it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controlplane_feed.copies import BASIC, Store


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """Each test that uses it runs on SQLite and on PostgreSQL."""
    made = Store(database_url)
    await made.write(BASIC)
    yield made
    await made.close()


@pytest.fixture
async def sqlite_store(sqlite_url: str) -> AsyncIterator[Store]:
    made = Store(sqlite_url)
    await made.write(BASIC)
    yield made
    await made.close()
