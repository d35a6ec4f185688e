"""Routers under a real control plane: pulled intent, last good copy, restarts without a centre."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from regional.settings import RouterSettings
from tests.router.centre import Centre
from tests.router.engines import BareEngine
from tests.router.routers import MODEL, RunningRouter, router
from tests.router.waiting import until

KEY = "hr-test-key-0001"


@pytest.fixture
async def centre(tmp_path: Path) -> AsyncIterator[Centre]:
    async with Centre(tmp_path).serving() as plane:
        yield plane


async def write_fleet(centre: Centre, *engines: BareEngine) -> None:
    await centre.apply(
        ("region", "eu", {"latitude": 53.3, "longitude": -6.2, "jurisdictions": ["EU"]}),
        ("zone", "eu-a", {"region": "eu"}),
        ("node", "eu-a-1", {"zone": "eu-a", "gpus": [{"product": "h100-sxm-80", "count": 8}]}),
        ("model", MODEL, {"task": "chat"}),
        ("tenant", "acme", {}),
        ("key", "acme-1", {"tenant": "acme", "secret": KEY}),
    )
    for engine in engines:
        await centre.apply(("endpoint", engine.name, endpoint(engine)))


def endpoint(engine: BareEngine) -> dict[str, object]:
    return {"node": "eu-a-1", "url": engine.url, "engine": "openai", "models": [MODEL], "gpus": ["0"]}


async def settings(centre: Centre, state: Path | None = None, **more: object) -> RouterSettings:
    token = await centre.token(f"router-{time.monotonic_ns()}", "router", "eu")
    return RouterSettings.embedded(
        region="eu", controlplane=[centre.grpc], router_token=token, state_dir=str(state) if state else "", **more
    )


async def test_intent_arrives_and_changes_follow(centre: Centre) -> None:
    async with BareEngine("one").serving() as one, BareEngine("two").serving() as two:
        await write_fleet(centre, one)
        async with router(await settings(centre)) as running:
            await until(lambda: running.serves(KEY))
            assert (await running.chat("hr-some-other-key"))[0] == 401
            await centre.apply(("endpoint", "two", endpoint(two)))
            await centre.call("DELETE", "/endpoints/one")

            async def served_by_two() -> bool:
                return "two" in str((await running.chat(KEY))[2])

            await until(served_by_two)
            await centre.call("POST", "/keys/acme-1:revoke")
            started = time.monotonic()
            await until(lambda: _refused(running))
            assert time.monotonic() - started < 2.0, "a live watch revokes within two seconds"
            await asyncio.sleep(1.1)
            assert await running.metric("headrace_controlplane_connected") == 1
            age = await running.metric("headrace_snapshot_age_seconds")
            assert age is not None
            assert age < 3.0


async def _refused(running: RunningRouter) -> bool:
    return (await running.chat(KEY))[0] == 401


async def test_rel_r4_a_router_restarts_with_every_dependency_down_and_serves(centre: Centre, tmp_path: Path) -> None:
    state = tmp_path / "router"
    async with BareEngine("one").serving() as one:
        await write_fleet(centre, one)
        config = await settings(centre, state, redis_url="redis://127.0.0.1:1/0")
        async with router(config) as running:
            await until(lambda: running.serves(KEY))
            await until(lambda: (state / "snapshot").exists())
        await centre.stop()
        started = time.monotonic()
        async with router(config) as running:
            assert time.monotonic() - started < 2.0
            await until(lambda: running.serves(KEY), 2.0)
            assert (await running.page("/readyz"))["status"] == "ok"
            await centre.start()
            await until(lambda: _connected(running))


async def _connected(running: RunningRouter) -> bool:
    return bool((await running.page("/debug/snapshot"))["controlplane_connected"])


async def test_a_dead_control_plane_never_makes_a_router_unready(centre: Centre) -> None:
    async with BareEngine("one").serving() as one:
        await write_fleet(centre, one)
        async with router(await settings(centre)) as running:
            await until(lambda: running.serves(KEY))
            await centre.stop()
            await until(lambda: _disconnected(running))
            assert (await running.page("/readyz"))["status"] == "ok"
            assert await running.serves(KEY)
            await centre.start()
            await until(lambda: _connected(running))
            assert await running.serves(KEY)


async def _disconnected(running: RunningRouter) -> bool:
    return not await _connected(running)


async def test_a_router_without_any_intent_says_why_it_is_not_ready(tmp_path: Path) -> None:
    config = RouterSettings.embedded(region="eu", controlplane=["127.0.0.1:1"], router_token="hrr_x")
    async with router(config, wait_ready=False) as running:
        page = await running.page("/readyz")
        assert page["status"] == "unavailable"
        assert "intent" in page["reasons"]
        assert (await running.page("/livez"))["status"] == "ok"


async def test_the_centre_learns_what_the_region_has(centre: Centre) -> None:
    async with BareEngine("one").serving() as one:
        await write_fleet(centre, one)
        async with router(await settings(centre)) as running:
            await until(lambda: running.serves(KEY))

            async def known() -> bool:
                items = (await centre.call("GET", "/capacity"))["items"]
                return [(i["zone"], i["model"], i["endpoints_ready"]) for i in items] == [("eu-a", MODEL, 1)]

            await until(known)


async def test_a_corrupt_snapshot_is_put_aside_and_the_router_waits_for_the_centre(
    centre: Centre, tmp_path: Path
) -> None:
    state = tmp_path / "router"
    state.mkdir()
    (state / "snapshot").write_bytes(b"not a snapshot")
    async with BareEngine("one").serving() as one:
        await write_fleet(centre, one)
        async with router(await settings(centre, state)) as running:
            await until(lambda: running.serves(KEY))
            assert (state / "snapshot.corrupt").read_bytes() == b"not a snapshot"
            assert (await running.metric("headrace_config_errors_total") or 0) >= 1


@pytest.mark.slow
async def test_a_router_process_killed_without_a_centre_comes_back_and_serves(centre: Centre, tmp_path: Path) -> None:
    """The whole program: kill -9 while the control plane is down, start again, serve from disk."""
    from tests.services import free_port

    state, port = tmp_path / "router", free_port()
    async with BareEngine("one").serving() as one:
        await write_fleet(centre, one)
        config = await settings(centre, state)
        environ = {
            "PATH": os.environ["PATH"],
            "HEADRACE_CONTROLPLANE": centre.grpc,
            "HEADRACE_ROUTER_TOKEN": config.router_token,
            "HEADRACE_REGION": "eu",
            "HEADRACE_STATE_DIR": str(state),
            "HEADRACE_ROUTER_PORT": str(port),
            "HEADRACE_ROUTER_GRPC_PORT": str(free_port()),
            "HEADRACE_ROUTER_ADMIN_PORT": str(free_port()),
        }

        def launch() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", "router"], env=environ, stderr=subprocess.DEVNULL
            )

        class Process(RunningRouter):
            def __init__(self) -> None:
                self.ports = {"http": port}

        process, running = launch(), Process()
        try:
            await until(lambda: process.poll() is not None or running.serves(KEY), 30)
            assert process.poll() is None, "it ended by itself: a port it was given was taken meanwhile"
            await until(lambda: (state / "snapshot").exists())
            await centre.stop()
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = launch()
            await until(lambda: running.serves(KEY), 30)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 15) == 0
        finally:
            process.kill()
            process.wait()
