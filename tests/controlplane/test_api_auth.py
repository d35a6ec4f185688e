"""Who may do what: nobody anything, unless a decision says so."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts

from controlplane.api.app import build_api, undecided_routes
from controlplane.api.auth import PUBLIC_PATHS, Role
from controlplane.api.context import ApiContext
from controlplane.secrets import DeploymentSecrets
from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from controlplane.tables import AdminToken
from fleet.clock import ManualClock
from tests.controlplane.conftest import BOOTSTRAP, Client

# What does not touch the database in a way of its own needs only one engine.
ONE_ENGINE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
TokenOf = Callable[..., Awaitable[str]]
ClientOf = Callable[[str | None], Client]


def _routes(app: FastAPI) -> list[tuple[str, str, frozenset[Role]]]:
    """(method, path with something in its places, roles) of every route there is."""
    return [
        (method, re.sub(r"{\w+}", "thing", str(route.path)), getattr(route.endpoint, "__access__", frozenset()))
        for route in iter_route_contexts(app.routes)
        for method in sorted(route.methods or {"GET"})
    ]


@ONE_ENGINE
async def test_case_v05_every_route_has_a_decision_and_refuses_strangers(app: FastAPI, client_of: ClientOf) -> None:
    stranger, wrong = client_of(None), client_of("not-a-token-of-ours")
    routes = _routes(app)
    assert len(routes) > 90
    assert undecided_routes(app) == []
    for method, path, roles in routes:
        for client in (stranger, wrong):
            answer = await client.request(method, path, content=b"{broken")
            if path in PUBLIC_PATHS:
                assert answer.status_code == 200, path
                assert roles == frozenset()
            else:
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert answer.json()["type"] == "urn:headrace:problem:unauthenticated"


@ONE_ENGINE
async def test_a_route_without_a_decision_stops_the_start_and_is_refused_anyway(
    context: ApiContext, database: Database
) -> None:
    forgotten = APIRouter()

    @forgotten.get("/api/v1/forgotten")
    async def endpoint() -> str:
        return "leak"

    with pytest.raises(RuntimeError, match="/api/v1/forgotten"):
        build_api(context, [forgotten])

    app = build_api(context)
    app.include_router(forgotten)
    async with Client(
        transport=httpx2.ASGITransport(app),
        base_url="http://controlplane",
        headers={"Authorization": f"Bearer {BOOTSTRAP}"},
    ) as client:
        answer = await client.get("/api/v1/forgotten")
    assert answer.status_code == 403
    assert "leak" not in answer.text


DISGUISED = [
    "//api/v1/keys",
    "/v1/..%2fapi/v1/keys",
    "/x/api/v1/keys",
    "/API/v1/keys",
    "/api/v1/keys/",
    "/api/v1/%6beys",
    "/api/v1/version/../keys",
    "/api/v1/version%2f..%2fkeys",
    "/docs/../api/v1/keys",
    "/docs/",
    "/dashboard",
]


@ONE_ENGINE
async def test_case_v05_paths_in_disguise(client_of: ClientOf, admin: Client) -> None:
    for path in DISGUISED:
        assert (await client_of(None).get(path)).status_code == 401, path
        assert (await admin.get(path)).status_code in (200, 404), path


@ONE_ENGINE
async def test_roles(app: FastAPI, client_of: ClientOf, token_of: TokenOf, admin: Client) -> None:
    """Every route with every role: below what it wants it is 403 and nothing else, above it never is."""
    assert (await admin.post("/api/v1/regions", json={"name": "eu-west"})).status_code == 201
    clients = {
        Role.VIEWER: client_of(await token_of("viewer")),
        Role.OPERATOR: client_of(await token_of("operator")),
        Role.ROUTER: client_of(await token_of("router", region="eu-west")),
    }
    includes = {
        Role.VIEWER: {Role.VIEWER},
        Role.OPERATOR: {Role.VIEWER, Role.OPERATOR},
        Role.ROUTER: {Role.ROUTER},
    }
    for method, path, roles in _routes(app):
        if path in PUBLIC_PATHS or path == "/api/v1/watch":
            continue
        for role, client in clients.items():
            answer = await client.request(method, path)
            assert (answer.status_code == 403) == (not roles & includes[role]), (role, method, path, answer.text)
    for _, path, roles in _routes(app):
        if "admin-tokens" in path:
            assert roles == {Role.ADMIN}, path


async def test_the_bootstrap_token_works_only_while_there_is_no_admin(
    client_of: ClientOf, token_of: TokenOf, admin: Client
) -> None:
    viewer = client_of(await token_of("viewer"))
    assert (await admin.get("/api/v1/admin-tokens")).status_code == 200, "a viewer is no admin"
    boss = client_of(await token_of("admin"))

    assert (await admin.get("/api/v1/regions")).status_code == 401
    assert (await boss.get("/api/v1/regions")).status_code == 200
    assert (await boss.delete("/api/v1/admin-tokens/viewer")).status_code == 200
    assert (await viewer.get("/api/v1/regions")).status_code == 401, "revoked at once"
    assert (await boss.delete("/api/v1/admin-tokens/admin")).status_code == 200
    assert (await admin.get("/api/v1/regions")).status_code == 200, "the way back in"


async def test_without_a_bootstrap_token_nobody_gets_in(
    database: Database, feed: IntentFeed, secrets: DeploymentSecrets, clock: ManualClock
) -> None:
    app = build_api(ApiContext(database, feed, secrets, clock, ""))
    async with Client(transport=httpx2.ASGITransport(app), base_url="http://controlplane") as client:
        for token in ("", " ", BOOTSTRAP, "None"):
            answer = await client.get("/api/v1/regions", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 401


async def test_tokens_expire(client_of: ClientOf, token_of: TokenOf, clock: ManualClock) -> None:
    lapse = datetime.fromtimestamp(clock.wall(), UTC) + timedelta(minutes=5)
    client = client_of(await token_of("viewer", expires_at=lapse.isoformat()))
    assert (await client.get("/api/v1/regions")).status_code == 200
    clock.advance(301)
    assert (await client.get("/api/v1/regions")).status_code == 401


async def test_tokens_survive_a_rotation_of_the_secret_key_and_are_nowhere_in_clear(
    client_of: ClientOf, token_of: TokenOf, context: ApiContext, database: Database
) -> None:
    token = await token_of("viewer")
    rotated = DeploymentSecrets.of(["a newer root key for the tests", "a root key that only tests use"])
    object.__setattr__(context, "secrets", rotated)
    assert (await client_of(token).get("/api/v1/regions")).status_code == 200
    async with database.read() as session:
        row = await session.get(
            AdminToken, (await client_of(BOOTSTRAP).get("/api/v1/admin-tokens/viewer")).json()["uid"]
        )
        assert row is not None
        assert token not in str([row.digest, row.name])


@ONE_ENGINE
async def test_a_token_is_a_router_exactly_when_it_has_a_region(admin: Client) -> None:
    for spec in ({"role": "router"}, {"role": "viewer", "region": "eu-west"}, {"role": "join"}, {"role": "root"}):
        assert (await admin.post("/api/v1/admin-tokens", json={"name": "t", "spec": spec})).status_code == 422


ODD_CREDENTIALS: list[list[tuple[bytes, bytes]]] = [
    [],
    [(b"Authorization", b"Basic Ym9vdDpzdHJhcA==")],
    [(b"Authorization", b"Bearer")],
    [(b"Authorization", f"Bearer {BOOTSTRAP}".encode()), (b"Authorization", f"Bearer {BOOTSTRAP}".encode())],
    [(b"Authorization", b"Bearer " + b"x" * 600)],
    [(b"Authorization", b"Bearer \xe4\xbd\xa0")],
]


@ONE_ENGINE
async def test_odd_credentials_are_401(client_of: ClientOf) -> None:
    for headers in ODD_CREDENTIALS:
        assert (await client_of(None).get("/api/v1/regions", headers=headers)).status_code == 401, headers


@ONE_ENGINE
async def test_answers_carry_what_keeps_browsers_and_caches_off(admin: Client) -> None:
    answer = await admin.get("/api/v1/regions", headers={"x-request-id": "chosen-by-the-client"})
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    docs = await admin.get("/docs")
    assert "default-src 'none'" in docs.headers["content-security-policy"]
    assert "<script" not in docs.text
    assert "/api/v1/nodes/{name}:drain" in docs.text
