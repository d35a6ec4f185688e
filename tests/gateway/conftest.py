"""A running gateway on uvloop, as in production, with everything around it released at the end of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
import uvloop

from fleet.intent import Intent
from regional.gateway.server import Gateway
from regional.gateway.settings import Expose, GatewaySettings
from regional.metrics import RouterMetrics
from regional.request.steps import RequestRecord, Step
from tests.gateway.parts import ListCore, NoOrigins, RawClient, RawUpstream, Reply, Script, answer_ok, intent_with


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], object]]:
    return {"uvloop": uvloop.new_event_loop}


StartUpstream = Callable[..., Awaitable[RawUpstream]]


@pytest.fixture
async def upstream() -> AsyncIterator[StartUpstream]:
    """Starts engines of scripted bytes."""
    started: list[RawUpstream] = []

    async def start(script: Script = answer_ok, **where: object) -> RawUpstream:
        engine = await RawUpstream(script).start(**where)  # type: ignore[arg-type]
        started.append(engine)
        return engine

    yield start
    for engine in started:
        await engine.stop()


class Running:
    """A gateway under test, and what there is to see of it."""

    def __init__(self, gateway: Gateway, core: ListCore, port: int, records: list[RequestRecord]) -> None:
        self.gateway = gateway
        self.core = core
        self.port = port
        self.records = records
        self.intent = intent_with()
        self.clients: list[RawClient] = []

    async def client(self) -> RawClient:
        client = await RawClient.open(self.port)
        self.clients.append(client)
        return client

    async def ask(self, *parts: bytes) -> Reply:
        """One request on a connection of its own."""
        client = await self.client()
        await client.send(*parts)
        return await client.reply()


StartGateway = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start_gateway() -> AsyncIterator[StartGateway]:
    """Starts gateways: steps of the core, the intent, and settings that differ from the default."""
    running: list[Running] = []

    async def start(
        *steps: Step, intent: Intent | None = None, core: ListCore | None = None, **settings: object
    ) -> Running:
        base = GatewaySettings(region="here", expose=Expose.ALL, shutdown_grace_seconds=2.0)
        chosen = replace(base, **settings)  # type: ignore[arg-type]
        records: list[RequestRecord] = []
        core = core or ListCore(*steps)
        metrics = RouterMetrics(chosen.region, "test")
        gateway = Gateway(
            core,
            lambda: started.intent,
            NoOrigins(),
            chosen,
            metrics,
            on_record=records.append,
            peer_status=lambda: {"region": chosen.region, "ready": True},
        )
        started = Running(gateway, core, 0, records)
        started.intent = intent or intent_with(region=chosen.region)
        started.port = (await gateway.serve("127.0.0.1", 0))[0][1]
        running.append(started)
        return started

    yield start
    for one in running:
        for client in one.clients:
            client.close()
        await one.gateway.close()
        assert not one.gateway.exchanges
        assert one.gateway.held_bytes == 0
        assert one.core.inflight == 0, "every begun request must have ended"
        for life in one.core.lives:
            assert life.calls.count("end") == 1, f"ended {life.calls.count('end')} times: {life.calls}"
