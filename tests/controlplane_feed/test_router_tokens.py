"""Which routers are let in, and what those who are not may cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event

from controlplane.intake.router_tokens import ASK_SECONDS, RouterRefused, RouterTokens
from controlplane.store.database import Database
from fleet.clock import SystemClock
from tests.controlplane_feed.copies import Store


def _shown(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


class Readings:
    """Counts how often the table of tokens is read."""

    def __init__(self, database: Database) -> None:
        self.count = 0
        event.listen(database.engine.sync_engine, "before_cursor_execute", self._executed)

    def _executed(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self.count += "admin_tokens" in statement


async def test_rel_s14_unknown_tokens_cost_a_bounded_number_of_readings(sqlite_store: Store) -> None:
    tokens = RouterTokens(sqlite_store.database, sqlite_store.secrets, SystemClock())
    good = await sqlite_store.router_token("eu-west")
    readings, loop = Readings(sqlite_store.database), asyncio.get_running_loop()
    started = loop.time()

    async def guesses(number: int) -> None:
        for guess in range(10):
            with pytest.raises(RouterRefused):
                await tokens.admit(_shown(f"guess-{number}-{guess}"), "")

    await asyncio.gather(*(guesses(number) for number in range(30)))
    assert 1 <= readings.count <= 2 + (loop.time() - started) / ASK_SECONDS
    assert (await tokens.admit(_shown(good), "eu-west")).region == "eu-west"
    before = readings.count
    for _ in range(50):
        tokens.release(await tokens.admit(_shown(good), ""))
    assert readings.count == before, "a token that is known costs none"


async def test_a_token_made_while_others_are_asked_for_is_found_at_once(store: Store) -> None:
    """Whoever asks while a reading is under way is not answered by that one: it may have begun before the token was made."""
    tokens = RouterTokens(store.database, store.secrets, SystemClock())
    others = [asyncio.create_task(tokens.admit(_shown(f"guess-{n}"), "")) for n in range(5)]
    for number in range(5):
        made = await store.router_token("eu-west", f"router-token-number-{number}-for-tests")
        assert (await tokens.admit(_shown(made), "eu-west")).region == "eu-west"
    refused = await asyncio.gather(*others, return_exceptions=True)
    assert {type(error) for error in refused} == {RouterRefused}


async def test_an_older_reading_does_not_undo_a_newer_one(postgres_url: str) -> None:
    store = Store(postgres_url)
    tokens = RouterTokens(store.database, store.secrets, SystemClock())
    token = await store.router_token("eu-west")
    await tokens.refresh()
    answered, slow = asyncio.Event(), asyncio.Event()
    plain = store.database.read

    class Late:
        """The first reading sees the token, and is answered only after it was revoked and read again."""

        def __init__(self) -> None:
            self.door = plain()

        async def __aenter__(self) -> Any:
            session = await self.door.__aenter__()
            execute = session.execute

            async def late(statement: Any) -> Any:
                found = await execute(statement)
                answered.set()
                await slow.wait()
                return found

            session.execute = late
            return session

        async def __aexit__(self, *why: Any) -> Any:
            return await self.door.__aexit__(*why)

    store.database.read = Late  # type: ignore[method-assign,assignment]
    older = asyncio.create_task(tokens.refresh())
    await answered.wait()
    store.database.read = plain  # type: ignore[method-assign]
    await store.revoke(token)
    await tokens.refresh()
    slow.set()
    await older
    with pytest.raises(RouterRefused):
        await tokens.admit(_shown(token), "eu-west")
    await store.close()
