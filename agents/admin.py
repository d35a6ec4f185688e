"""What the agent's admin port shows besides health: the node's state, metrics, and faults for simulated devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Request
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field

from agents.accelerators.simulated import SimulatedDevices
from agents.agent import Agent
from fleet.process.insecure import is_loopback


def state_router(agent: Agent) -> APIRouter:
    """``GET /state``: the newest report, without secrets, and where it goes."""
    router = APIRouter()

    def loopback_only(request: Request) -> None:
        if request.client is None or not is_loopback(request.client.host):
            raise HTTPException(403, "only from this machine")

    @router.get("/state")
    async def state(request: Request) -> dict[str, Any]:
        loopback_only(request)
        newest = agent.uplink.newest
        report = asdict(newest) if newest is not None else None
        for endpoint in report["endpoints"] if report else ():
            del endpoint["api_key"]
        directive = agent.uplink.directive
        return {
            "report": report,
            "devices": [asdict(g) for g in agent.gpus()],
            "directive": asdict(directive) if directive is not None else None,
            "routers": agent.uplink.connected,
            "joining": agent.membership.problem,
        }

    @router.post("/devices/{uuid}/clear", status_code=204)
    async def clear(uuid: str, request: Request) -> None:
        """The operator has reset this GPU: earlier errors no longer count against it."""
        loopback_only(request)
        if uuid not in {g.uuid for g in agent.gpus()}:
            raise HTTPException(404, f"no device {uuid}")
        agent.clear_device(uuid)

    if isinstance(agent.devices, SimulatedDevices):
        _add_faults(router, agent.devices, loopback_only)
    return router


class Fault(BaseModel):
    """One thing that happens to a simulated device."""

    model_config = ConfigDict(extra="forbid")

    device: str = ""
    """UUID, or index as digits; not wanted for ``driver``."""
    fault: Literal["xid", "lost", "ecc", "throttle", "stuck", "driver", "recover"]
    code: Annotated[int, Field(ge=1, le=999)] = 79
    """Of ``xid``."""
    message: str = Field("", max_length=256)
    """Of ``driver``: why it refuses every call; empty ends it."""


def _add_faults(router: APIRouter, devices: SimulatedDevices, loopback_only: Any) -> None:
    @router.post("/simulated/faults", status_code=204)
    async def inject(fault: Fault, request: Request) -> None:
        loopback_only(request)
        if fault.fault == "driver":
            devices.fail_driver(fault.message)
            return
        uuids = devices.uuids
        uuid = uuids[int(fault.device)] if fault.device.isdigit() and int(fault.device) < len(uuids) else fault.device
        if uuid not in uuids:
            raise HTTPException(404, f"no device {fault.device!r}")
        match fault.fault:
            case "xid":
                devices.inject_xid(uuid, fault.code)
            case "lost":
                devices.lose(uuid)
            case "ecc":
                devices.add_ecc_errors(uuid)
            case "throttle":
                devices.throttle(uuid, "hw_thermal_slowdown")
            case "stuck":
                devices.stick(uuid)
            case "recover":
                devices.recover(uuid)


class AgentMetrics(Collector):
    """Numbers read off the newest report, in a thread of its own. Labels are names from its own settings: bounded."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        agent = self._agent
        yield GaugeMetricFamily(
            "headrace_agent_routers_connected", "Routers that take this node's reports", len(agent.uplink.connected)
        )
        yield CounterMetricFamily("headrace_agent_reports", "Reports sent, over all routers", agent.uplink.reports_sent)
        yield CounterMetricFamily(
            "headrace_agent_reconnects", "Streams that had to be opened again", agent.uplink.reconnects
        )
        gpus = GaugeMetricFamily("headrace_gpus", "Devices by verdict", labels=["state"])
        newest = agent.uplink.newest
        states = [g.health.value for g in newest.gpus] if newest is not None else []
        for state in sorted(set(states)):
            gpus.add_metric([state], states.count(state))
        yield gpus
        endpoints = GaugeMetricFamily("headrace_endpoints", "Engines by phase", labels=["state"])
        phases = [e.phase.value for e in newest.endpoints] if newest is not None else []
        for phase in sorted(set(phases)):
            endpoints.add_metric([phase], phases.count(phase))
        yield endpoints
        skipped = CounterMetricFamily(
            "headrace_agent_engine_samples_skipped",
            "Samples of an engine that were no finite number",
            labels=["engine"],
        )
        failed = CounterMetricFamily(
            "headrace_agent_engine_scrapes_failed", "Scrapes of an engine answered with an error", labels=["engine"]
        )
        rate = GaugeMetricFamily(
            "headrace_agent_engine_generated_tokens_per_second", "Absent when unknown", labels=["engine"]
        )
        for watch in agent.watcher.watches():
            name = watch.target.name
            skipped.add_metric([name], watch.skipped_samples)
            failed.add_metric([name], watch.failed_scrapes)
            if watch.generated_per_second is not None:
                rate.add_metric([name], watch.generated_per_second)
        yield from (skipped, failed, rate)


def registry_of(agent: Agent) -> CollectorRegistry:
    """A registry of this agent alone."""
    registry = CollectorRegistry()
    registry.register(AgentMetrics(agent))
    return registry
