"""A router that is itself slow, in a process of its own: stopped, and starved of CPU. It gives nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.router.engines import BareEngine
from tests.router.routers import RunningRouter, fleet_file
from tests.router.scripted_agent import ScriptedAgent
from tests.router.waiting import until
from tests.services import free_port

STOPPED_SECONDS = 1.5
HOGS = 12
HOGGED_SECONDS = 4.0


class OwnProcess(RunningRouter):
    """A router started as a user would, reached over its ports."""

    def __init__(self, process: subprocess.Popen[bytes], ports: dict[str, int]) -> None:
        self.process = process
        self.ports = ports

    async def given_up(self) -> float:
        """How many places it has declared dead."""
        async with self._client() as session, session.get(self.admin + "/metrics") as answer:
            text = await answer.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "headrace_failovers_total"
        )

    def halt(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
async def engines() -> AsyncIterator[list[BareEngine]]:
    async with BareEngine("declared").serving() as one, BareEngine("reported").serving() as two:
        yield [one, two]


@pytest.fixture
def launched(tmp_path: Path, engines: list[BareEngine]) -> Iterator[OwnProcess]:
    ports = {"http": free_port(), "grpc": free_port(), "admin": free_port()}
    environ = {"PATH": os.environ["PATH"], "HEADRACE_STATE_DIR": str(tmp_path / "state")}
    for name, key in (("http", "ROUTER"), ("grpc", "ROUTER_GRPC"), ("admin", "ROUTER_ADMIN")):
        environ[f"HEADRACE_{key}_PORT"] = str(ports[name])
    path = fleet_file(tmp_path / "f.yaml", ("declared", engines[0].url))
    command = [sys.executable, "-m", "headrace.cli.main", "router", "--fleet", str(path)]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
    yield OwnProcess(process, ports)
    process.kill()
    process.wait()


@contextlib.asynccontextmanager
async def under_load(router: OwnProcess, engines: list[BareEngine]) -> AsyncIterator[list[int]]:
    """A steady trickle of requests over both engines; the list fills with their statuses."""
    await until(router.serves, seconds=20)
    agent = ScriptedAgent(router.grpc, "node-two", engines[1])
    statuses: list[int] = []

    async def ask() -> None:
        while True:
            statuses.append((await router.chat())[0])

    async with agent.running():
        await until(lambda: _both_serve(router, engines))
        clients = [asyncio.create_task(ask()) for _ in range(2)]
        try:
            yield statuses
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def _both_serve(router: OwnProcess, engines: list[BareEngine]) -> bool:
    await router.serves()
    return all(engine.requests for engine in engines)


async def test_a_router_that_was_stopped_gives_nobody_up(launched: OwnProcess, engines: list[BareEngine]) -> None:
    async with under_load(launched, engines) as statuses:
        launched.halt()
        await asyncio.sleep(STOPPED_SECONDS)
        launched.go_on()
        served = len(statuses)
        await until(lambda: len(statuses) > served + 50)
        assert await launched.given_up() == 0
    assert set(statuses) == {200}


async def test_probes_that_ran_out_while_the_router_was_stopped_say_nothing(
    launched: OwnProcess, engines: list[BareEngine]
) -> None:
    """It is stopped whenever a probe is under way, for longer than the probe has: the answers lie in its sockets."""
    await until(launched.serves, seconds=20)
    agent = ScriptedAgent(launched.grpc, "node-two", engines[1])
    loop = asyncio.get_running_loop()
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        launched.halt()
        loop.call_later(0.7, launched.go_on)

    async with agent.running():
        await until(lambda: _both_serve(launched, engines))
        await agent.fall_silent()  # so that its engine is asked directly, twice a second
        asked = engines[1].probes
        await until(lambda: engines[1].probes > asked)
        engines[1].on_probe = stop
        try:
            await until(lambda: stops >= 4, seconds=20)
        finally:
            engines[1].on_probe = None
            await asyncio.sleep(0.7)
            launched.go_on()
        asked = engines[1].probes
        await until(lambda: engines[1].probes > asked + 1)
        assert await launched.given_up() == 0


async def test_a_router_starved_of_cpu_gives_nobody_up(launched: OwnProcess, engines: list[BareEngine]) -> None:
    async with under_load(launched, engines) as statuses:
        async with hogs(HOGS):
            await asyncio.sleep(HOGGED_SECONDS)
        served = len(statuses)
        await until(lambda: len(statuses) > served + 50)
        assert await launched.given_up() == 0
    assert set(statuses) == {200}


@contextlib.asynccontextmanager
async def hogs(count: int) -> AsyncIterator[None]:
    """Processes that want all of the CPU, one started after the other: this process serves the engines meanwhile."""
    started: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(count):
            hog = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
            started.append(hog)  # known as soon as it runs, so that it is ended whatever happens
        yield
    finally:
        for hog in started:
            hog.kill()
        for hog in started:
            await hog.wait()
