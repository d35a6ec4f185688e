"""The whole agent process, in process: its admin port, real HTTP engines, a real gRPC router, simulated or fake hardware."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agents.accelerators.base import Devices
from agents.accelerators.nvml import NvmlDevices
from agents.accelerators.simulated import SimulatedDevices
from agents.main import run
from agents.settings import AgentSettings
from fleet.accelerator import DeviceHealth
from fleet.endpoint import EndpointPhase, EndpointReport
from fleet.errors import InvalidInput
from fleet.process.serve import BindError
from fleet.report import AgentPhase, NodeDirective, NodeReport
from tests.agents.fake_router import FakeRouter
from tests.agents.hardware import Gpu, Hardware, uuid_of
from tests.agents.scripted_engine import VLLM_IDLE, ScriptedEngine

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Process:
    """An agent that runs until it is stopped."""

    def __init__(self, settings: AgentSettings, devices: Devices | None) -> None:
        self.stop = asyncio.Event()
        self.port = 0
        self._ready = asyncio.Event()
        self.task = asyncio.create_task(
            run(settings, stop=self.stop, ready=self._ready.set, devices=devices, on_bound=self._bound)
        )

    def _bound(self, _host: str, port: int) -> None:
        self.port = port

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://127.0.0.1:{self.port}{path}", json=body) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def leave(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 20)


Start = Callable[..., Process]


@pytest.fixture
async def start(router: FakeRouter, engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Start]:
    processes: list[Process] = []

    def started(devices: Devices | None = None, **more: Any) -> Process:
        values = {
            "node": "node-1",
            "zone": "zone-1",
            "routers": [router.address],
            "state_dir": str(tmp_path / "state"),
            "devices": "simulated:2xh100-sxm-80",
            "interval_seconds": 0.1,
            "engines": [{"name": "a", "kind": "vllm", "url": engine.url, "gpus": ["0"], "api_key": "engine-secret-1"}],
        }
        process = Process(AgentSettings.embedded(**(values | more)), devices)
        processes.append(process)
        return process

    yield started
    for process in processes:
        if not process.task.done():
            await process.leave()


def endpoint(report: NodeReport | None, name: str = "a") -> EndpointReport:
    assert report is not None
    return next(e for e in report.endpoints if e.name == name)


def phase(router: FakeRouter, wanted: EndpointPhase, name: str = "a") -> Callable[[], bool]:
    return lambda: router.newest is not None and endpoint(router.newest, name).phase is wanted


async def test_full_state_of_the_node_in_every_report(
    router: FakeRouter, engine: ScriptedEngine, start: Start, until: Until
) -> None:
    process = start()
    await router.until(phase(router, EndpointPhase.READY))
    report = router.newest
    assert report is not None
    assert (report.node_name, report.zone, report.phase, report.interval_seconds) == (
        "node-1",
        "zone-1",
        AgentPhase.RUNNING,
        0.1,
    )
    assert [(g.product, g.index, g.health) for g in report.gpus] == [
        ("h100-sxm-80", 0, DeviceHealth.OK),
        ("h100-sxm-80", 1, DeviceHealth.OK),
    ]
    seen = endpoint(report)
    assert (seen.url, seen.gpu_uuids, seen.gpus_known) == (engine.url, (report.gpus[0].uuid,), True)
    assert seen.api_key == "engine-secret-1", "routers need it to send requests there"
    assert report.addresses == ("127.0.0.1",)
    assert process.port > 0
    await until(lambda: len(router.joins) == 1)
    status, ready = await process.ask("GET", "/readyz")
    assert (status, ready["reasons"]) == (200, {})
    assert list(router.joins[0].gpu_uuids) == [g.uuid for g in report.gpus]


async def test_secrets_are_nowhere_on_the_admin_port(router: FakeRouter, start: Start) -> None:
    process = start()
    await router.until(phase(router, EndpointPhase.READY))
    for path in ("/state", "/metrics", "/readyz"):
        status, body = await process.ask("GET", path)
        assert status == 200
        assert "engine-secret-1" not in str(body)
        assert "identity-1" not in str(body)
    _, metrics = await process.ask("GET", "/metrics")
    assert 'headrace_gpus{state="ok"} 2.0' in metrics
    assert 'headrace_endpoints{state="ready"} 1.0' in metrics


FAULTS = [
    ({"fault": "xid", "code": 48, "device": "0"}, EndpointPhase.STOPPED, DeviceHealth.FAILED, DeviceHealth.OK),
    ({"fault": "xid", "code": 79, "device": "0"}, EndpointPhase.STOPPED, DeviceHealth.LOST, DeviceHealth.FAILED),
    ({"fault": "lost", "device": "0"}, EndpointPhase.STOPPED, DeviceHealth.LOST, DeviceHealth.OK),
    ({"fault": "ecc", "device": "0"}, EndpointPhase.STOPPED, DeviceHealth.FAILED, DeviceHealth.OK),
    ({"fault": "throttle", "device": "0"}, EndpointPhase.READY, DeviceHealth.DEGRADED, DeviceHealth.OK),
    ({"fault": "xid", "code": 13, "device": "0"}, EndpointPhase.READY, DeviceHealth.OK, DeviceHealth.OK),
    ({"fault": "driver", "message": "no access"}, EndpointPhase.READY, DeviceHealth.UNKNOWN, DeviceHealth.UNKNOWN),
]


@pytest.mark.parametrize(
    ("fault", "expected", "own", "other"), FAULTS, ids=lambda v: v["fault"] if type(v) is dict else ""
)
async def test_faults_of_simulated_devices_by_the_admin_port(
    router: FakeRouter,
    start: Start,
    fault: dict[str, Any],
    expected: EndpointPhase,
    own: DeviceHealth,
    other: DeviceHealth,
) -> None:
    process = start()
    await router.until(phase(router, EndpointPhase.READY))
    injected = time.monotonic()
    assert (await process.ask("POST", "/simulated/faults", fault))[0] == 204
    await router.until(lambda: [g.health for g in router.newest.gpus] == [own, other])  # type: ignore[union-attr]
    assert time.monotonic() - injected < 1.0, "out within a second (rel-R27)"
    assert endpoint(router.newest).phase is expected
    if fault["fault"] == "driver":
        assert router.newest is not None
        assert router.newest.device_error == "no access"
        fault = {"fault": "driver"}
    else:
        fault = {"fault": "recover", "device": "0"}
    assert (await process.ask("POST", "/simulated/faults", fault))[0] == 204
    await router.until(lambda: all(g.health is DeviceHealth.OK for g in router.newest.gpus))  # type: ignore[union-attr]
    await router.until(phase(router, EndpointPhase.READY))


@pytest.mark.parametrize(
    "fault", [{"fault": "xid", "device": "9"}, {"fault": "melt", "device": "0"}, {"device": "0"}, {}]
)
async def test_faults_that_are_none_change_nothing(router: FakeRouter, start: Start, fault: dict[str, Any]) -> None:
    process = start()
    await router.until(phase(router, EndpointPhase.READY))
    status, _ = await process.ask("POST", "/simulated/faults", fault)
    assert status in (404, 422)
    assert router.newest is not None
    assert all(g.health is DeviceHealth.OK for g in router.newest.gpus)


async def test_a_stuck_device_is_unknown_and_its_engine_serves_on(router: FakeRouter, start: Start) -> None:
    devices = SimulatedDevices("2xh100-sxm-80")
    start(devices)
    await router.until(phase(router, EndpointPhase.READY))
    devices.stick(devices.uuids[0])
    await router.until(lambda: router.newest.gpus[0].health is DeviceHealth.UNKNOWN)  # type: ignore[union-attr]
    assert endpoint(router.newest).phase is EndpointPhase.READY
    assert router.newest is not None
    assert (router.newest.gpus[0].sample_age_seconds or 0) > 1


async def test_a_condemned_gpu_stays_out_over_a_restart_of_the_agent(router: FakeRouter, start: Start) -> None:
    devices = SimulatedDevices("2xh100-sxm-80")
    process = start(devices)
    await router.until(phase(router, EndpointPhase.READY))
    devices.inject_xid(devices.uuids[0], 62)
    await router.until(phase(router, EndpointPhase.STOPPED))
    await process.leave()
    seen = len(router.reports())
    again = start(SimulatedDevices("2xh100-sxm-80"))
    await router.until(lambda: len(router.reports()) > seen + 2)
    assert endpoint(router.newest).phase is EndpointPhase.STOPPED
    uuid = devices.uuids[0]
    assert (await again.ask("POST", f"/devices/{uuid}/clear"))[0] == 204
    await router.until(phase(router, EndpointPhase.READY))
    assert (await again.ask("POST", "/devices/GPU-x/clear"))[0] == 404


async def test_incarnation_rises_with_each_start_and_reports_stay_ordered(router: FakeRouter, start: Start) -> None:
    for _ in range(3):
        process = start()
        streams = len(router.streams)
        await router.until(lambda n=streams: len(router.streams) > n and len(router.streams[-1].reports) > 2)  # type: ignore[misc]
        await process.leave()
    incarnations = [s.reports[0].incarnation for s in router.streams]
    assert incarnations == sorted(set(incarnations))
    for stream in router.streams:
        orders = [r.order for r in stream.reports]
        assert orders == sorted(set(orders))


async def test_leaving_to_restart_says_so_and_leaves_engines_in_service(router: FakeRouter, start: Start) -> None:
    process = start(restart_grace_seconds=77)
    await router.until(phase(router, EndpointPhase.READY))
    left = time.monotonic()
    await process.leave()
    assert time.monotonic() - left < 3
    last = router.streams[-1].reports[-1]
    assert (last.phase, last.restart_grace_seconds) == (AgentPhase.RESTARTING, 77)
    assert endpoint(last).phase is EndpointPhase.READY
    assert router.streams[-1].half_closed


async def test_leaving_for_good_drains_and_waits_for_the_engines(
    router: FakeRouter, engine: ScriptedEngine, start: Start
) -> None:
    process = start(on_term="drain", drain_deadline_seconds=30)
    await router.until(phase(router, EndpointPhase.READY))
    busy = VLLM_IDLE.replace('running{engine="0",model_name="m"} 0.0', 'running{engine="0",model_name="m"} 2.0')
    engine.pages["/metrics"] = busy
    await router.until(lambda: endpoint(router.newest).load.running == 2)
    process.stop.set()
    await router.until(lambda: router.newest.phase is AgentPhase.DRAINING)  # type: ignore[union-attr]
    assert endpoint(router.newest).phase is EndpointPhase.DRAINING
    assert (await process.ask("GET", "/readyz"))[0] == 503
    await asyncio.sleep(1.5)
    assert not process.task.done(), "work is still running"
    engine.pages["/metrics"] = VLLM_IDLE
    await asyncio.wait_for(process.task, 10)
    assert router.streams[-1].reports[-1].phase is AgentPhase.DRAINING
    assert router.streams[-1].half_closed


async def test_a_drain_ends_at_its_deadline(router: FakeRouter, engine: ScriptedEngine, start: Start) -> None:
    process = start(on_term="drain", drain_deadline_seconds=1.0)
    await router.until(phase(router, EndpointPhase.READY))
    engine.pages["/metrics"] = "nothing_known 1\n"
    await router.until(lambda: endpoint(router.newest).load.running is None)
    process.stop.set()
    await asyncio.wait_for(process.task, 10)
    assert router.streams[-1].reports[-1].phase is AgentPhase.DRAINING


async def test_a_drain_directive_is_obeyed_and_lifted(router: FakeRouter, start: Start) -> None:
    start()
    await router.until(phase(router, EndpointPhase.READY))
    router.streams[-1].directives.put_nowait(NodeDirective(1, 2, draining=True, report_interval_seconds=0.2))
    await router.until(phase(router, EndpointPhase.DRAINING))
    assert router.newest is not None
    assert (router.newest.phase, router.newest.interval_seconds) == (AgentPhase.DRAINING, 0.2)
    router.streams[-1].directives.put_nowait(NodeDirective(1, 3))
    await router.until(phase(router, EndpointPhase.READY))


async def test_an_engine_may_move_its_port_and_keeps_its_identity(
    router: FakeRouter, engine: ScriptedEngine, start: Start
) -> None:
    process = start()
    await router.until(phase(router, EndpointPhase.READY))
    uid = endpoint(router.newest).uid
    await process.leave()
    other = ScriptedEngine()
    await other.start()
    try:
        start(engines=[{"name": "a", "kind": "vllm", "url": other.url}])
        await router.until(lambda: endpoint(router.newest).url == other.url)
        assert endpoint(router.newest).uid == uid
        assert not endpoint(router.newest).gpus_known, "nobody wrote its devices down, and no process list names it"
    finally:
        await other.stop()


async def test_case_g07_links_survive_a_reorder_over_a_restart(
    hardware: Hardware, router: FakeRouter, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    a, b = uuid_of(1), uuid_of(2)
    hardware.gpus = [Gpu(b), Gpu(a)]
    hardware.write()
    process = start(NvmlDevices(interval_seconds=0.05))
    await router.until(lambda: bool(router.newest and router.newest.gpus and endpoint(router.newest).gpu_uuids == (b,)))
    await process.leave()
    hardware.gpus.reverse()
    hardware.write()
    seen = len(router.reports())
    start(NvmlDevices(interval_seconds=0.05))
    await router.until(lambda: len(router.reports()) > seen + 3 and len(router.newest.gpus) == 2)  # type: ignore[union-attr]
    assert router.newest is not None
    assert [(g.uuid, g.index) for g in router.newest.gpus] == [(a, 0), (b, 1)]
    assert endpoint(router.newest).gpu_uuids == (b,)


async def test_rel_r27_a_fatal_error_on_the_driver_is_out_within_a_second(
    hardware: Hardware, router: FakeRouter, start: Start, engine: ScriptedEngine
) -> None:
    a, b = uuid_of(1), uuid_of(2)
    hardware.gpus = [Gpu(a), Gpu(b)]
    hardware.write()
    engines = [{"name": n, "kind": "vllm", "url": engine.url, "gpus": [u]} for n, u in (("a", a), ("b", b))]
    start(NvmlDevices(), interval_seconds=0.4, engines=engines)
    await router.until(phase(router, EndpointPhase.READY))
    await router.until(phase(router, EndpointPhase.READY, "b"))
    await asyncio.sleep(0.5)
    injected = time.monotonic()
    hardware.xid(a, 48)
    await router.until(phase(router, EndpointPhase.STOPPED))
    assert time.monotonic() - injected < 1.0
    assert endpoint(router.newest, "b").phase is EndpointPhase.READY, "exactly the endpoints on that GPU"


async def test_case_g05_engines_serve_on_while_the_driver_refuses(
    hardware: Hardware, router: FakeRouter, start: Start
) -> None:
    hardware.gpus = [Gpu(uuid_of(1))]
    hardware.write()
    start(NvmlDevices(interval_seconds=0.05))
    await router.until(phase(router, EndpointPhase.READY))
    hardware.error = 999
    hardware.write()
    await router.until(lambda: "recreate the container" in router.newest.device_error)  # type: ignore[union-attr]
    assert router.newest is not None
    assert router.newest.gpus[0].health is DeviceHealth.UNKNOWN
    assert endpoint(router.newest).phase is EndpointPhase.READY


async def test_case_g09_without_gpus_the_agent_runs_says_why_and_picks_them_up_later(
    hardware: Hardware, router: FakeRouter, start: Start, engine: ScriptedEngine
) -> None:
    engines = [{"name": "a", "kind": "vllm", "url": engine.url}]
    start(NvmlDevices(interval_seconds=0.05, retry_seconds=0.2), engines=engines)
    await router.until(phase(router, EndpointPhase.READY))
    await router.until(lambda: "reports 0 GPUs" in router.newest.device_error)  # type: ignore[union-attr]
    assert router.newest is not None
    assert router.newest.gpus == ()
    hardware.gpus = [Gpu(uuid_of(1))]
    hardware.write()
    await router.until(lambda: len(router.newest.gpus) == 1)  # type: ignore[union-attr]
    assert router.newest.device_error == ""


async def test_devices_of_an_engine_by_the_drivers_process_list(
    hardware: Hardware, router: FakeRouter, start: Start, engine: ScriptedEngine
) -> None:
    """The engine listens in this very process, which the driver lists on the second GPU."""
    hardware.gpus = [Gpu(uuid_of(1), pids=(1,)), Gpu(uuid_of(2), pids=(os.getpid(),))]
    hardware.write()
    start(NvmlDevices(interval_seconds=0.05), engines=[{"name": "a", "kind": "vllm", "url": engine.url}])
    await router.until(lambda: bool(router.newest and endpoint(router.newest).gpus_known), 15.0)
    assert endpoint(router.newest).gpu_uuids == (uuid_of(2),)


async def test_case_g13_reports_carry_ages_not_times(
    router: FakeRouter, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock jumps an hour back and forth; liveness, order and ages do not notice."""
    devices = SimulatedDevices("2xh100-sxm-80")
    process = start(devices)
    await router.until(phase(router, EndpointPhase.READY))
    devices.inject_xid(devices.uuids[1], 94)
    await router.until(lambda: bool(router.newest.gpus[1].xids))  # type: ignore[union-attr]
    real = time.time
    for skew in (27.0, -300.0, -3600.0, 120.0):
        monkeypatch.setattr(time, "time", lambda s=skew: real() + s)  # type: ignore[misc]
        seen = len(router.reports())
        await router.until(lambda n=seen: len(router.reports()) > n + 2)  # type: ignore[misc]
    for report in router.reports():
        for gpu in report.gpus:
            assert all(0 <= x.age_seconds < 60 for x in gpu.xids)
            assert 0 <= (gpu.sample_age_seconds or 0) < 60
    assert len(router.joins) == 1, "no clock makes it join again"
    assert not process.task.done()


async def test_wrong_settings_are_errors_that_name_them(tmp_path: Path, router: FakeRouter) -> None:
    stop = asyncio.Event()
    with pytest.raises(InvalidInput, match="HEADRACE_ROUTERS"):
        await run(AgentSettings.embedded(zone="z"), stop=stop)
    with pytest.raises(InvalidInput, match="HEADRACE_ZONE"):
        await run(AgentSettings.embedded(routers=["r:1"]), stop=stop)
    whole = {"zone": "z", "routers": [router.address], "devices": "none"}
    with pytest.raises(InvalidInput, match="TLS"):
        await run(AgentSettings.embedded(host="0.0.0.0", **whole), stop=stop)
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(InvalidInput, match="state_dir"):
        await run(AgentSettings.embedded(state_dir=str(blocker), **whole), stop=stop)
    with pytest.raises(InvalidInput, match="h9000"):
        await run(AgentSettings.embedded(**(whole | {"devices": "simulated:1xh9000"})), stop=stop)


async def test_two_agents_do_not_share_a_state_directory(start: Start, router: FakeRouter) -> None:
    start()
    await router.until(phase(router, EndpointPhase.READY))
    second = start()
    with pytest.raises(InvalidInput, match="in use by another process"):
        await second.task


async def test_a_taken_port_is_one_clear_line(start: Start, engine: ScriptedEngine) -> None:
    process = start(port=engine.port)
    with pytest.raises(BindError, match="taken by another process"):
        await process.task
