"""``POST /apply``: all or nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import event

from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from tests.controlplane.conftest import Client, fleet

REGION = {"kind": "region", "name": "eu-west", "spec": {}}
ZONE = {"kind": "zone", "name": "eu-west-a", "spec": {"region": "eu-west"}}


def _actions(answer: Any) -> list[tuple[str, str, str]]:
    assert answer.status_code == 200, answer.text
    return [(c["action"], c["kind"], c["name"]) for c in answer.json()["changes"]]


async def test_one_version_for_all_and_none_for_nothing(admin: Client, feed: IntentFeed) -> None:
    start = await feed.head()
    first = await admin.post("/api/v1/apply", json=[ZONE, REGION])
    assert _actions(first) == [("created", "zone", "eu-west-a"), ("created", "region", "eu-west")]
    assert (await feed.head()).version == start.version + 1
    changes = await feed.changes_since(start)
    assert [(o.kind, o.name) for c in changes or [] for o in c.upserts] == [
        ("region", "eu-west"),
        ("zone", "eu-west-a"),
    ]

    again = await admin.post("/api/v1/apply", json=[ZONE, REGION])
    assert {action for action, _, _ in _actions(again)} == {"unchanged"}
    assert (await feed.head()).version == start.version + 1

    spec = {"region": "eu-west", "jurisdictions": ["EU"]}
    moved = await admin.post("/api/v1/apply", json=[ZONE | {"labels": {"tier": "gold"}, "spec": spec}])
    assert moved.json()["changes"][0]["diff"] == [
        {"pointer": "/labels/tier", "from": None, "to": "gold"},
        {"pointer": "/spec/jurisdictions", "from": [], "to": ["EU"]},
    ]


async def test_one_fault_keeps_everything_out_and_all_faults_are_named(admin: Client, feed: IntentFeed) -> None:
    before = await feed.head()
    documents = [
        REGION,
        ZONE | {"spec": {"region": "nowhere"}},
        {"kind": "tenant", "name": "t", "spec": {"sla_class": "gold"}},
        {"kind": "model", "name": "a", "spec": {"aliases": ["same"]}},
        {"kind": "model", "name": "b", "spec": {"aliases": ["same"]}},
    ]
    answer = await admin.post("/api/v1/apply", json=documents)
    assert answer.status_code == 422
    pointers = [e["pointer"] for e in answer.json()["errors"]]
    assert pointers == ["/1/spec/region", "/2/spec/sla_class", "/3/spec/aliases/0", "/4/spec/aliases/0"]
    assert await feed.head() == before
    assert (await admin.get("/api/v1/regions")).json()["items"] == []


async def test_wrong_documents_are_named_by_place(admin: Client) -> None:
    wrong = [REGION, {"kind": "zone", "name": "z", "spec": {"regoin": "x"}}, {"kind": "moon", "name": "m"}]
    answer = await admin.post("/api/v1/apply", json=wrong)
    assert answer.status_code == 422
    pointers = [e["pointer"] for e in answer.json()["errors"]]
    assert "/1/spec/regoin" in pointers
    assert any(p.startswith("/2") for p in pointers), pointers
    twice = await admin.post("/api/v1/apply", json=[REGION, ZONE, REGION])
    assert [e["pointer"] for e in twice.json()["errors"]] == ["/2/name"]


async def test_a_dry_run_says_the_same_and_does_nothing(admin: Client, feed: IntentFeed) -> None:
    await fleet(admin)
    before = await feed.head()
    documents = [
        {"kind": "region", "name": "us-east", "spec": {}},
        {"kind": "tenant", "name": "acme", "spec": {"weight": 3}},
        {"kind": "key", "name": "new", "spec": {"tenant": "acme"}},
    ]
    dry = (await admin.post("/api/v1/apply?dry_run=true", json=documents)).json()
    assert dry["dry_run"] is True
    assert [c["secret"] for c in dry["changes"]] == [None, None, None], "a secret of a dry run is good for nothing"
    assert await feed.head() == before
    assert (await admin.get("/api/v1/keys/new")).status_code == 404
    assert (await admin.get("/api/v1/audit")).json()["items"][0]["action"] == "apply"
    assert len((await admin.get("/api/v1/audit")).json()["items"]) == 1, "nor is it audited"

    real = (await admin.post("/api/v1/apply", json=documents)).json()
    strip = [{k: v for k, v in c.items() if k not in ("uid", "secret")} for c in dry["changes"]]
    assert [{k: v for k, v in c.items() if k not in ("uid", "secret")} for c in real["changes"]] == strip
    assert real["changes"][2]["secret"].startswith("hr_")


async def test_pruning_deletes_what_is_selected_and_not_named(admin: Client, feed: IntentFeed) -> None:
    labelled = [d | {"labels": {"app": "demo"}} for d in (REGION, ZONE)]
    other = {"kind": "region", "name": "other", "spec": {}}
    await admin.post("/api/v1/apply", json=[*labelled, other])

    refused = await admin.post("/api/v1/apply", params={"prune": ""}, json=[])
    assert refused.status_code == 422, "an empty selector would take everything"
    kept = await admin.post("/api/v1/apply", params={"prune": "app=demo"}, json=labelled)
    assert {a for a, _, _ in _actions(kept)} == {"unchanged"}
    pruned = await admin.post("/api/v1/apply", params={"prune": "app=demo"}, json=[labelled[0]])
    assert _actions(pruned) == [("unchanged", "region", "eu-west"), ("deleted", "zone", "eu-west-a")]
    node = {"kind": "zone", "name": "kept", "spec": {"region": "eu-west"}}
    await admin.post("/api/v1/apply", json=[node])
    referenced = await admin.post("/api/v1/apply", params={"prune": "app=demo"}, json=[])
    assert (referenced.status_code, referenced.json()["type"]) == (409, "urn:headrace:problem:referenced")
    assert len((await admin.get("/api/v1/regions")).json()["items"]) == 2


async def test_an_operator_applies_places_but_not_tenants(
    admin: Client, client_of: Callable[[str | None], Client], token_of: Callable[..., Awaitable[str]], feed: IntentFeed
) -> None:
    operator = client_of(await token_of("operator"))
    assert (await operator.post("/api/v1/apply", json=[REGION])).status_code == 200
    before = await feed.head()
    refused = await operator.post("/api/v1/apply", json=[ZONE, {"kind": "tenant", "name": "t", "spec": {}}])
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:headrace:problem:forbidden")
    await admin.post("/api/v1/apply", json=[{"kind": "tenant", "name": "t", "labels": {"a": "b"}, "spec": {}}])
    assert (await operator.post("/api/v1/apply", params={"prune": "a=b"}, json=[])).status_code == 403
    assert (await feed.head()).version == before.version + 1


async def test_what_a_large_apply_costs_is_not_a_query_per_document(
    admin: Client, feed: IntentFeed, database: Database
) -> None:
    await fleet(admin)
    statements: list[str] = []

    def count(*args: Any) -> None:
        statements.append(args[2])

    keys = [
        {"kind": "key", "name": f"k-{n}", "spec": {"tenant": "acme", "secret_hmac": f"{n:064x}"}} for n in range(300)
    ]
    zones = [{"kind": "zone", "name": f"z-{n}", "spec": {"region": "eu-west"}} for n in range(100)]
    event.listen(database.engine.sync_engine, "before_cursor_execute", count)
    answer = await admin.post("/api/v1/apply", json=keys + zones)
    event.remove(database.engine.sync_engine, "before_cursor_execute", count)

    assert answer.status_code == 200, answer.text
    assert len(statements) < 60, statements
    _, objects = await feed.load_objects()
    assert sum(o.kind == "key" for o in objects) == 300


async def test_an_apply_may_hand_a_secret_from_one_key_to_another_name(admin: Client) -> None:
    await fleet(admin)

    def key(name: str, number: int) -> dict[str, Any]:
        return {"kind": "key", "name": name, "spec": {"tenant": "acme", "secret_hmac": f"{number:064x}"}}

    assert (await admin.post("/api/v1/apply", json=[key("a", 1), key("b", 2)])).status_code == 200
    assert (await admin.post("/api/v1/apply", json=[key("a", 3), key("c", 1)])).status_code == 200
    assert (await admin.post("/api/v1/apply", json=[key("d", 2)])).status_code == 409
