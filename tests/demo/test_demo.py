"""``headrace demo`` as a process: the ladder, and that nothing is left behind however it ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fleet.errors import Unavailable
from headrace.demo.layout import layout, ports_needed
from headrace.demo.ports import check_free, free_block
from headrace.demo.stage import Stage
from tests.demo.processes import left_behind, start_demo

CLEAR_SECONDS = {"gpu": 1.0, "node": 2.0, "zone": 2.0, "region": 3.0}
LATE = 3.0
"""How much longer a machine that runs other tests may take; the demo itself judges by the limits."""


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_every_rung_of_the_ladder_holds(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, "--once", "--json")
    try:
        async with asyncio.timeout(220):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()
    text = err.decode()
    assert out.count(b"\n") == 1, f"one object on standard output, nothing else: {out!r} {text}"
    verdict: dict[str, Any] = json.loads(out)
    assert [rung["name"] for rung in verdict["rungs"]] == ["gpu", "node", "zone", "region"]
    for rung in verdict["rungs"]:
        told = f"{rung}\n{text}"
        assert rung["sent"] >= (2000 if rung["name"] == "region" else 500), told
        assert rung["failed"] * 1000 <= (rung["sent"] if rung["name"] == "region" else 0), told
        assert rung["seconds_to_clear"] <= LATE * CLEAR_SECONDS[rung["name"]], told
        lost = set(rung["from"]) - set(rung["to"])
        assert lost, told
        assert set(rung["after"]) & lost, told
    # Paris is served in Europe, Virginia in America, Tokyo in Asia: before anything is lost, and when it is back.
    for rung, home in zip(verdict["rungs"], ("westeurope", "eastus", "japaneast", "westeurope"), strict=True):
        for shares in (rung["from"], rung["after"]):
            assert sum(share for place, share in shares.items() if place.startswith(home)) > 0.9, rung
    assert verdict["ok"] == all(rung["ok"] for rung in verdict["rungs"])
    assert process.returncode == (0 if verdict["ok"] else 1)
    assert left_behind(tmp_path) == []


@pytest.mark.timeout(120)
async def test_it_tells_how_to_use_it_that_works_and_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, "--no-ladder", "--regions", "1")
    assert process.stdout is not None
    told = ""
    async with asyncio.timeout(90):
        while "stays up until Ctrl-C" not in told:
            line = await process.stdout.readline()
            assert line, f"it ended: {told}"
            told += line.decode()
    assert len(left_behind(tmp_path)) >= 7  # itself, control plane, router, four nodes
    url, key, body = _curl(told)
    server, token = _exports(told)
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        async with session.post(url, data=body, headers=headers) as answer:
            assert answer.status == 200
            assert answer.headers["x-headrace-region"] == "westeurope"
            assert (await answer.json())["choices"][0]["message"]["content"]
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(f"{server}/api/v1/regions", headers=headers) as answer:
            assert [item["name"] for item in (await answer.json())["items"]] == ["westeurope"]
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):
        await process.wait()
    assert process.returncode == 0
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("moment", ["control plane", "routers and"])
async def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path, moment: str) -> None:
    process = await start_demo(tmp_path, "--once", "--regions", "1")
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while moment not in (line := (await process.stdout.readline()).decode()):
            assert line, "it ended by itself"
    process.send_signal(signal.SIGINT)
    # Impatience changes nothing.
    await asyncio.sleep(0.2)
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in out + err
    assert left_behind(tmp_path) == []


async def test_a_killed_demo_takes_its_processes_along(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, "--once", "--regions", "1")
    async with asyncio.timeout(30):
        while len(left_behind(tmp_path)) < 3:  # noqa: ASYNC110  other processes start, nobody tells us
            await asyncio.sleep(0.1)
    process.kill()
    await process.communicate()
    async with asyncio.timeout(5):
        while left_behind(tmp_path):  # noqa: ASYNC110  the system ends them
            await asyncio.sleep(0.05)


async def test_a_taken_port_is_one_clear_line_and_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await start_demo(tmp_path, "--once", "--port-base", str(port - 3))
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    assert process.returncode == 1
    assert out == b""
    assert err.decode().strip().count("\n") == 0
    assert "--port-base" in err.decode()
    assert left_behind(tmp_path) == []


async def test_a_process_that_cannot_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    plan = layout(1, itertools.count(free_block(ports_needed(1))))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", plan.rest_port))
        taken.listen()
        async with Stage(plan, tmp_path) as stage:
            with pytest.raises(Unavailable, match=f"controlplane ended with status 1.*{plan.rest_port}"):
                await stage.start()
    # The next may take every port again.
    check_free([port for port in plan.ports if port != plan.rest_port])


async def test_wrong_usage_is_said_so(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, "--engine", "steam")
    _, err = await process.communicate()
    assert process.returncode == 2
    assert "simulated or llamacpp" in err.decode()


def _curl(text: str) -> tuple[str, str, str]:
    found = re.search(r"curl (\S+) -H 'Authorization: Bearer (\S+)'.*?-d '(.*?)'", text, re.DOTALL)
    assert found, text
    return found.group(1), found.group(2), found.group(3)


def _exports(text: str) -> tuple[str, str]:
    found = re.search(r"export HEADRACE_SERVER=(\S+) HEADRACE_TOKEN=(\S+)", text)
    assert found, text
    return found.group(1), found.group(2)
