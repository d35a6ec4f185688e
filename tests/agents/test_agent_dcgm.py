"""Devices by the page of a DCGM exporter, and processes by /proc."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable

from agents import processes
from agents.accelerators.dcgm import DcgmDevices
from tests.agents.scripted_engine import ScriptedEngine

Until = Callable[[Callable[[], bool]], Awaitable[None]]
LABELS = 'gpu="0",UUID="GPU-1",pci_bus_id="00000000:01:00.0",modelName="NVIDIA H100 80GB HBM3",Hostname="n"'


def page(xid: int, more: str = "") -> str:
    return f"""\
DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 37
DCGM_FI_DEV_GPU_UTIL{{{LABELS},GPU_I_ID="1",GPU_I_PROFILE="3g.40gb"}} 99
DCGM_FI_DEV_FB_USED{{{LABELS}}} 1024
DCGM_FI_DEV_FB_FREE{{{LABELS}}} 80535
DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 54
DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 310.5
DCGM_FI_DEV_SM_CLOCK{{{LABELS}}} 1755
DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} {xid}
{more}
"""


async def test_a_dcgm_exporter(engine: ScriptedEngine, until: Until) -> None:
    engine.pages["/metrics"] = page(31)
    devices = DcgmDevices(engine.url, interval_seconds=0.05)
    changes: list[int] = []
    devices.start(lambda: changes.append(1))
    try:
        await until(lambda: bool(devices.latest().samples))
        sample = devices.latest().samples[0]
        assert (sample.uuid, sample.index, sample.product) == ("GPU-1", 0, "h100-sxm-80")
        assert (sample.utilisation, sample.memory_used_mib, sample.memory_total_mib) == (0.37, 1024, 81559)
        assert (sample.power_watts, sample.sm_clock_mhz, sample.ecc_uncorrected) == (310.5, 1755, None)
        assert devices.latest().xids == (), "what it showed before we came may be days old"
        engine.pages["/metrics"] = page(48)
        await until(lambda: [x.code for x in devices.latest().xids] == [48])
        engine.pages["/metrics"] = page(48, f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{LABELS}}} 1")
        await until(lambda: devices.latest().samples[0].recovery_action == "reset")
        assert len(devices.latest().xids) == 1, "the gauge holds the last error; it is counted once"
        taken = devices.latest().samples[0].taken_at
        await engine.stop()
        await until(lambda: "does not answer" in devices.latest().error)
        await asyncio.sleep(0.1)
        assert devices.latest().samples[0].taken_at - taken < 1
        assert devices.latest().samples[0].error
    finally:
        await devices.aclose()


def test_who_listens_on_a_port() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert os.getpid() in processes.listeners([port])[port]
    assert port not in processes.listeners([port])


def test_whose_child_a_process_is() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert processes.parents()[child.pid] == os.getpid()
    finally:
        child.communicate()
