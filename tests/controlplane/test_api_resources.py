"""Resources over REST, on both engines: every kind alike."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select

from controlplane.api.kinds import API_KINDS
from controlplane.secrets import DeploymentSecrets
from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from controlplane.tables import InventoryItem, JoinToken, Resource
from fleet.clock import ManualClock
from fleet.resources.keys import key_digest, plausible
from fleet.resources.translate import intent_of
from tests.controlplane.conftest import Client, fleet

# The least that each kind can be made of, once `fleet` is there.
SPECS: dict[str, dict[str, Any]] = {
    "region": {},
    "link": {"from": "eu-west", "to": "us-east", "rtt_ms": 70},
    "zone": {"region": "eu-west"},
    "node": {"zone": "eu-west-a"},
    "policy": {},
    "model": {},
    "endpoint": {"node": "eu-west-a-1", "url": "http://10.2.0.9:1", "models": ["llama"]},
    "deployment": {"model": "llama", "zones": ["eu-west-a"], "product": "h100-sxm-80"},
    "route": {"match": {"model": "best"}, "split": [{"model": "llama", "weight": 9}, {"model": "llama-v2"}]},
    "sla-class": {},
    "tenant": {},
    "key": {"tenant": "acme"},
    "price": {"currency": "EUR", "from": "2026-09-01T00:00:00Z"},
    "join-token": {},
    "admin-token": {"role": "viewer"},
}


@pytest.fixture
async def full(admin: Client) -> Client:
    await fleet(admin)
    assert (await admin.post("/api/v1/regions", json={"name": "us-east", "spec": {}})).status_code == 201
    return admin


async def test_the_life_of_a_resource_of_every_kind(full: Client, feed: IntentFeed) -> None:
    assert set(SPECS) == set(API_KINDS)
    for kind in SPECS:
        await _life(full, feed, kind)


async def _life(full: Client, feed: IntentFeed, kind: str) -> None:
    path = f"/api/v1/{API_KINDS[kind].plural}"
    start = await feed.head()

    made = await full.post(path, json={"name": "thing", "labels": {"team": "a"}, "spec": SPECS[kind]})
    assert made.status_code == 201, made.text
    first = made.json()
    assert made.headers["location"] == f"{path}/thing"
    assert first["kind"] == kind
    assert first["generation"] == 1
    assert (
        first["spec"].items()
        >= {k: v for k, v in SPECS[kind].items() if k not in ("models", "split", "match", "from")}.items()
    )

    again = await full.post(path, json={"name": "thing", "spec": SPECS[kind]})
    assert (again.status_code, again.json()["type"]) == (409, "urn:headrace:problem:already-exists")

    read = await full.get(f"{path}/thing")
    assert read.json() == {k: v for k, v in first.items() if k != "secret"}
    assert read.headers["etag"] == f'"{first["resource_version"]}"'
    assert (await full.get(f"{path}/thing", headers={"If-None-Match": read.headers["etag"]})).status_code == 304

    labelled = await full.patch(f"{path}/thing", json={"labels": {"team": None, "tier": "b"}})
    assert labelled.status_code == 200, labelled.text
    assert labelled.json()["labels"] == {"tier": "b"}
    assert labelled.json()["generation"] == 1, "labels are not what is wanted of it"
    assert labelled.json()["resource_version"] != first["resource_version"]

    same = await full.put(f"{path}/thing", json=labelled.json())
    assert same.status_code == 200, same.text
    assert same.json() == labelled.json(), "writing back what was read changes nothing"

    lost = await full.put(
        f"{path}/thing", json={"name": "thing", "spec": SPECS[kind]}, headers={"If-Match": read.headers["etag"]}
    )
    assert (lost.status_code, lost.json()["type"]) == (412, "urn:headrace:problem:precondition-failed")

    gone = await full.delete(f"{path}/thing", headers={"If-Match": same.headers["etag"]})
    assert gone.status_code == 200, gone.text
    assert gone.json() == {"deleted": [{"kind": kind, "name": "thing", "uid": first["uid"]}]}
    assert (await full.get(f"{path}/thing")).status_code == 404
    reborn = await full.post(path, json={"name": "thing", "spec": SPECS[kind]})
    assert reborn.status_code == 201, reborn.text
    assert reborn.json()["uid"] != first["uid"], "a uid is never used again"

    changes = await feed.changes_since(start)
    assert changes is not None
    published = [(o.kind, o.uid) for c in changes for o in c.upserts] + [r for c in changes for r in c.removals]
    expected = [(kind, first["uid"])] * 2 + [(kind, reborn.json()["uid"])] + [(kind, first["uid"])]
    assert published == ([] if kind.endswith("token") else expected)
    assert (await full.delete(f"{path}/thing")).status_code == 200


async def test_what_is_written_is_what_routers_get(full: Client, feed: IntentFeed, secrets: DeploymentSecrets) -> None:
    made = await full.post("/api/v1/keys", json={"name": "acme-1", "spec": {"tenant": "acme"}})
    key = made.json()["secret"]
    await full.post("/api/v1/zones/eu-west-a:drain", json={"reason": "power"})

    at, objects = await feed.load_objects()
    intent, unread = intent_of(at, "eu-west", objects)

    assert unread == []
    assert intent.keys_by_digest[key_digest(secrets.peppers()[0], key)].tenant == "acme"
    assert {e.api_key for e in intent.endpoints.values()} == {"engine-secret-1"}
    assert intent.aliases == {"meta-llama/Llama": "llama"}
    hold = intent.holds["zone", intent.zones["eu-west-a"].uid]
    assert (hold.state, hold.reason) == ("draining", "power")


async def test_generation_rises_with_the_spec(full: Client) -> None:
    changed = await full.patch("/api/v1/tenants/acme", json={"spec": {"weight": 2, "models": ["llama"]}})
    assert changed.json()["generation"] == 2
    back = await full.patch("/api/v1/tenants/acme", json={"spec": {"weight": None}})
    assert back.json()["spec"]["weight"] == 1, "null takes a field away, and its default counts again"
    assert back.json()["generation"] == 3


# Secrets


async def test_a_key_is_shown_once_and_kept_as_a_digest(full: Client, database: Database) -> None:
    made = (await full.post("/api/v1/keys", json={"name": "made", "spec": {"tenant": "acme"}})).json()
    assert plausible(made["secret"])
    given = await full.post(
        "/api/v1/keys", json={"name": "given", "spec": {"tenant": "acme", "secret": "canary-secret-42"}}
    )
    assert given.json()["secret"] is None, "the caller has it already"

    for name, secret in (("made", made["secret"]), ("given", "canary-secret-42")):
        read = await full.get(f"/api/v1/keys/{name}")
        assert secret not in read.text
        assert "secret" not in read.json()["spec"]
        assert read.json()["status"]["secret_hint"].endswith(secret[-2:])
    for path in ("/api/v1/keys", "/api/v1/audit", "/api/v1/events"):
        text = (await full.get(path)).text
        assert "canary-secret-42" not in text
        assert made["secret"] not in text
    async with database.read() as session:
        for row in await session.scalars(select(Resource).where(Resource.kind == "key")):
            stored = str([row.spec, row.sealed, row.secret_digest, row.secret_hint])
            assert "canary-secret" not in stored
            assert made["secret"] not in stored
            assert row.secret_digest not in (await full.get("/api/v1/audit")).text


async def test_two_keys_cannot_share_a_secret(full: Client, secrets: DeploymentSecrets) -> None:
    body = {"name": "one", "spec": {"tenant": "acme", "secret": "the-same-secret"}}
    assert (await full.post("/api/v1/keys", json=body)).status_code == 201
    digest = key_digest(secrets.peppers()[0], "the-same-secret").hex()
    for spec in ({"secret": "the-same-secret"}, {"secret_hmac": digest}):
        clash = await full.post("/api/v1/keys", json={"name": "two", "spec": {"tenant": "acme", **spec}})
        assert (clash.status_code, clash.json()["type"]) == (409, "urn:headrace:problem:conflict")
    both = [{"kind": "key", "name": n, "spec": {"tenant": "acme", "secret": "another-one"}} for n in ("x", "y")]
    clash = await full.post("/api/v1/apply", json=both)
    assert clash.status_code == 409
    assert (await full.get("/api/v1/keys/x")).status_code == 404


async def test_a_mistyped_key_of_ours_is_refused(full: Client) -> None:
    secret = (await full.post("/api/v1/keys", json={"name": "k", "spec": {"tenant": "acme"}})).json()["secret"]
    wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    answer = await full.post("/api/v1/keys", json={"name": "typo", "spec": {"tenant": "acme", "secret": wrong}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/spec/secret"
    assert wrong not in answer.text


async def test_a_secret_left_out_of_a_write_stays(full: Client, feed: IntentFeed) -> None:
    async def api_key() -> str | None:
        _, objects = await feed.load_objects()
        return next(o.secrets.get("api_key") for o in objects if o.kind == "endpoint")

    path = "/api/v1/endpoints/engine-1"
    spec = {"node": "eu-west-a-1", "url": "http://10.2.0.1:9301", "models": ["llama"]}
    replaced = await full.put(path, json={"name": "engine-1", "spec": spec})
    assert replaced.json()["generation"] == 2
    assert await api_key() == "engine-secret-1"

    same = await full.put(path, json={"name": "engine-1", "spec": {**spec, "api_key": "engine-secret-1"}})
    assert same.json()["generation"] == 2, "the same secret is no change"
    other = await full.patch(path, json={"spec": {"api_key": "engine-secret-2"}})
    assert other.json()["generation"] == 3
    assert await api_key() == "engine-secret-2"
    cleared = await full.patch(path, json={"spec": {"api_key": None}})
    assert cleared.json()["status"]["secret_hint"] is None
    assert await api_key() is None


async def test_revoking_a_key(full: Client, feed: IntentFeed) -> None:
    await full.post("/api/v1/keys", json={"name": "k", "spec": {"tenant": "acme"}})
    start = await feed.head()
    first = await full.post("/api/v1/keys/k:revoke")
    again = await full.post("/api/v1/keys/k:revoke")
    assert first.json()["spec"]["revoked"] is True
    assert again.json() == first.json()
    changes = await feed.changes_since(start)
    assert [o.spec["revoked"] for c in changes or [] for o in c.upserts] == [True]
    assert [e["reason"] for e in (await full.get("/api/v1/events?kind=key")).json()["items"]] == ["KeyRevoked"]


async def test_a_revoked_key_does_not_come_back_with_a_file_from_before(full: Client, feed: IntentFeed) -> None:
    written = {"kind": "key", "name": "k", "spec": {"tenant": "acme", "secret": "acme-secret-1"}}
    await full.post("/api/v1/apply", json=[written])
    await full.post("/api/v1/keys/k:revoke")
    start = await feed.head()
    again = await full.post("/api/v1/apply", json=[written])
    assert [c["action"] for c in again.json()["changes"]] == ["unchanged"]
    explicit = written | {"spec": written["spec"] | {"revoked": False}}
    for refused in (
        await full.post("/api/v1/apply", json=[explicit]),
        await full.patch("/api/v1/keys/k", json={"spec": {"revoked": False}}),
    ):
        assert refused.status_code == 409
        assert "revoked for good" in refused.json()["detail"]
    assert await feed.head() == start
    labelled = await full.post("/api/v1/apply", json=[written | {"labels": {"a": "b"}}])
    assert [d["pointer"] for d in labelled.json()["changes"][0]["diff"]] == ["/labels/a"]
    assert (await full.get("/api/v1/keys/k")).json()["spec"]["revoked"] is True


async def test_join_tokens_tell_how_often_they_were_used(
    full: Client, database: Database, secrets: DeploymentSecrets
) -> None:
    spec = {"zone": "eu-west-*", "node": "gpu-*", "uses": 3, "ttl_seconds": 600}
    made = (await full.post("/api/v1/join-tokens", json={"name": "join", "spec": spec})).json()
    async with database.write() as session:
        row = (await session.scalars(select(JoinToken))).one()
        assert row.digest == secrets.digest_token(made["secret"])
        assert (row.zone, row.node, row.uses) == ("eu-west-*", "gpu-*", 3)
        row.used = 2
    raised = await full.patch("/api/v1/join-tokens/join", json={"spec": {"uses": 5}})
    observed = raised.json()["status"]["observed"]
    assert (observed["used"], observed["uses"]) == (2, 5), "a change of the description does not give uses back"
    assert observed["expires_at"] == "2026-09-21T14:23:20.000Z"
    assert (await full.delete("/api/v1/join-tokens/join")).status_code == 200
    async with database.read() as session:
        assert (await session.scalars(select(JoinToken))).all() == []


# References and clashes


async def test_references_must_exist(full: Client) -> None:
    spec = {"match": {"model": "x"}, "split": [{"model": "llama"}, {"model": "nope"}], "fallback": ["nada"]}
    answer = await full.post("/api/v1/routes", json={"name": "r", "spec": spec})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "/spec/split/1/model", "reason": "there is no model nope"},
        {"pointer": "/spec/fallback/0", "reason": "there is no model nada"},
    ]
    assert (await full.get("/api/v1/routes/r")).status_code == 404


async def test_deleting_what_is_referenced(full: Client) -> None:
    refused = await full.delete("/api/v1/regions/eu-west")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:headrace:problem:referenced")
    assert [(r["kind"], r["name"]) for r in refused.json()["references"]] == [
        ("zone", "eu-west-a"),
        ("node", "eu-west-a-1"),
        ("endpoint", "engine-1"),
    ]
    gone = await full.delete("/api/v1/regions/eu-west?cascade=true")
    assert [(r["kind"], r["name"]) for r in gone.json()["deleted"]] == [
        ("region", "eu-west"),
        ("zone", "eu-west-a"),
        ("node", "eu-west-a-1"),
        ("endpoint", "engine-1"),
    ]
    assert (await full.get("/api/v1/endpoints")).json()["items"] == []
    assert (await full.get("/api/v1/models/llama")).status_code == 200


async def test_a_built_in_class_may_be_named_and_overridden(full: Client) -> None:
    assert (await full.post("/api/v1/tenants", json={"name": "t", "spec": {"sla_class": "batch"}})).status_code == 201
    assert (await full.post("/api/v1/sla-classes", json={"name": "batch", "spec": {"priority": 5}})).status_code == 201
    assert (await full.delete("/api/v1/sla-classes/batch")).status_code == 200


CLASHES: list[tuple[str, dict[str, Any], str]] = [
    ("models", {"aliases": ["new", "meta-llama/Llama"]}, "/spec/aliases/1"),
    ("models", {"aliases": ["twice", "twice"]}, "/spec/aliases/1"),
    ("routes", {"match": {"model": "best", "tenants": ["b", "a"]}, "split": [{"model": "llama"}]}, "/spec/match"),
    ("links", {"from": "eu-west", "to": "us-east"}, "/spec/to"),
    ("links", {"from": "eu-west", "to": "eu-west"}, "/spec/to"),
    ("regions", {"edge": {"parent": "edge"}}, "/spec/edge/parent"),
    ("endpoints", {"node": "eu-west-a-1", "url": "http://10.3.0.1:80", "models": ["llama"]}, "/spec/url"),
    ("endpoints", {"node": "eu-west-a-1", "url": "http://[::ffff:10.3.0.1]:80", "models": ["llama"]}, "/spec/url"),
    ("endpoints", {"node": "free", "url": "http://169.254.169.254", "models": ["llama"]}, "/spec/url"),
]


async def test_clashes_and_addresses_out_of_range(full: Client) -> None:
    route = {"match": {"model": "best", "tenants": ["a", "b"]}, "split": [{"model": "llama"}]}
    there: list[dict[str, Any]] = [
        {"kind": "route", "name": "there", "spec": route},
        {"kind": "link", "name": "there", "spec": {"from": "eu-west", "to": "us-east"}},
        {"kind": "zone", "name": "no-ranges", "spec": {"region": "us-east"}},
        {"kind": "node", "name": "free", "spec": {"zone": "no-ranges"}},
    ]
    assert (await full.post("/api/v1/apply", json=there)).status_code == 200
    for plural, spec, pointer in CLASHES:
        name = "edge" if plural == "regions" else "thing"
        answer = await full.post(f"/api/v1/{plural}", json={"name": name, "spec": spec})
        assert answer.status_code == 422, (plural, spec, answer.text)
        assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]
        assert (await full.get(f"/api/v1/{plural}/{name}")).status_code == 404


async def test_route_alias_and_name_may_coincide(full: Client) -> None:
    spec = {"match": {"model": "llama"}, "split": [{"model": "llama-v2"}]}
    assert (await full.post("/api/v1/routes", json={"name": "r", "spec": spec})).status_code == 201
    assert (await full.post("/api/v1/models", json={"name": "m", "spec": {"aliases": ["llama"]}})).status_code == 201


# Bad input


WRONG: list[tuple[Any, str]] = [
    ({"name": "UPPER", "spec": {}}, "/name"),
    ({"name": "a" * 254, "spec": {}}, "/name"),
    ({"name": "r", "spec": {"latitude": 91}}, "/spec/latitude"),
    ({"name": "r", "spec": {"lattitude": 1}}, "/spec/lattitude"),
    ({"name": "r", "kind": "zone", "spec": {}}, "/kind"),
    ({"name": "r", "labels": {"bad key!": "x"}}, "/labels/bad key!/[key]"),
    ({"name": "r", "extra": 1, "spec": {}}, "/extra"),
    ({"name": "r", "annotations": {"note": "nul\u0000"}}, "/annotations/note"),
    ({"name": "r", "annotations": {"note": "half \ud83d"}}, "/annotations/note"),
    ([], ""),
    ("text", ""),
]


async def test_wrong_bodies_are_named_and_change_nothing(full: Client, feed: IntentFeed) -> None:
    before = await feed.head()
    for body, pointer in WRONG:
        headers = {"Content-Type": "application/json"}
        answer = await full.post("/api/v1/regions", content=json.dumps(body), headers=headers)
        assert answer.status_code == 422, (body, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert pointer in [e["pointer"] for e in answer.json()["errors"]]
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert await feed.head() == before


async def test_broken_json_and_other_types_of_body(full: Client) -> None:
    broken = await full.post("/api/v1/regions", content=b'{"name": ', headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["type"]) == (400, "urn:headrace:problem:bad-request")
    form = await full.post("/api/v1/regions", data={"name": "x"})
    assert form.status_code == 422
    huge = await full.post(
        "/api/v1/regions", content=b" " * (17 * 1024 * 1024), headers={"Content-Type": "application/json"}
    )
    assert (huge.status_code, huge.json()["type"]) == (413, "urn:headrace:problem:too-large")

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 1024 * 1024

    streamed = await full.post("/api/v1/regions", content=endless(), headers={"Content-Type": "application/json"})
    assert (streamed.status_code, streamed.json()["type"]) == (413, "urn:headrace:problem:too-large")
    deep = b'{"name":"r","annotations":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    nested = await full.post("/api/v1/regions", content=deep, headers={"Content-Type": "application/json"})
    assert nested.status_code in (400, 422)


async def test_identity_cannot_be_changed(full: Client) -> None:
    renamed = await full.patch("/api/v1/regions/eu-west", json={"name": "eu-north"})
    assert (renamed.status_code, renamed.json()["errors"][0]["pointer"]) == (422, "/name")
    present = (await full.get("/api/v1/regions/eu-west")).json()
    other = await full.put("/api/v1/regions/eu-west", json=present | {"uid": "another"})
    assert other.status_code == 409
    stale = await full.put("/api/v1/regions/eu-west", json=present | {"resource_version": "1-1"})
    assert stale.status_code == 409


# Lists


async def test_pages_hold_everything_once(full: Client) -> None:
    documents = [{"kind": "model", "name": f"m-{n:03}", "labels": {"odd": str(n % 2)}} for n in range(57)]
    assert (await full.post("/api/v1/apply", json=documents)).status_code == 200
    seen: list[str] = []
    token, pages = "", 0
    while True:
        page = (
            await full.get("/api/v1/models", params={"page_size": 10, "page_token": token, "label_selector": "odd=1"})
        ).json()
        seen += [item["name"] for item in page["items"]]
        token, pages = page["next_page_token"], pages + 1
        if not token:
            break
    assert seen == [f"m-{n:03}" for n in range(57) if n % 2]
    assert pages == 3

    first = (await full.get("/api/v1/models", params={"page_size": 10})).json()
    moved = await full.get("/api/v1/models", params={"page_token": first["next_page_token"], "label_selector": "odd=1"})
    assert (moved.status_code, moved.json()["errors"][0]["pointer"]) == (422, "/query/page_token")
    assert len((await full.get("/api/v1/models", params={"page_size": 100000})).json()["items"]) == 59
    assert len((await full.get("/api/v1/models", params={"page_size": -1})).json()["items"]) == 59


async def test_selecting_by_field(full: Client) -> None:
    async def names(plural: str, selector: str) -> list[str]:
        answer = await full.get(f"/api/v1/{plural}", params={"field_selector": selector})
        assert answer.status_code == 200, answer.text
        return [item["name"] for item in answer.json()["items"]]

    assert await names("models", "spec.version=2") == ["llama-v2"]
    assert await names("models", "spec.version!=2,name=llama") == ["llama"]
    assert await names("zones", "spec.region=eu-west") == ["eu-west-a"]
    assert await names("zones", "spec.region=us-east") == []
    assert await names("tenants", "status.managed_by=user") == ["acme"]


# What agents report


@pytest.fixture
async def reported(full: Client, database: Database, clock: ManualClock) -> Client:
    now = datetime.fromtimestamp(clock.wall(), UTC)

    def item(of: str, uid: str, name: str, state: str, **body: Any) -> InventoryItem:
        return InventoryItem(
            kind=of, uid=uid, name=name, node_uid="node-uid", zone="eu-west-a", region="eu-west", incarnation=3, sequence=9,
            state=state, body=body, first_seen_at=now, last_seen_at=now,
        )  # fmt: skip

    async with database.write() as session:
        session.add(item("node", "node-uid", "gpu-box", "ready", device_error=""))
        session.add(item("gpu", "GPU-0a1b", "GPU-0a1b", "ok", product="h100-sxm-80", utilisation=None))
        facts: dict[str, Any] = {"node": "gpu-box", "url": "http://10.2.0.7:8000", "kind": "vllm"}
        facts["models"] = [{"name": "llama", "served_as": "llama"}]
        session.add(item("endpoint", "engine-uid", "gpu-box.vllm", "ready", **facts))
    return full


async def test_reported_things_are_listed_with_written_ones(reported: Client) -> None:
    nodes = (await reported.get("/api/v1/nodes")).json()["items"]
    assert [(n["name"], n["status"]["managed_by"]) for n in nodes] == [("eu-west-a-1", "user"), ("gpu-box", "agent")]
    gpu = (await reported.get("/api/v1/gpus/GPU-0a1b")).json()
    assert gpu["status"]["observed"]["product"] == "h100-sxm-80"
    assert gpu["status"]["observed"]["utilisation"] is None, "unknown is never zero"
    endpoint = (await reported.get("/api/v1/endpoints/engine-uid")).json()
    assert (endpoint["name"], endpoint["spec"]["engine"]) == ("gpu-box.vllm", "vllm")
    paged = (await reported.get("/api/v1/endpoints", params={"page_size": 1})).json()
    rest = (
        await reported.get("/api/v1/endpoints", params={"page_size": 1, "page_token": paged["next_page_token"]})
    ).json()
    assert [e["name"] for e in (*paged["items"], *rest["items"])] == ["engine-1", "gpu-box.vllm"]
    ready = await reported.get("/api/v1/gpus", params={"field_selector": "status.observed.zone=eu-west-a"})
    assert len(ready.json()["items"]) == 1


async def test_what_an_agent_reports_cannot_be_deleted(reported: Client) -> None:
    for path in ("nodes/gpu-box", "endpoints/gpu-box.vllm"):
        answer = await reported.delete(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:headrace:problem:agent-reported")
    assert (await reported.delete("/api/v1/gpus/GPU-0a1b")).status_code == 405


HOLDABLE: list[tuple[str, str, str | None]] = [
    ("regions/eu-west", "region", None),
    ("zones/eu-west-a", "zone", None),
    ("nodes/eu-west-a-1", "node", None),
    ("endpoints/engine-1", "endpoint", None),
    ("nodes/gpu-box", "node", "node-uid"),
    ("endpoints/gpu-box.vllm", "endpoint", "engine-uid"),
    ("gpus/GPU-0a1b", "gpu", "GPU-0a1b"),
]


async def test_cordon_drain_uncordon(reported: Client, feed: IntentFeed) -> None:
    for path, kind, target in HOLDABLE:
        await _hold_and_release(reported, feed, path, kind, target)


async def _hold_and_release(reported: Client, feed: IntentFeed, path: str, kind: str, target: str | None) -> None:
    uid = target or (await reported.get(f"/api/v1/{path}")).json()["uid"]
    start = await feed.head()

    def conditions(answer: Any) -> dict[str, str]:
        assert answer.status_code == 200, answer.text
        return {c["type"]: c["status"] for c in answer.json()["status"]["conditions"]}

    async def holds() -> dict[tuple[str, str], str]:
        at, objects = await feed.load_objects()
        return {key: hold.state.value for key, hold in intent_of(at, "eu-west", objects)[0].holds.items()}

    cordoned = await reported.post(f"/api/v1/{path}:cordon", json={"reason": "fan"})
    assert conditions(cordoned) == {"Cordoned": "True", "Draining": "False"}
    assert await holds() == {(kind, uid): "cordoned"}
    version = await feed.head()
    await reported.post(f"/api/v1/{path}:cordon", json={"reason": "fan"})
    assert await feed.head() == version, "doing it again changes nothing"
    assert conditions(await reported.post(f"/api/v1/{path}:drain")) == {"Cordoned": "True", "Draining": "True"}
    assert await holds() == {(kind, uid): "draining"}
    assert conditions(await reported.post(f"/api/v1/{path}:uncordon")) == {"Cordoned": "False", "Draining": "False"}
    assert await holds() == {}
    assert (await feed.head()).version == start.version + 3
    events = (await reported.get("/api/v1/events", params={"kind": kind})).json()["items"]
    assert [e["reason"] for e in events][:3] == ["Uncordoned", "Draining", "Cordoned"]


async def test_a_hold_goes_with_what_it_holds(full: Client, feed: IntentFeed) -> None:
    await full.post("/api/v1/endpoints/engine-1:cordon")
    await full.delete("/api/v1/endpoints/engine-1")
    _, objects = await feed.load_objects()
    assert not [o for o in objects if o.kind in ("hold", "endpoint")]
    missing = await full.post("/api/v1/nodes/nowhere:drain")
    assert missing.status_code == 404


@pytest.mark.parametrize(
    ("field", "other"), [("version", "2"), ("task", "embedding"), ("context_tokens", 8192), ("weights_gib", 8.5)]
)
async def test_a_model_is_one_version_for_good(admin: Client, field: str, other: object) -> None:
    """Requests under way, prices and caches go by it; what may point elsewhere is its aliases and its policy."""
    written = {"version": "1", "task": "chat", "context_tokens": 4096, "weights_gib": 16.0}
    for name, spec in (("full", written), ("bare", {})):
        assert (await admin.post("/api/v1/models", json={"name": name, "spec": spec})).status_code == 201
        for refused, pointer in (
            (await admin.patch(f"/api/v1/models/{name}", json={"spec": {field: other}}), f"/spec/{field}"),
            (
                await admin.put(f"/api/v1/models/{name}", json={"name": name, "spec": spec | {field: other}}),
                f"/spec/{field}",
            ),
            (
                await admin.post(
                    "/api/v1/apply",
                    json=[
                        {"kind": "model", "name": "new", "spec": {}},
                        {"kind": "model", "name": name, "spec": spec | {field: other}},
                    ],
                ),
                f"/1/spec/{field}",
            ),
        ):
            assert refused.status_code == 409, refused.text
            assert [e["pointer"] for e in refused.json()["errors"]] == [pointer]
            assert field in refused.json()["detail"]
        assert (await admin.get("/api/v1/models/new")).status_code == 404
        moved = await admin.patch(f"/api/v1/models/{name}", json={"spec": {"aliases": [f"{name}-alias"]}})
        assert moved.status_code == 200, moved.text
        same = await admin.put(
            f"/api/v1/models/{name}",
            json={"name": name, "spec": spec | {"aliases": [f"{name}-alias"], "version": "1", "task": "chat"}},
        )
        assert same.status_code == 200, "what is said with its default is not another value"
    assert (await admin.delete("/api/v1/models/bare")).status_code == 200
    assert (await admin.post("/api/v1/models", json={"name": "bare", "spec": {field: other}})).status_code == 201
