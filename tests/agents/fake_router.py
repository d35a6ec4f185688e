"""A router's side of AgentService on a real gRPC server, doing what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from fleet.report import NodeDirective, NodeReport
from fleet.wire.headrace.v1 import agent_pb2, agent_pb2_grpc, region_pb2
from fleet.wire.reports import directive_to_wire, node_report_from_wire

NODE_UID = "0b5c1f7e-4a77-4b6e-9a0e-5a1f3c1f0001"


@dataclass
class Stream:
    """One Report stream as the router has it."""

    authorization: str
    reports: list[NodeReport] = field(default_factory=list)
    directives: asyncio.Queue[NodeDirective | None] = field(default_factory=asyncio.Queue)
    half_closed: bool = False


class FakeRouter(agent_pb2_grpc.AgentServiceServicer):
    """Accepts everything unless told otherwise."""

    def __init__(self) -> None:
        self.joins: list[region_pb2.NodeJoinRequest] = []
        self.join_times: list[float] = []
        self.streams: list[Stream] = []
        self.opened: list[float] = []
        self.node_uid = NODE_UID
        self.expires_in_seconds = 86_400
        self.refuse_join: tuple[grpc.StatusCode, str] | None = None
        self.refuse_stream: tuple[grpc.StatusCode, str, int | None] | None = None
        self.first_directive = NodeDirective(1, 1)
        self.port = 0
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def until(self, condition: Any, timeout_seconds: float = 10.0) -> None:
        """Wait until ``condition()`` is true; it is looked at whenever something came in."""

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(condition)

        await asyncio.wait_for(wait(), timeout_seconds)

    def reports(self) -> list[NodeReport]:
        """All reports of all streams, in the order of their sequence."""
        return sorted((r for s in self.streams for r in s.reports), key=lambda r: r.order)

    @property
    def newest(self) -> NodeReport | None:
        reports = self.reports()
        return reports[-1] if reports else None

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def Join(self, request: region_pb2.NodeJoinRequest, context: Any) -> region_pb2.NodeJoinResponse:
        self.joins.append(request)
        self.join_times.append(asyncio.get_running_loop().time())
        await self._notify()
        if self.refuse_join is not None:
            await context.abort(*self.refuse_join)
        return region_pb2.NodeJoinResponse(
            node_uid=self.node_uid, identity=f"identity-{len(self.joins)}", expires_in_seconds=self.expires_in_seconds
        )

    async def Report(
        self, requests: AsyncIterator[agent_pb2.NodeReport], context: Any
    ) -> AsyncIterator[agent_pb2.NodeDirective]:
        self.opened.append(asyncio.get_running_loop().time())
        metadata = dict(context.invocation_metadata())
        if self.refuse_stream is not None:
            code, details, retry_after_ms = self.refuse_stream
            await self._notify()
            trailing = (("retry-after-ms", str(retry_after_ms)),) if retry_after_ms is not None else ()
            await context.abort(code, details, trailing)
        stream = Stream(str(metadata.get("authorization", "")))
        self.streams.append(stream)

        async def read() -> None:
            async for message in requests:
                stream.reports.append(node_report_from_wire(message))
                await self._notify()
            stream.half_closed = True
            await self._notify()
            stream.directives.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            yield directive_to_wire(self.first_directive)
            while (directive := await stream.directives.get()) is not None:
                yield directive_to_wire(directive)
        finally:
            reader.cancel()
