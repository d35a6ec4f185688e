"""A control plane that says exactly what a test wants it to say, over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import grpc

from fleet.delta import IntentDelta
from fleet.process.grpc_server import Server, make_server
from fleet.snapshot import IntentSnapshot, IntentVersion
from fleet.wire.headrace.v1 import region_pb2, region_pb2_grpc, snapshot_pb2, snapshot_pb2_grpc
from fleet.wire.snapshots import delta_to_wire, snapshot_to_chunks, version_from_wire, version_to_wire

Update = snapshot_pb2.SnapshotUpdate


def full(snapshot: IntentSnapshot) -> list[Update]:
    return [Update(full=chunk) for chunk in snapshot_to_chunks(snapshot)]


def delta(change: IntentDelta, *, confirmed: bool = False) -> Update:
    wire = delta_to_wire(change)
    wire.confirmed = confirmed
    return Update(delta=wire)


def heartbeat(at: IntentVersion) -> Update:
    return Update(heartbeat=snapshot_pb2.Heartbeat(head=version_to_wire(at)))


class ScriptedControlPlane(snapshot_pb2_grpc.SnapshotServiceServicer, region_pb2_grpc.RegionServiceServicer):
    """Each watch first gets what ``opening`` holds, then whatever is put with :meth:`say`."""

    def __init__(self) -> None:
        self.opening: list[Update] = []
        self.haves: list[IntentVersion] = []
        self.tokens: list[str] = []
        self.reports: list[region_pb2.RegionReport] = []
        self.directive = region_pb2.RegionDirective(report_interval_ms=100)
        self.refuse_with: grpc.StatusCode | None = None
        self.joins: list[region_pb2.NodeJoinRequest] = []
        self.lose_answers = 0
        """So many joins are taken in, and their answers do not arrive."""
        self.join_answer = region_pb2.NodeJoinResponse(node_uid="n", identity="i", expires_in_seconds=60)
        self.port = 0
        self._watches: set[asyncio.Queue[Update]] = set()
        self._server: Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def watching(self) -> int:
        return len(self._watches)

    def say(self, updates: Iterable[Update]) -> None:
        for update in updates:
            for watch in self._watches:
                watch.put_nowait(update)

    async def start(self) -> None:
        def register(server: grpc.aio.Server) -> None:
            snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(self, server)
            region_pb2_grpc.add_RegionServiceServicer_to_server(self, server)

        self._server = make_server(register, host="127.0.0.1", port=self.port)
        self.port = self._server.port
        await self._server.raw.start()

    async def stop(self) -> None:
        """Cut everybody off; the port stays known for the next start."""
        if self._server is not None:
            await self._server.raw.stop(None)
            self._server = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedControlPlane]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def Watch(self, request, context):
        self.haves.append(version_from_wire(request.have))
        self.tokens.append(dict(context.invocation_metadata()).get("authorization", ""))
        if self.refuse_with is not None:
            await context.abort(self.refuse_with, "not now")
        queue: asyncio.Queue[Update] = asyncio.Queue()
        for update in self.opening:
            queue.put_nowait(update)
        self._watches.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watches.discard(queue)

    async def Report(self, request_iterator, context):
        async for report in request_iterator:
            self.reports.append(report)
            answer = region_pb2.RegionDirective()
            answer.CopyFrom(self.directive)
            answer.acknowledged_incarnation = report.incarnation
            answer.acknowledged_sequence = report.sequence
            yield answer

    async def Join(self, request, context):
        self.joins.append(request)
        if self.lose_answers:
            self.lose_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was cut after the request")
        if self.refuse_with is not None:
            await context.abort(self.refuse_with, "that token is spent")
        return self.join_answer
