"""Devices through the real nvidia-ml-py on a fake driver, whose hardware changes while it is read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agents.accelerators.base import DeviceReading, DeviceSample
from agents.accelerators.nvml import NvmlDevices
from agents.devicehealth import DeviceHistory, judge_devices
from agents.xid import parse_policy
from fleet.accelerator import AcceleratorState, DeviceHealth
from tests.agents.hardware import Gpu, Hardware, Instance, uuid_of

Until = Callable[[Callable[[], bool]], Awaitable[None]]
A, B, C, D = (uuid_of(n) for n in range(1, 5))


class Node:
    """Devices being read, judged as the agent does."""

    def __init__(self, devices: NvmlDevices) -> None:
        self.devices = devices
        self.changes = 0
        self._history = DeviceHistory()

    def changed(self) -> None:
        self.changes += 1

    @property
    def reading(self) -> DeviceReading:
        return self.devices.latest()

    def samples(self) -> dict[str, DeviceSample]:
        return {s.uuid: s for s in self.reading.samples}

    def states(self) -> dict[str, AcceleratorState]:
        now = time.monotonic()
        reading = self.reading
        self._history = self._history.after(reading, now)
        return {d.uuid: d for d in judge_devices(reading, self._history, parse_policy(""), now, 2.0)}

    def health(self, uuid: str) -> DeviceHealth | None:
        state = self.states().get(uuid)
        return state.health if state else None


@pytest.fixture
async def node(hardware: Hardware) -> AsyncIterator[Node]:
    made = Node(NvmlDevices(interval_seconds=0.05, retry_seconds=0.2))
    made.devices.start(made.changed)
    yield made
    hardware.hang = False
    hardware.write()
    await made.devices.aclose()


async def test_every_reading_of_a_device(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(A, pids=(4711, 4712)), Gpu(B, "NVIDIA A100-SXM4-80GB", 81920, 40000, 99, 88, 390_000, 0x60)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 2)
    first, second = node.samples()[A], node.samples()[B]
    assert (first.index, first.raw_name, first.product) == (0, "NVIDIA H100 80GB HBM3", "h100-sxm-80")
    assert (first.memory_total_mib, first.memory_used_mib, first.utilisation) == (81559, 1024, 0.37)
    assert (first.temperature_celsius, first.power_watts) == (54.0, 310.0)
    assert (first.sm_clock_mhz, first.sm_clock_max_mhz) == (1755, 1980)
    assert (first.ecc_uncorrected, first.throttle_reasons, first.pids) == (0, (), (4711, 4712))
    assert first.pci_bus_id == "00000000:01:00.0"
    assert second.throttle_reasons == ("sw_thermal_slowdown", "hw_thermal_slowdown")
    assert node.health(A) is DeviceHealth.OK
    assert node.health(B) is DeviceHealth.DEGRADED


async def test_an_old_driver_without_the_newer_calls(
    hardware: Hardware, node: Node, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_OLD", "1")
    hardware.gpus = [Gpu(A, throttle=0x8)]
    hardware.write()
    await until(lambda: bool(node.reading.samples))
    sample = node.samples()[A]
    assert (sample.memory_used_mib, sample.temperature_celsius, sample.throttle_reasons) == (
        1024,
        54.0,
        ("hw_slowdown",),
    )


async def test_case_g01_one_lost_gpu_leaves_the_others(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(u) for u in (A, B, C, D)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 4)
    changes = node.changes
    hardware.gpus[2].lost = True
    hardware.write()
    await until(lambda: node.health(C) is DeviceHealth.LOST)
    assert [node.health(u) for u in (A, B, D)] == [DeviceHealth.OK] * 3
    assert node.samples()[C].raw_name == "NVIDIA H100 80GB HBM3"
    assert node.reading.error == "1 GPUs lost"
    assert node.changes > changes, "this is told at once"
    hardware.gpus[2].lost = False
    hardware.write()
    await until(lambda: node.health(C) is DeviceHealth.OK)
    assert [u for u, _ in node.reading.resets] == [C], "coming back means that it was reset"
    assert node.reading.error == ""


async def test_case_g01_a_gpu_that_the_driver_no_longer_counts_is_lost_too(
    hardware: Hardware, node: Node, until: Until
) -> None:
    hardware.gpus = [Gpu(A), Gpu(B)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 2)
    del hardware.gpus[0]
    hardware.write()
    await until(lambda: node.health(A) is DeviceHealth.LOST)
    assert node.health(B) is DeviceHealth.OK


async def test_another_error_of_one_gpu_makes_it_unknown_not_lost(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(A), Gpu(B)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 2)
    hardware.gpus[1].error = 999
    hardware.write()
    await until(lambda: node.health(B) is DeviceHealth.UNKNOWN)
    assert node.health(A) is DeviceHealth.OK


async def test_case_g03_mig_instances_and_a_changed_layout(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(A, "NVIDIA A100-SXM4-40GB", 40960, 19000, 0, mig=True)]
    halves = [Instance(A, f"MIG-{n}", "3g.20gb", 20000, used) for n, used in ((1, 18000), (2, 1000))]
    hardware.instances = halves
    hardware.write()
    await until(lambda: len(node.reading.samples) == 3)
    parent, busy, free = (node.samples()[u] for u in (A, "MIG-1", "MIG-2"))
    assert (parent.utilisation, busy.utilisation, free.utilisation) == (None, None, None), "not supported is not zero"
    assert (busy.parent_uuid, busy.mig_profile, busy.product) == (A, "3g.20gb", "a100-sxm-40")
    assert (busy.memory_used_mib, free.memory_used_mib) == (18000, 1000)
    hardware.instances = [Instance(A, f"MIG-{n}", "1g.5gb", 4800, 0) for n in range(10, 17)]
    hardware.write()
    await until(lambda: "MIG-10" in node.samples())
    assert set(node.states()) == {A, *(f"MIG-{n}" for n in range(10, 17))}, "no phantom of the old layout"
    hardware.xid(A, 48)
    await until(lambda: node.health("MIG-12") is DeviceHealth.FAILED)
    assert "parent" in node.states()["MIG-12"].health_reason


async def test_case_g05_permission_lost_while_running(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(A), Gpu(B)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 2)
    hardware.error = 999
    hardware.write()
    await until(lambda: node.health(A) is DeviceHealth.UNKNOWN)
    assert "recreate the container" in node.reading.error
    taken = node.samples()[A].taken_at
    await asyncio.sleep(0.3)
    assert node.samples()[A].taken_at == taken, "the last values stay as old as they are"
    assert (node.states()[A].sample_age_seconds or 0) >= 0.3
    assert node.states()[A].health.usable, "its engines are judged by their own health"
    hardware.error = 0
    hardware.write()
    await until(lambda: node.health(A) is DeviceHealth.OK)
    assert node.reading.error == ""


async def test_case_g07_identity_is_the_uuid_whatever_the_order(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(B), Gpu(A, used_mib=7)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 2)
    assert (node.samples()[A].index, node.samples()[B].index) == (1, 0)
    hardware.gpus.reverse()
    hardware.write()
    await until(lambda: node.samples()[A].index == 0)
    assert node.samples()[A].memory_used_mib == 7
    assert node.states()[A].health is node.states()[B].health is DeviceHealth.OK


@pytest.mark.parametrize(
    ("code", "health"),
    [(79, DeviceHealth.FAILED), (48, DeviceHealth.FAILED), (94, DeviceHealth.DEGRADED), (13, DeviceHealth.OK)],
)
async def test_rel_r27_xid_events(
    hardware: Hardware, node: Node, until: Until, code: int, health: DeviceHealth
) -> None:
    hardware.gpus = [Gpu(A), Gpu(B)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 2)
    await asyncio.sleep(0.1)
    injected, changes = time.monotonic(), node.changes
    hardware.xid(B, code)
    await until(lambda: bool(node.reading.xids))
    assert time.monotonic() - injected < 1.0
    assert node.changes > changes
    assert node.health(B) is health
    assert node.health(A) is (DeviceHealth.FAILED if code == 79 else DeviceHealth.OK)
    if code == 94:
        hardware.xid(B, 94)
        await until(lambda: node.health(B) is DeviceHealth.FAILED)


async def test_events_are_registered_again_after_the_driver_was_opened_anew(
    hardware: Hardware, node: Node, until: Until
) -> None:
    hardware.write()
    await until(lambda: "0 GPUs" in node.reading.error)
    hardware.gpus = [Gpu(A)]
    hardware.write()
    await until(lambda: bool(node.reading.samples))
    hardware.error = 999
    hardware.write()
    await until(lambda: bool(node.reading.error))
    await asyncio.sleep(0.5)
    hardware.error = 0
    hardware.write()
    await until(lambda: node.reading.error == "")
    await asyncio.sleep(0.1)
    hardware.xid(A, 48)
    await until(lambda: node.health(A) is DeviceHealth.FAILED)


async def test_ecc_and_what_the_driver_asks_for(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(A), Gpu(B)]
    hardware.write()
    await until(lambda: len(node.reading.samples) == 2)
    hardware.gpus[0].ecc, hardware.gpus[1].recovery = 1, 1
    hardware.write()
    await until(lambda: node.health(A) is DeviceHealth.FAILED and node.health(B) is DeviceHealth.FAILED)
    assert "ECC" in node.states()[A].health_reason
    assert "reset" in node.states()[B].health_reason


async def test_a_driver_that_hangs_holds_nobody_up(hardware: Hardware, node: Node, until: Until) -> None:
    hardware.gpus = [Gpu(A)]
    hardware.write()
    await until(lambda: bool(node.reading.samples))
    hardware.hang = True
    hardware.write()
    await until(lambda: node.health(A) is DeviceHealth.UNKNOWN)
    await until(lambda: "has not answered" in node.reading.error)
    before = time.monotonic()
    node.states()
    assert time.monotonic() - before < 0.5
    await node.devices.aclose()
    assert time.monotonic() - before < 3.0, "leaving does not wait for it"


PROGRAM = """
import asyncio, sys
from agents.accelerators.nvml import NvmlDevices
from fleet.process.logs import setup
async def main():
    setup("agent")
    devices = NvmlDevices(interval_seconds=0.05, retry_seconds=0.1)
    devices.start(lambda: None)
    loop = asyncio.get_running_loop()
    while True:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        for _ in range(200):
            reading = devices.latest()
            text = f"{len(reading.samples)} {reading.error}"
            if line.strip() in text:
                break
            await asyncio.sleep(0.02)
        print(text, flush=True)
    await devices.aclose()
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["absent", "directory"])
def test_case_g09_no_library_then_a_library_then_gpus(kind: str, tmp_path: Path, fake_driver: Path) -> None:
    """Runs on, says why, and picks devices up without a restart. In a process of its own: a library is never unloaded."""
    folder = tmp_path / "lib"
    folder.mkdir()
    library = folder / "libnvidia-ml.so.1"
    if kind == "directory":
        library.mkdir()
    hardware = Hardware(tmp_path / "gpus")
    hardware.write()
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML_STATE": str(hardware.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def says(expected: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(expected + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    try:
        assert "libnvidia-ml.so.1 cannot be loaded" in says("cannot be loaded")
        if kind == "directory":
            library.rmdir()
        library.symlink_to(fake_driver)
        assert "reports 0 GPUs" in says("reports 0 GPUs")
        hardware.gpus = [Gpu(A)]
        hardware.write()
        assert says("1 ").strip() == "1"
    finally:
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert errors.count("\n") < 10, "no flood of errors"
