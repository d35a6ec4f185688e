"""The OpenAPI document is the truth: schemathesis calls every operation with what it says, and with what it forbids."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
import uvicorn
from fastapi import FastAPI
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from controlplane.api.app import build_api
from controlplane.api.context import ApiContext
from controlplane.api.kinds import API_KINDS
from controlplane.secrets import DeploymentSecrets
from controlplane.store import migrate
from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from tests.controlplane.conftest import BOOTSTRAP
from tests.services import free_port

# What a schema cannot say (references must exist, page tokens must be ours) may still be refused.
LONGEST_URL = 60_000
EXAMPLES = 2
"""Of each operation, of data that fits its description and of data that does not: some 400 calls in all."""


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API on a port of its own, in a thread, in front of an empty SQLite database."""
    url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'api.sqlite3'}"
    migrate.upgrade(url)
    secrets = DeploymentSecrets.generate()
    database = Database(url)
    app = build_api(ApiContext(database, IntentFeed(database, secrets), secrets, bootstrap_admin_token=BOOTSTRAP))
    port, bound = free_port(), threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            bound.set()

        async def shutdown(self, sockets: Any = None) -> None:
            await super().shutdown(sockets)
            await database.close()

    server = Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert bound.wait(30)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation_keeps_to_its_description(base_url: str, mode: GenerationMode) -> None:
    # Watching has no end, so it is tested elsewhere.
    schema = schemathesis.openapi.from_url(base_url + "/openapi.json").exclude(path="/api/v1/watch")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 90
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    for operation in operations:

        @settings
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: Any) -> None:
            response = case.call(headers={"Authorization": f"Bearer {BOOTSTRAP}"})
            if len(response.request.url or "") > LONGEST_URL:
                return  # the HTTP server refuses it before the API sees it
            case.validate_response(response, excluded_checks=[positive_data_acceptance])

        try:
            call()
        except hypothesis.errors.Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, operation.label  # nothing about it can be wrong


def test_the_document_is_exact(context_free_app: FastAPI) -> None:
    document = context_free_app.openapi()
    schemas = document["components"]["schemas"]
    for kind in API_KINDS.values():
        assert schemas[f"{kind.title}Input"]["additionalProperties"] is False
        for secret in kind.spec.secret_fields:
            assert secret not in schemas[f"{kind.title}SpecShown"]["properties"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["operationId"], (method, path)
            assert {"422", "503"} <= operation["responses"].keys(), (method, path)
            assert "security" in operation


@pytest.fixture
def context_free_app(tmp_path: Path) -> FastAPI:
    secrets = DeploymentSecrets.generate()
    database = Database(f"sqlite:///{tmp_path / 'none.sqlite3'}")
    return build_api(ApiContext(database, IntentFeed(database, secrets), secrets))
