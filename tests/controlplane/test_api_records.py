"""Events, the audit log, and watching."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import delete, update

from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from controlplane.tables import AuditEntry
from tests.controlplane.conftest import BOOTSTRAP, Client, fleet
from tests.services import free_port


async def _audit(client: Client) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get("/api/v1/audit", params={"page_size": 1000})).json()["items"]
    return items


async def test_every_changing_call_is_audited_with_its_outcome(
    admin: Client, client_of: Callable[[str | None], Client], token_of: Callable[..., Awaitable[str]]
) -> None:
    await fleet(admin)
    operator = client_of(await token_of("operator"))
    calls = [
        await operator.post("/api/v1/models", json={"name": "m"}),
        await operator.post("/api/v1/models", json={"name": "m"}),
        await operator.post("/api/v1/models", json={"name": "BAD"}),
        await operator.patch("/api/v1/models/m", json={"spec": {"aliases": ["m-3"]}}),
        await operator.put("/api/v1/models/gone", json={"name": "gone"}),
        await operator.post("/api/v1/tenants", json={"name": "t"}),
        await operator.post("/api/v1/nodes/eu-west-a-1:drain"),
        await operator.delete("/api/v1/models/m"),
    ]
    entries = [e for e in reversed(await _audit(admin)) if e["actor"] == "operator"]

    assert [e["outcome"] for e in entries] == [c.status_code for c in calls] == [201, 409, 422, 200, 404, 403, 200, 200]
    assert [e["request_id"] for e in entries] == [c.headers["x-request-id"] for c in calls]
    assert entries[3]["detail"]["resources"][0]["spec"] == {"aliases": ["m-3"]}
    before = len(await _audit(admin))
    await operator.get("/api/v1/models")
    await client_of("wrong").post("/api/v1/models", json={"name": "m"})
    assert len(await _audit(admin)) == before, "reading and strangers leave no entry"


@pytest.mark.parametrize("tampering", ["altered", "removed", "renumbered"])
async def test_tampering_with_the_audit_log_is_found(admin: Client, database: Database, tampering: str) -> None:
    for number in range(6):
        await admin.post("/api/v1/models", json={"name": f"m{number}"})
    assert (await admin.get("/api/v1/audit:verify")).json() == {"ok": True, "entries": 6, "first_broken": None}

    async with database.write() as session:
        match tampering:
            case "altered":
                await session.execute(update(AuditEntry).where(AuditEntry.sequence == 3).values(actor="somebody else"))
            case "removed":
                await session.execute(delete(AuditEntry).where(AuditEntry.sequence == 3))
            case _:
                await session.execute(delete(AuditEntry).where(AuditEntry.sequence == 3))
                for sequence in (4, 5, 6):
                    row = update(AuditEntry).where(AuditEntry.sequence == sequence)
                    await session.execute(row.values(sequence=sequence - 1))

    verified = (await admin.get("/api/v1/audit:verify")).json()
    assert verified["ok"] is False
    assert verified["first_broken"] in (3, 4)


async def test_records_are_paged_newest_first(admin: Client) -> None:
    for number in range(25):
        await admin.post("/api/v1/models", json={"name": f"m{number}"})
    seen, token = [], ""
    while True:
        page = (await admin.get("/api/v1/audit", params={"page_size": 10, "page_token": token})).json()
        seen += [e["sequence"] for e in page["items"]]
        token = page["next_page_token"]
        if not token:
            break
    assert seen == list(range(25, 0, -1))
    assert len((await admin.get("/api/v1/audit", params={"name": "m7", "action": "create"})).json()["items"]) == 1
    other = await admin.get("/api/v1/events", params={"page_token": page["next_page_token"] or "AAAA"})
    assert other.status_code == 422


# Watching, over a real server: the in-process transport would wait for the end of the stream.


@pytest.fixture
async def served(app: FastAPI) -> AsyncIterator[Client]:
    port, bound = free_port(), asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            bound.set()

    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1)
    server = Server(config)
    running = asyncio.create_task(server.serve())
    async with Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {BOOTSTRAP}"}, timeout=30
    ) as client:
        await asyncio.wait_for(bound.wait(), 20)
        yield client
    server.should_exit = True
    await running


class Watcher:
    """Events of one watch as they come."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> tuple[str, dict[str, Any]]:
        name = ""
        async with asyncio.timeout(20):
            async for line in self._lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    return name, json.loads(line.removeprefix("data: "))
        raise AssertionError("the watch has ended")

    async def ended(self) -> bool:
        async with asyncio.timeout(20):
            async for _ in self._lines:
                pass
        return True


async def test_a_watch_tells_changes_in_order_and_starts_where_a_list_ended(served: Client) -> None:
    await fleet(served)
    listed = (await served.get("/api/v1/models")).json()
    await served.post("/api/v1/models", json={"name": "between", "labels": {"a": "b"}})
    params = {"resource_version": listed["resource_version"], "kind": ["model", "node"]}
    async with served.stream("GET", "/api/v1/watch", params=params) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        watch = Watcher(stream.aiter_lines())
        assert await watch.next() == ("bookmark", {"resource_version": listed["resource_version"]})
        name, document = await watch.next()
        assert (name, document["name"], document["kind"]) == ("changed", "between", "model")
        name, mark = await watch.next()
        assert (name, mark["resource_version"]) == ("bookmark", document["resource_version"])

        await served.post("/api/v1/tenants", json={"name": "not-asked-for"})
        await served.delete("/api/v1/models/between")
        await served.post("/api/v1/nodes/eu-west-a-1:cordon")
        told: list[tuple[str, dict[str, Any]]] = []
        while len(told) < 2:  # how many bookmarks come between depends on how many versions were read at once
            event = await watch.next()
            told += [event] if event[0] != "bookmark" else []
        assert told[0] == ("deleted", {"kind": "model", "uid": document["uid"]})
        conditions = {c["type"]: c["status"] for c in told[1][1]["status"]["conditions"]}
        assert (told[1][1]["name"], conditions["Cordoned"]) == ("eu-west-a-1", "True")


async def test_a_watch_from_a_lost_version_is_gone(served: Client, feed: IntentFeed) -> None:
    head = await feed.head()
    for version in (f"{head.epoch}-99", f"{head.epoch - 1}-0"):
        gone = await served.get("/api/v1/watch", params={"resource_version": version})
        assert (gone.status_code, gone.json()["type"]) == (410, "urn:headrace:problem:gone")
    for version in ("x", "1", "1-", "-1", "1-1-1", "1" * 50, f"1-{1 << 63}", f"{1 << 63}-1"):
        assert (await served.get("/api/v1/watch", params={"resource_version": version})).status_code == 422


async def test_a_watch_ends_with_its_token(
    served: Client, token_of: Callable[..., Awaitable[str]], admin: Client
) -> None:
    token = await token_of("viewer")
    async with served.stream("GET", "/api/v1/watch", headers={"Authorization": f"Bearer {token}"}) as stream:
        watch = Watcher(stream.aiter_lines())
        assert (await watch.next())[0] == "bookmark"
        await admin.delete("/api/v1/admin-tokens/viewer")
        assert await watch.ended()


async def test_a_watch_ends_with_the_epoch(served: Client, database: Database, feed: IntentFeed) -> None:
    async with served.stream("GET", "/api/v1/watch") as stream:
        watch = Watcher(stream.aiter_lines())
        assert (await watch.next())[0] == "bookmark"
        async with database.write() as session:
            await feed.lock(session)
            started = await feed.new_epoch(session, "test")
        name, said = await watch.next()
        assert (name, said["resource_version"]) == ("gone", f"{started.epoch}-{started.version}")
        assert await watch.ended()
