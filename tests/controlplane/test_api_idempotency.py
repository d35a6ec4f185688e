"""Idempotency-Key, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sqlalchemy import select, update

from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from controlplane.tables import IdempotentCall
from fleet.clock import ManualClock
from tests.controlplane.conftest import Client, fleet

KEY = {"Idempotency-Key": "5f0c6c6e-2f0b-4a3e-9df4-0f9d3c1a7b11"}
BODY = {"name": "k", "spec": {"tenant": "acme"}}


async def test_the_same_call_twice_gets_the_first_answer(admin: Client, feed: IntentFeed, database: Database) -> None:
    await fleet(admin)
    first = await admin.post("/api/v1/keys", json=BODY, headers=KEY)
    head = await feed.head()
    again = await admin.post("/api/v1/keys", json=BODY, headers=KEY)

    assert first.status_code == again.status_code == 201
    assert again.content == first.content, "the secret included, which cannot be had in any other way"
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["location"] == first.headers["location"]
    assert (again.headers["idempotency-replayed"], first.headers.get("idempotency-replayed")) == ("true", None)
    assert await feed.head() == head
    async with database.read() as session:
        row = (await session.scalars(select(IdempotentCall))).one()
        assert row.answer is not None
        assert first.json()["secret"] not in row.answer


async def test_another_request_under_the_same_key_is_refused(admin: Client) -> None:
    await fleet(admin)
    await admin.post("/api/v1/keys", json=BODY, headers=KEY)
    for path, body in (("/api/v1/keys", BODY | {"name": "other"}), ("/api/v1/models", {"name": "k", "spec": {}})):
        answer = await admin.post(path, json=body, headers=KEY)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:headrace:problem:idempotency-mismatch")


async def test_a_failed_call_can_be_tried_again(admin: Client) -> None:
    refused = await admin.post("/api/v1/keys", json=BODY, headers=KEY)
    assert refused.status_code == 422, "there is no tenant yet"
    await fleet(admin)
    assert (await admin.post("/api/v1/keys", json=BODY, headers=KEY)).status_code == 201


async def test_callers_do_not_share_keys(
    admin: Client, client_of: Callable[[str | None], Client], token_of: Callable[..., Awaitable[str]]
) -> None:
    operator = client_of(await token_of("operator"))
    one = await admin.post("/api/v1/models", json={"name": "m"}, headers=KEY)
    two = await operator.post("/api/v1/models", json={"name": "n"}, headers=KEY)
    assert (one.status_code, two.status_code) == (201, 201)


async def test_many_at_once_change_things_once(admin: Client, feed: IntentFeed) -> None:
    start = await feed.head()
    answers = await asyncio.gather(*(admin.post("/api/v1/models", json={"name": "m"}, headers=KEY) for _ in range(10)))
    statuses = [a.status_code for a in answers]
    assert statuses.count(201) >= 1
    assert set(statuses) <= {201, 409}, "done, replayed, or told that it is running"
    assert all(a.json()["type"].endswith("idempotency-running") for a in answers if a.status_code == 409)
    assert (await feed.head()).version == start.version + 1


async def test_a_call_that_died_blocks_its_key_for_a_minute_and_an_answer_is_kept_for_a_day(
    admin: Client, database: Database, clock: ManualClock
) -> None:
    await admin.post("/api/v1/models", json={"name": "m"}, headers=KEY)
    async with database.write() as session:
        await session.execute(update(IdempotentCall).values(answer=None))
    running = await admin.post("/api/v1/models", json={"name": "m"}, headers=KEY)
    assert (running.status_code, running.json()["type"]) == (409, "urn:headrace:problem:idempotency-running")
    assert running.headers["retry-after"] == "1"

    clock.advance(61)
    taken_over = await admin.post("/api/v1/models", json={"name": "m"}, headers=KEY)
    assert taken_over.json()["type"] == "urn:headrace:problem:already-exists", "it ran, and said what it found"

    await admin.delete("/api/v1/models/m")
    assert (await admin.post("/api/v1/models", json={"name": "m"}, headers=KEY)).status_code == 201
    clock.advance(24 * 3600 + 1)
    assert (await admin.post("/api/v1/models", json={"name": "m"}, headers=KEY)).status_code == 409, "run anew"


async def test_a_key_must_be_printable(admin: Client) -> None:
    answer = await admin.post("/api/v1/models", json={"name": "m"}, headers={"Idempotency-Key": "a b"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/header/Idempotency-Key")
