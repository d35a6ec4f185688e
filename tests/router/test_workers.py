"""Several router processes that share one inference port."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from regional.advertised import advertised
from regional.settings import RouterSettings
from tests.router.engines import BareEngine
from tests.router.routers import RunningRouter, fleet_file
from tests.router.waiting import until
from tests.services import free_port


class Workers(RunningRouter):
    """The process, reached through the shared port."""

    def __init__(self, port: int) -> None:
        self.ports = {"http": port}


@pytest.fixture
async def engine() -> AsyncIterator[BareEngine]:
    async with BareEngine("one").serving() as one:
        yield one


@pytest.fixture
def launched(tmp_path: Path, engine: BareEngine) -> Iterator[tuple[subprocess.Popen[bytes], Workers, int]]:
    port, admin = free_port(), free_port()
    environ = {
        "PATH": os.environ["PATH"],
        "HEADRACE_ROUTER_PORT": str(port),
        "HEADRACE_ROUTER_GRPC_PORT": "0",
        "HEADRACE_ROUTER_ADMIN_PORT": str(admin),
        "HEADRACE_STATE_DIR": str(tmp_path / "state"),
    }
    path = fleet_file(tmp_path / "f.yaml", ("one", engine.url))
    command = [sys.executable, "-m", "headrace.cli.main", "router", "--fleet", str(path), "--workers", "2"]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
    yield process, Workers(port), admin
    process.kill()
    process.wait()


async def admin_page(port: int, path: str) -> dict[str, object] | None:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return dict(await answer.json())
    except aiohttp.ClientError:
        return None


@pytest.mark.slow
async def test_workers_share_the_port_and_are_routers_of_their_own(
    launched: tuple[subprocess.Popen[bytes], Workers, int], tmp_path: Path
) -> None:
    process, running, admin = launched
    await until(lambda: running.serves(), 40)
    for offset in (0, 100):
        await until(lambda offset=offset: admin_page(admin + offset, "/readyz"), 40)
    uids = {p.read_text() for p in (tmp_path / "state").rglob("router-uid")}
    assert len(uids) == 2
    assert len(list((tmp_path / "state").rglob("secret-key"))) == 1, "one set of secrets for all workers"

    children = _children(process.pid)
    os.kill(children[0], signal.SIGKILL)
    await until(lambda: set(_children(process.pid)) - set(children), 20, "a worker that died is started again")
    await until(lambda: running.serves(), 20)

    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 20) == 0
    await until(lambda: not _alive(children[1]), 5)


@pytest.mark.slow
async def test_workers_do_not_outlive_a_parent_that_is_killed(
    launched: tuple[subprocess.Popen[bytes], Workers, int],
) -> None:
    process, running, _ = launched
    await until(lambda: running.serves(), 40)
    await until(lambda: len(_children(process.pid)) == 2)
    children = _children(process.pid)
    process.kill()
    process.wait()
    await until(lambda: not any(_alive(child) for child in children), 20)


def test_each_worker_has_ports_and_state_of_its_own(tmp_path: Path) -> None:
    settings = RouterSettings(fleet="f", workers=3, state_dir=str(tmp_path))
    workers = [settings.worker(i) for i in range(3)]
    assert [w.grpc_port for w in workers] == [7601, 7701, 7801]
    assert [w.admin_port for w in workers] == [7605, 7705, 7805]
    assert len({w.state_dir for w in workers}) == 3
    assert {w.port for w in workers} == {7600}
    assert [w.worker_index for w in workers] == [0, 1, 2]
    assert settings.worker_index is None
    for worker in workers:
        where = advertised(worker, tls=False, port=7600, grpc_port=worker.grpc_port)
        assert where.workers == ("127.0.0.1:7601", "127.0.0.1:7701", "127.0.0.1:7801")


def _children(pid: int) -> list[int]:
    """Workers of the process: its children that run our code (the spawn method also starts a resource tracker)."""
    found = []
    for child in (Path(f"/proc/{pid}/task/{pid}/children").read_text() if _alive(pid) else "").split():
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"spawn_main" in command:
            found.append(int(child))
    return sorted(found)


def _alive(pid: int) -> bool:
    try:
        return b"Z" not in Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1]
    except FileNotFoundError:
        return False
