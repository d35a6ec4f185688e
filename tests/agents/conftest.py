"""Fixtures of the agent's tests: a fake driver built with the C compiler, engines over HTTP, a router over gRPC."""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.agents.fake_router import FakeRouter
from tests.agents.hardware import Hardware
from tests.agents.scripted_engine import ScriptedEngine

SOURCE = Path(__file__).parent / "fake_nvml.c"


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libnvidia-ml.so.1. Skips when there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the fake NVML driver cannot be built")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)],
        check=True,
    )
    return library


@pytest.fixture
def hardware(fake_driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """The fake driver loaded into this process (a later search for its name finds it), with hardware of its own."""
    ctypes.CDLL(str(fake_driver))
    state = tmp_path / "gpus"
    monkeypatch.setenv("FAKE_NVML_STATE", str(state))
    made = Hardware(state)
    made.write()
    return made


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    made = ScriptedEngine()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    made = FakeRouter()
    await made.start()
    yield made
    await made.stop()


Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    """Wait for a condition of the outside world, at most ten seconds."""

    async def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10.0
        while not condition():
            assert time.monotonic() < deadline, "it did not come about within 10 s"
            await asyncio.sleep(0.01)

    return wait
