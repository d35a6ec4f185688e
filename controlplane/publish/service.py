"""``SnapshotService``: one task per watch, which sends what its outbox holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import grpc

from controlplane.intake.router_tokens import Ended, Grant, RouterRefused, RouterTokens
from controlplane.publish.publisher import Publisher
from controlplane.publish.subscription import Closed, Subscription
from controlplane.registry.history import Start
from fleet.capacity import FleetEvent
from fleet.clock import Clock
from fleet.errors import Unavailable
from fleet.process.logs import get_logger
from fleet.snapshot import IntentVersion
from fleet.wire.headrace.v1 import snapshot_pb2
from fleet.wire.snapshots import version_from_wire

SERVICE = "headrace.v1.SnapshotService"
WRITE_SECONDS = 10.0
"""A message that a router has not taken after this long is not waited for any more."""

_STATUS = {
    Closed.SLOW: (grpc.StatusCode.RESOURCE_EXHAUSTED, "the router reads too slowly; it has to resync"),
    Closed.RESYNC: (grpc.StatusCode.ABORTED, "what comes next cannot be told as a delta; call again"),
    Closed.REVOKED: (grpc.StatusCode.UNAUTHENTICATED, "the router token is no longer valid"),
    Closed.STOPPING: (grpc.StatusCode.UNAVAILABLE, "this control plane is stopping"),
}
_EVENTS = {
    Start.AHEAD: (
        "SnapshotClaimAhead",
        "claims version {have}, which was never published here; it gets a full snapshot",
    ),
    Start.FOREIGN: ("SnapshotHistoryUnknown", "holds version {have} of another history; it gets a full snapshot"),
}

_Context = grpc.aio.ServicerContext[Any, Any]
_log = get_logger("publish")


class SnapshotService:
    """Serves watches from one :class:`Publisher`. ``record`` keeps an event for operators."""

    def __init__(
        self,
        publisher: Publisher,
        tokens: RouterTokens,
        record: Callable[[FleetEvent], None],
        clock: Clock,
        *,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._publisher = publisher
        self._tokens = tokens
        self._record = record
        self._clock = clock
        self._write_seconds = write_seconds

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service. Responses are bytes already: a snapshot is encoded once for all routers of a region."""
        handler = grpc.unary_stream_rpc_method_handler(
            self.watch,
            request_deserializer=snapshot_pb2.WatchRequest.FromString,
            response_serializer=_as_it_is,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Watch": handler}),))

    async def watch(self, request: snapshot_pb2.WatchRequest, context: _Context) -> None:
        try:
            grant = await self._tokens.admit(context.invocation_metadata(), request.region)
        except RouterRefused as error:
            await context.abort(error.status, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        try:
            await self._serve(request, grant, context)
        finally:
            self._tokens.release(grant)

    async def _serve(self, request: snapshot_pb2.WatchRequest, grant: Grant, context: _Context) -> None:
        have = version_from_wire(request.have)
        try:
            await self._publisher.catch_up(have)
            subscription, start, first = self._publisher.open(grant.region, have)
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

        def end(ended: asyncio.Future[Ended]) -> None:
            subscription.close(Closed.REVOKED if ended.result() is Ended.REVOKED else Closed.STOPPING)

        grant.ended.add_done_callback(end)
        try:
            _log.info("watch_opened", router=request.router_uid, region=grant.region, start=start.value)
            if start in _EVENTS:
                self._note(start, request.router_uid[:64], grant.region, have)
            for frame in await first:
                await self._send(frame, subscription, context)
                if subscription.closed.done():
                    break
            while (next_frame := await subscription.next()) is not None:
                await self._send(next_frame, subscription, context)
            why = subscription.closed.result()
            _log.info("watch_closed", router=request.router_uid, region=grant.region, why=why.value)
            await context.abort(*_STATUS[why])
        finally:
            grant.ended.remove_done_callback(end)
            self._publisher.release(subscription)

    def _note(self, start: Start, router: str, region: str, have: IntentVersion) -> None:
        reason, text = _EVENTS[start]
        message = f"router {router} " + text.format(have=have.order)
        event = FleetEvent(str(uuid4()), reason, message, "region", region, region, "warning", self._clock.wall())
        self._record(event)

    async def _send(self, frame: bytes, subscription: Subscription, context: _Context) -> None:
        """Send one message. A router that does not take it in time gets nothing more, and nothing more is kept for it.

        gRPC cannot send a status past a message that waits, so the call itself ends when the router reads on (and learns why)
        or its connection goes.
        """
        write = asyncio.ensure_future(context.write(frame))
        try:
            await asyncio.wait(
                (write, subscription.closed), timeout=self._write_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not write.done():
                subscription.close(Closed.SLOW)
                self._publisher.release(subscription)
            await write
        finally:
            write.cancel()
            await asyncio.gather(write, return_exceptions=True)  # the call may end in the moment in which it fails


def _as_it_is(message: bytes) -> bytes:
    return message
