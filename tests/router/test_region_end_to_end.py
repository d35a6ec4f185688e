"""A region with everything real: control plane, routers, agents on simulated devices, engines over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agents.main import run as run_agent
from agents.settings import AgentSettings
from regional.settings import RouterSettings
from tests.router.centre import Centre
from tests.router.engines import BareEngine
from tests.router.routers import MODEL, RunningRouter, router
from tests.router.waiting import until

KEY = "hr-test-key-0001"


@contextlib.asynccontextmanager
async def agent(routers: list[str], engine: BareEngine, state: Path, token: str) -> AsyncIterator[asyncio.Event]:
    """A node agent for ``engine``; leaving the block, or setting the event, is its SIGTERM."""
    settings = AgentSettings.embedded(
        node=f"node-{engine.name}",
        zone="eu-a",
        state_dir=str(state),
        routers=routers,
        join_token=token,
        interval_seconds=0.2,
        devices="simulated:1xh100-sxm-80",
        engines=[{"name": engine.name, "kind": "openai", "url": engine.url, "models": {MODEL: MODEL}, "gpus": ["0"]}],
    )
    stop = asyncio.Event()
    task = asyncio.create_task(run_agent(settings, stop=stop))
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(15):
            await task


@pytest.fixture
async def centre(tmp_path: Path) -> AsyncIterator[Centre]:
    async with Centre(tmp_path).serving() as plane:
        await plane.apply(
            ("region", "eu", {"latitude": 53.3, "longitude": -6.2}),
            ("zone", "eu-a", {"region": "eu", "endpoint_ranges": ["127.0.0.0/8"]}),
            ("model", MODEL, {"task": "chat"}),
            ("tenant", "acme", {}),
            ("key", "acme-1", {"tenant": "acme", "secret": KEY}),
        )
        yield plane


async def test_joined_nodes_serve_and_die_and_a_router_restarts_without_the_centre(
    centre: Centre, tmp_path: Path
) -> None:
    join = await centre.join_token("nodes", uses=10)
    config = RouterSettings.embedded(
        region="eu",
        controlplane=[centre.grpc],
        router_token=await centre.token("router", "router", "eu"),
        state_dir=str(tmp_path / "router"),
    )
    async with contextlib.AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(BareEngine(n).serving()) for n in ("one", "two")]
        async with router(config) as first:
            # Agents know the router by its address; a restarted one is found on the same ports.
            config = config.model_copy(update={"port": first.ports["http"], "grpc_port": first.ports["grpc"]})
            stops = [
                await stack.enter_async_context(agent([first.grpc], e, tmp_path / e.name, join)) for e in (one, two)
            ]
            await until(lambda: _ready(first, 2), 20)
            assert await first.serves(KEY)
            names = {n["name"] for n in (await centre.call("GET", "/nodes"))["items"]}
            assert names == {"node-one", "node-two"}
            await until(lambda: (tmp_path / "router" / "snapshot").exists())
        await centre.stop()

        async with router(config) as again:
            await until(lambda: _ready(again, 2), 10)
            assert (await again.page("/readyz"))["status"] == "ok"
            one.hold.clear()
            requests = [asyncio.create_task(again.chat(KEY)) for _ in range(10)]
            await until(lambda: one.waiting > 0)
            started = time.monotonic()
            await one.kill()
            stops[0].set()
            answers = await asyncio.gather(*requests)
            assert time.monotonic() - started < 3.0
            assert {status for status, _, _ in answers} == {200}
            assert await again.serves(KEY)


async def _ready(running: RunningRouter, endpoints: int) -> bool:
    rows = (await running.page("/debug/capacity"))["rows"]
    return sum(row["endpoints_ready"] for row in rows) == endpoints


async def test_a_cordon_reaches_the_agent_and_keeps_new_work_away(centre: Centre, tmp_path: Path) -> None:
    join = await centre.join_token("nodes", uses=10)
    config = RouterSettings.embedded(
        region="eu", controlplane=[centre.grpc], router_token=await centre.token("router", "router", "eu")
    )
    async with contextlib.AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(BareEngine(n).serving()) for n in ("one", "two")]
        running = await stack.enter_async_context(router(config))
        for engine in (one, two):
            await stack.enter_async_context(agent([running.grpc], engine, tmp_path / engine.name, join))
        await until(lambda: _ready(running, 2), 20)
        await centre.call("POST", "/nodes/node-one:cordon", {"reason": "test"})

        async def only_two() -> bool:
            before = one.requests
            answers = await asyncio.gather(*(running.chat(KEY) for _ in range(8)))
            return {status for status, _, _ in answers} == {200} and one.requests == before

        await until(only_two)
        one_before = one.requests
        await asyncio.gather(*(running.chat(KEY) for _ in range(10)))
        assert one.requests == one_before
        await centre.call("POST", "/nodes/node-one:uncordon", {})
        await centre.call("POST", "/nodes/node-two:drain", {"reason": "test"})
        await until(lambda: _served_by(running, one))


async def _served_by(running: RunningRouter, engine: BareEngine) -> bool:
    before = engine.requests
    return (await running.chat(KEY))[0] == 200 and engine.requests > before
