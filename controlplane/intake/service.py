"""``RegionService``: routers' report streams, and the joins they forward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import grpc

from controlplane.identity import Joined, JoinRefused, JoinRequest, Joins, Refusal
from controlplane.intake.intake import Intake
from controlplane.intake.router_tokens import Ended, Grant, RouterRefused, RouterTokens
from controlplane.intake.told import MAX_NAME, valid_order, valid_uid
from fleet.capacity import FleetEvent
from fleet.clock import Clock
from fleet.errors import Unavailable
from fleet.process.logs import get_logger
from fleet.wire.headrace.v1 import region_pb2, region_pb2_grpc
from fleet.wire.identity import LIFETIME_SECONDS
from fleet.wire.regions import region_directive_to_wire, region_report_from_wire

SERVICE = "headrace.v1.RegionService"
REFUSAL_TOLD_SECONDS = 60.0
REFUSALS_KEPT = 4096

_STATUS = {
    Refusal.TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.IDENTITY: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
}
_ENDED = {
    Ended.REVOKED: (grpc.StatusCode.UNAUTHENTICATED, "the router token is no longer valid"),
    Ended.STOPPING: (grpc.StatusCode.UNAVAILABLE, "this control plane is stopping"),
}
_Context = grpc.aio.ServicerContext[Any, Any]
_log = get_logger("intake")


class RegionService(region_pb2_grpc.RegionServiceServicer):
    """Every call is by a router whose token is bound to the region it speaks for."""

    def __init__(self, intake: Intake, joins: Joins, tokens: RouterTokens, clock: Clock) -> None:
        self._intake = intake
        self._joins = joins
        self._tokens = tokens
        self._clock = clock
        self._refused: dict[tuple[str, str], float] = {}
        """When a refused join, by reason and node, was last told: an agent tries again and again, by every router."""

    def register(self, server: grpc.aio.Server) -> None:
        region_pb2_grpc.add_RegionServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Report(  # the name is the wire's
        self, request_iterator: AsyncIterator[region_pb2.RegionReport], context: _Context
    ) -> None:
        grant = await self._admit("", context)
        router_uid = ""
        try:
            while (message := await self._next(context, grant.ended)) is not None:
                if message.region != grant.region:
                    await context.abort(
                        grpc.StatusCode.PERMISSION_DENIED,
                        f"the router token is bound to region {grant.region}, not {message.region[:64]}",
                    )
                if not valid_uid(message.router_uid) or len(message.region) > MAX_NAME:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "router_uid is missing or too long")
                if router_uid not in ("", message.router_uid):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a stream speaks for one router")
                if not valid_order(message.incarnation, message.sequence):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "incarnation or sequence is out of range")
                router_uid = message.router_uid
                directive = self._intake.take(region_report_from_wire(message))
                await context.write(region_directive_to_wire(directive))
            if grant.ended.done():
                await context.abort(*_ENDED[grant.ended.result()])
        finally:
            self._intake.forget(grant.region, router_uid)
            self._tokens.release(grant)

    async def _next(self, context: _Context, ended: asyncio.Future[Ended]) -> region_pb2.RegionReport | None:
        """The next report; None when the router has closed its side or its stream has to end."""
        read = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait((read, ended), return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                return None
            message = read.result()
            return None if message is grpc.aio.EOF else message  # type: ignore[attr-defined]
        finally:
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)  # the call may end in the moment in which it fails

    async def Join(  # the name is the wire's
        self, request: region_pb2.NodeJoinRequest, context: _Context
    ) -> region_pb2.NodeJoinResponse:
        grant = await self._admit(request.region, context)
        try:
            joined = await self._joins.join(
                JoinRequest(
                    grant.region,
                    request.zone,
                    request.node_name,
                    request.join_token,
                    request.identity,
                    tuple(dict.fromkeys(request.gpu_uuids)),
                    request.attempt,
                    request.node_uid,
                )
            )
        except JoinRefused as error:
            reason = "NodeConflict" if error.why is Refusal.CONFLICT else "JoinRefused"
            if self._worth_telling(reason, request.node_name):
                self._note(reason, str(error), request.node_name, grant.region, "warning")
            await context.abort(_STATUS[error.why], str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            self._tokens.release(grant)
        self._tell(joined, grant.region)
        return region_pb2.NodeJoinResponse(
            node_uid=joined.identity.node_uid,
            identity=joined.token,
            expires_in_seconds=round(LIFETIME_SECONDS),
        )

    def _worth_telling(self, reason: str, node: str) -> bool:
        """Once in a while for each node; what is remembered for it is bounded, whatever names are tried."""
        key, now = (reason, node[:MAX_NAME]), self._clock.monotonic()
        if now - self._refused.get(key, -REFUSAL_TOLD_SECONDS) < REFUSAL_TOLD_SECONDS:
            return False
        if len(self._refused) >= REFUSALS_KEPT:
            self._refused.clear()
        self._refused[key] = now
        return True

    def _tell(self, joined: Joined, region: str) -> None:
        if joined.renewed:
            return
        who = joined.identity
        self._note("NodeJoined", f"node {who.node_name} joined zone {who.zone}", who.node_name, region)
        for name in joined.retired:
            self._note("NodeRetired", f"node {name} was replaced by {who.node_name}, which has its GPUs", name, region)

    def _note(self, reason: str, message: str, name: str, region: str, severity: str = "info") -> None:
        _log.info("node_join", reason=reason, node=name[:MAX_NAME], region=region)
        self._intake.record(
            FleetEvent(str(uuid4()), reason, message, "node", name[:MAX_NAME], region, severity, self._clock.wall())
        )

    async def _admit(self, region: str, context: _Context) -> Grant:
        try:
            return await self._tokens.admit(context.invocation_metadata(), region)
        except RouterRefused as error:
            await context.abort(error.status, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
