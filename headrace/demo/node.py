"""One machine of the demo: ``python -m headrace.demo.node FILE`` hosts its agent, its simulated GPUs and its engines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from agents.accelerators.simulated import SimulatedDevices
from agents.main import run as run_agent
from agents.settings import AgentSettings
from fleet.errors import HeadraceError
from fleet.process import logs
from headrace.demo.engines import LlamaCppEngine, NodeEngine, SimulatedNodeEngine
from headrace.demo.layout import HOST, MODEL, SERVED_AS, EngineLayout, NodeLayout

_LOAD_INTERVAL_SECONDS = 1.0
_MAX_INFLIGHT = {"simulated": 64, "llamacpp": 4}
_GPU_FATAL = frozenset({46, 48, 54, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143})
"""Errors after which the process that used the GPU does not go on."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What the demo tells a node process. The join token comes by the environment."""

    node: str
    zone: str
    region: str
    admin_port: int
    state_dir: str
    devices: str
    engines: tuple[EngineLayout, ...]
    engine_kind: str
    model_file: str
    """Of llama.cpp; empty otherwise."""
    routers: tuple[str, ...]
    dial: Mapping[str, str]
    """Address a router is known by to the one it is reached at from here: the zone's way into the network."""

    @classmethod
    def of(cls, node: NodeLayout, **more: Any) -> NodeConfig:
        return cls(
            node=node.name,
            zone=node.zone,
            region=node.region,
            admin_port=node.admin_port,
            devices=node.devices,
            engines=node.engines,
            **more,
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> NodeConfig:
        data = json.loads(path.read_text(encoding="utf-8"))
        engines = tuple(EngineLayout(**engine) for engine in data.pop("engines"))
        return cls(engines=engines, routers=tuple(data.pop("routers")), **data)


class MachineDevices(SimulatedDevices):
    """Simulated GPUs whose faults strike the engines that run on them, as those of hardware do."""

    def __init__(self, description: str, node: str) -> None:
        super().__init__(description, node=node)
        self.engines: dict[str, NodeEngine] = {}
        """By GPU uuid."""
        self._restoring: set[asyncio.Task[None]] = set()

    def inject_xid(self, uuid: str, code: int) -> None:
        super().inject_xid(uuid, code)
        if code in _GPU_FATAL and uuid in self.engines:
            self.engines[uuid].lose_gpu()

    def lose(self, uuid: str) -> None:
        super().lose(uuid)
        if uuid in self.engines:
            self.engines[uuid].lose_gpu()

    def recover(self, uuid: str) -> None:
        super().recover(uuid)
        if uuid in self.engines:
            task = asyncio.get_running_loop().create_task(self.engines[uuid].restore())
            self._restoring.add(task)
            task.add_done_callback(self._restoring.discard)


def _agent_settings(config: NodeConfig, environ: Mapping[str, str]) -> AgentSettings:
    engines = [
        {
            "name": engine.name,
            "kind": config.engine_kind,
            "url": f"http://{HOST}:{engine.port}",
            "advertise": f"http://{HOST}:{engine.advertised_port}",
            "gpus": [str(engine.gpu)],
            "models": {SERVED_AS: MODEL},
            "max_inflight": _MAX_INFLIGHT[config.engine_kind],
        }
        for engine in config.engines
    ]
    return AgentSettings.embedded(
        host=HOST,
        port=config.admin_port,
        node=config.node,
        zone=config.zone,
        region=config.region,
        state_dir=config.state_dir,
        devices=config.devices,
        engines=engines,
        routers=list(config.routers),
        join_token=environ.get("HEADRACE_JOIN_TOKEN", ""),
    )


async def _follow_load(devices: MachineDevices) -> None:
    """GPUs are as busy as their engines were in the last second."""
    before = {uuid: engine.busy_seconds() for uuid, engine in devices.engines.items()}
    while True:
        await asyncio.sleep(_LOAD_INTERVAL_SECONDS)
        for uuid, engine in devices.engines.items():
            now = engine.busy_seconds()
            devices.set_load(uuid, utilisation=max(0.0, now - before[uuid]) / _LOAD_INTERVAL_SECONDS)
            before[uuid] = now


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run everything of this machine until ``stop`` is set."""
    devices = MachineDevices(config.devices.removeprefix("simulated:"), config.node)
    try:
        for engine, uuid in zip(config.engines, devices.uuids, strict=True):
            devices.engines[uuid] = (
                LlamaCppEngine(engine, Path(config.model_file))
                if config.engine_kind == "llamacpp"
                else SimulatedNodeEngine(engine)
            )
            await devices.engines[uuid].start()
        load = asyncio.get_running_loop().create_task(_follow_load(devices))
        try:
            settings = _agent_settings(config, os.environ)
            await run_agent(
                settings, stop=stop, devices=devices, dial=lambda address: config.dial.get(address, address)
            )
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
    finally:
        await asyncio.gather(*(engine.close() for engine in devices.engines.values()))


async def _until_told(config: NodeConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(config, stop)


def main(arguments: Sequence[str]) -> int:
    config = NodeConfig.read(Path(arguments[0]))
    logs.setup(f"node {config.node}", level=os.environ.get("HEADRACE_LOG_LEVEL", "info"), json=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_told(config))
    except (HeadraceError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
