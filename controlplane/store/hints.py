"""PostgreSQL's LISTEN as a hint that the feed has moved. Losing it costs at most one poll interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from controlplane.store.database import database_url

CHANNEL = "headrace_intent"
RECONNECT_SECONDS = 5.0


async def listen(url: str, on_hint: Callable[[], None]) -> None:
    """Call ``on_hint`` at every notification, for ever; cancelled by its owner. A pooler that cannot LISTEN is tolerated."""
    conninfo = database_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(
                conninfo, autocommit=True, connect_timeout=2
            ) as connection:
                await connection.execute("LISTEN " + CHANNEL)
                async for _ in connection.notifies():
                    on_hint()
        except (psycopg.Error, OSError):
            pass  # the poll goes on and says so; a hint needs no line of its own
        await asyncio.sleep(RECONNECT_SECONDS)
