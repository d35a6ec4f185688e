"""An agent that says exactly what a test wants it to say, over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, ServedModel
from fleet.process.grpc_server import make_channel
from fleet.process.tls import TlsFiles
from fleet.report import AgentPhase, NodeDirective, NodeReport
from fleet.wire.headrace.v1 import agent_pb2, agent_pb2_grpc, region_pb2
from fleet.wire.reports import directive_from_wire, node_report_to_wire
from tests.router.engines import BareEngine
from tests.router.routers import MODEL


class ScriptedAgent:
    """One node with one engine and one GPU."""

    def __init__(
        self, router: str, name: str, engine: BareEngine, zone: str = "eu-a", tls: TlsFiles | None = None
    ) -> None:
        self.name = name
        self.zone = zone
        self.engine = engine
        self.uid = ""
        self.identity = ""
        self.incarnation = 1
        self.sequence = 0
        self.phase = AgentPhase.RUNNING
        self.gpu = AcceleratorState(f"GPU-{name}", index=0, product="h100-sxm-80", health=DeviceHealth.OK)
        self.directives: list[NodeDirective] = []
        self._channel = make_channel(router, tls=tls)
        self._stub = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._call: Any = None
        self._beating: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def join(self, token: str = "") -> None:
        request = region_pb2.NodeJoinRequest(node_name=self.name, zone=self.zone, join_token=token)
        answer = await self._stub.Join(request, timeout=10)
        self.uid, self.identity = answer.node_uid, answer.identity

    def report(self, **changes: Any) -> NodeReport:
        self.sequence += 1
        endpoint = EndpointReport(
            uid=f"{self.uid}-engine",
            name=self.engine.name,
            kind=EngineKind.OPENAI,
            url=self.engine.url,
            models=(ServedModel(MODEL, MODEL),),
            phase=EndpointPhase.DRAINING if self.phase is AgentPhase.DRAINING else EndpointPhase.READY,
            gpu_uuids=(self.gpu.uuid,),
            gpus_known=True,
        )
        fields: dict[str, Any] = {
            "node_uid": self.uid,
            "node_name": self.name,
            "zone": self.zone,
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "phase": self.phase,
            "interval_seconds": 0.2,
            "gpus": (self.gpu,),
            "endpoints": (endpoint,),
            "addresses": ("127.0.0.1",),
        }
        return NodeReport(**(fields | changes))

    def open(self, identity: str | None = None) -> Any:
        """A bare report stream, for tests that misbehave on it."""
        shown = self.identity if identity is None else identity
        return self._stub.Report(metadata=(("authorization", f"Bearer {shown}"),))

    async def connect(self) -> None:
        """Report five times a second until :meth:`vanish`."""
        self._call = self.open()
        await self.say()
        self._beating = asyncio.create_task(self._beat())
        self._listening = asyncio.create_task(self._listen(self._call))

    async def say(self, **changes: Any) -> None:
        await self._call.write(node_report_to_wire(self.report(**changes)))

    async def fall_silent(self) -> None:
        """The stream stays open and nothing comes, as when a network swallows packets."""
        await _end(self._beating)

    async def vanish(self) -> None:
        """The process is gone: no more reports, the stream is cut."""
        await _end(self._beating)
        if self._call is not None:
            self._call.cancel()
        await _end(self._listening)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedAgent]:
        try:
            await self.join()
            await self.connect()
            yield self
        finally:
            await self.vanish()
            await self._channel.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            await self.say()

    async def _listen(self, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(message := await call.read(), agent_pb2.NodeDirective):
                self.directives.append(directive_from_wire(message))


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
