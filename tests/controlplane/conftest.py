"""The admin API in front of a real database, called as a client would call it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httpx2
import pytest
from fastapi import FastAPI

from controlplane.api.app import build_api
from controlplane.api.context import ApiContext
from controlplane.secrets import DeploymentSecrets
from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from fleet.clock import ManualClock

BOOTSTRAP = "bootstrap-token-for-tests"
Client = httpx2.AsyncClient


@pytest.fixture
def secrets() -> DeploymentSecrets:
    return DeploymentSecrets.of(["a root key that only tests use"])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=1_790_000_000.0)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def feed(database: Database, secrets: DeploymentSecrets, clock: ManualClock) -> AsyncIterator[IntentFeed]:
    opened = IntentFeed(database, secrets, clock)
    yield opened
    await opened.close()


@pytest.fixture
def context(database: Database, feed: IntentFeed, secrets: DeploymentSecrets, clock: ManualClock) -> ApiContext:
    return ApiContext(database, feed, secrets, clock, BOOTSTRAP)


class _Switched:
    """An ApiContext whose parts are exchanged from test to test: building the application takes longer than most tests."""

    parts: ApiContext

    def __getattr__(self, name: str) -> Any:
        return getattr(self.parts, name)


@pytest.fixture(scope="session")
def _built() -> tuple[FastAPI, _Switched]:
    switched = _Switched()
    switched.parts = ApiContext.__new__(ApiContext)
    return build_api(cast(ApiContext, switched)), switched


@pytest.fixture
def app(_built: tuple[FastAPI, _Switched], context: ApiContext) -> FastAPI:
    built, switched = _built
    switched.parts = context
    return built


@pytest.fixture
async def client_of(app: FastAPI) -> AsyncIterator[Callable[[str | None], Client]]:
    """Clients by token, all closed at the end."""
    made: list[Client] = []

    def client_of(token: str | None) -> Client:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        made.append(Client(transport=transport, base_url="http://controlplane", headers=headers))
        return made[-1]

    yield client_of
    for client in made:
        await client.aclose()


@pytest.fixture
def admin(client_of: Callable[[str | None], Client]) -> Client:
    return client_of(BOOTSTRAP)


@pytest.fixture
def token_of(admin: Client) -> Callable[..., Any]:
    """Makes a token with a role; the secret."""

    async def token_of(role: str, name: str | None = None, **spec: Any) -> str:
        body = {"name": name or role, "spec": {"role": role, **spec}}
        answer = await admin.post("/api/v1/admin-tokens", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["secret"])

    return token_of


async def fleet(client: Client) -> None:
    """A region with a zone, a node, two models and an endpoint."""
    documents = [
        {
            "kind": "region",
            "name": "eu-west",
            "spec": {"latitude": 53.3, "longitude": -6.3, "jurisdictions": ["IE", "EU"]},
        },
        {"kind": "zone", "name": "eu-west-a", "spec": {"region": "eu-west", "endpoint_ranges": ["10.2.0.0/16"]}},
        {"kind": "node", "name": "eu-west-a-1", "spec": {"zone": "eu-west-a"}},
        {"kind": "model", "name": "llama", "spec": {"aliases": ["meta-llama/Llama"]}},
        {"kind": "model", "name": "llama-v2", "spec": {"version": "2"}},
        {
            "kind": "endpoint",
            "name": "engine-1",
            "spec": {
                "node": "eu-west-a-1",
                "url": "http://10.2.0.1:9300",
                "models": ["llama"],
                "api_key": "engine-secret-1",
            },
        },
        {"kind": "tenant", "name": "acme", "spec": {"models": ["*"]}},
    ]
    answer = await client.post("/api/v1/apply", json=documents)
    assert answer.status_code == 200, answer.text
