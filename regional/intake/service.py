"""``AgentService``: agents join and report here. Checks who speaks, keeps the newest stream of each node, sends directives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import unquote

import grpc

from fleet.clock import Clock
from fleet.process.insecure import is_loopback
from fleet.report import NodeDirective, NodeReport
from fleet.wire.headrace.v1 import agent_pb2, agent_pb2_grpc, region_pb2
from fleet.wire.identity import InvalidIdentity, NodeIdentity, verify_identity
from fleet.wire.reports import directive_to_wire, node_report_from_wire
from regional.fleetview.node import Node, NodeState
from regional.fleetview.view import ReportAnswer
from regional.intake.admission import StreamAdmission
from regional.intake.directives import Directives
from regional.intake.joins import JoinRefused, Joins
from regional.intake.merge import ReportMerge
from regional.intake.pulse import Pulse
from regional.request.core import Core

MIN_REPORT_SECONDS = 0.02
"""A node that reports faster than this is made to wait; its stream's window then fills and slows it down."""
FIRST_REPORT_SECONDS = 30.0
"""A stream must say something within this time, and never be silent for longer than ``SILENCE_SECONDS``."""
SILENCE_SECONDS = 90.0
AGENT_GONE_SECONDS = 60.0
"""After this long without its agent the endpoints written down for a node are watched from here again."""
LAST_WRITE_SECONDS = 1.0
"""A directive on its way gets this long before a stream is ended without a word."""

_Context: TypeAlias = "grpc.aio.ServicerContext[agent_pb2.NodeReport, agent_pb2.NodeDirective]"
_JoinContext: TypeAlias = "grpc.aio.ServicerContext[region_pb2.NodeJoinRequest, region_pb2.NodeJoinResponse]"


@dataclass(frozen=True, slots=True)
class IdentityKeys:
    """What identities are verified with now."""

    public_keys: Sequence[bytes]
    snapshot_wall: float | None
    """When this router last heard from the control plane; None while it is in touch, or has none."""


@dataclass(frozen=True, slots=True)
class IntakeEvents:
    """What the intake tells: counters and logs. No secret ever passes here."""

    on_report: Callable[[NodeReport, ReportAnswer], None]
    on_refused: Callable[[str, str], None]
    """(reason, detail): ``rate``, ``identity``, ``foreign``, ``malformed``."""


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """One per router."""

    def __init__(
        self,
        region: str,
        core: Core,
        pulse: Pulse,
        joins: Joins,
        directives: Directives,
        keys: Callable[[], IdentityKeys],
        admission: StreamAdmission,
        clock: Clock,
        tell: IntakeEvents,
    ) -> None:
        self._region = region
        self._core = core
        self._pulse = pulse
        self._joins = joins
        self._directives = directives
        self._keys = keys
        self._admission = admission
        self._clock = clock
        self._tell = tell
        self._newest: dict[str, object] = {}
        """Node uid to the stream that speaks for it; only the end of that one means anything."""
        self._merge = ReportMerge()
        self._stopping = False

    @property
    def streams(self) -> int:
        """Nodes with a live stream."""
        return len(self._newest)

    def stop(self) -> None:
        """From now on the end of a stream says nothing about its node: it is this router that goes away."""
        self._stopping = True

    async def Join(self, request: region_pb2.NodeJoinRequest, context: _JoinContext) -> region_pb2.NodeJoinResponse:
        refused = self._admission.admit(self._clock.monotonic())
        if refused is not None:
            await _refuse(context, refused.retry_after_seconds)
        try:
            return await self._joins.join(request, from_loopback=_from_loopback(context.peer()))
        except JoinRefused as error:
            await context.abort(error.code, str(error))
            raise  # not reached: abort raises

    async def Report(self, _requests: object, context: _Context) -> None:
        refused = self._admission.admit(self._clock.monotonic())
        if refused is not None:
            self._tell.on_refused("rate", "too many new streams")
            await _refuse(context, refused.retry_after_seconds)
        identity = await self._identify(context)
        stream = object()
        self._newest[identity.node_uid] = stream
        ending = asyncio.Event()
        writer = asyncio.ensure_future(self._send_directives(context, identity.node_uid, ending))
        verdict: _Ended | None = None
        try:
            await self._take_reports(context, identity)
        except _Ended as ended:
            verdict = ended
        finally:
            # A call can be ended only when nothing is being written to it.
            ending.set()
            _, unsent = await asyncio.wait((writer,), timeout=LAST_WRITE_SECONDS)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._stream_over(identity.node_uid, stream)
        if verdict is not None and not unsent:
            await context.abort(verdict.code, str(verdict))

    def _stream_over(self, node_uid: str, stream: object) -> None:
        if self._newest.get(node_uid) is not stream:
            return  # the node has a newer one: that one speaks for it
        del self._newest[node_uid]
        known = self._core.view.nodes
        self._merge.keep(known, len(known))
        if not self._stopping:
            self._pulse.carry_out(self._core.on_stream_closed(node_uid, self._clock.monotonic()))

    async def _identify(self, context: _Context) -> NodeIdentity:
        """Who this stream may speak for; ends the call when it may not speak at all."""
        keys = self._keys()
        try:
            identity = verify_identity(_bearer(context), keys.public_keys, self._clock.wall(), keys.snapshot_wall)
            if identity.region != self._region:
                raise InvalidIdentity(f"this node belongs to region {identity.region}, not {self._region}")
        except InvalidIdentity as error:
            self._tell.on_refused("identity", str(error))
            # Said as a directive too: an agent need not understand statuses to know that it has to join again.
            await context.write(directive_to_wire(NodeDirective(0, 0, rejoin=True)))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise  # not reached: abort raises
        return identity

    async def _take_reports(self, context: _Context, identity: NodeIdentity) -> None:
        """Until the agent ends the stream. Raises _Ended when it is to be ended by us."""
        silence = FIRST_REPORT_SECONDS
        while True:
            try:
                async with asyncio.timeout(silence):
                    message = await context.read()
            except TimeoutError:
                raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "no report for too long") from None
            if not isinstance(message, agent_pb2.NodeReport):
                return
            silence = SILENCE_SECONDS
            try:
                report = node_report_from_wire(message)
            except ValueError as error:
                self._tell.on_refused("malformed", f"node {identity.node_name}: {error}")
                raise _Ended(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
            if (report.node_uid, report.zone) != (identity.node_uid, identity.zone):
                self._tell.on_refused("foreign", f"node {identity.node_name} spoke for another node or zone")
                raise _Ended(grpc.StatusCode.PERMISSION_DENIED, "a node may only report for itself and its zone")
            self._take(self._merge.from_agent(replace(report, node_name=identity.node_name)))
            await asyncio.sleep(MIN_REPORT_SECONDS)

    def take_embedded(self, report: NodeReport) -> None:
        """A report of this router's own embedded agent."""
        node = self._core.view.nodes.get(report.node_uid)
        merged = self._merge.from_embedded(
            report, agent_gone=self._agent_gone(report.node_uid, node), after=None if node is None else node.order
        )
        if merged is not None:
            self._take(merged)

    def _agent_gone(self, uid: str, node: Node | None) -> bool:
        """True when no agent speaks for a node any more, and nothing that only its agent knew is kept alive without it."""
        if uid in self._newest:
            return False
        if node is None or not node.reported:
            return True
        if node.silent_seconds(self._clock.monotonic()) < AGENT_GONE_SECONDS:
            return False
        written = self._core.view.intent.endpoints
        return node.state is NodeState.DEAD or all(u in written or e.dead for u, e in node.endpoints.items())

    def _take(self, report: NodeReport) -> None:
        """A report whose sender is known to be who it says."""
        answer, actions = self._core.on_report(report, self._clock.monotonic())
        self._pulse.carry_out(actions)
        self._tell.on_report(report, answer)

    async def _send_directives(self, context: _Context, node_uid: str, ending: asyncio.Event) -> None:
        """The present directive at once, then each one that differs from the last sent. Slow readers get only the newest."""
        sent: NodeDirective | None = None
        over = asyncio.ensure_future(ending.wait())
        try:
            while not ending.is_set():
                changed = asyncio.ensure_future(self._directives.wait())
                try:
                    directive = self._directives.of(node_uid)
                    if directive != sent:
                        await context.write(directive_to_wire(directive))
                        sent = directive
                    await asyncio.wait((changed, over), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            over.cancel()


class _Ended(Exception):
    """A stream is ended by this router, with a status for the agent."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        self.code = code
        super().__init__(message)


async def _refuse(context: _Context | _JoinContext, retry_after_seconds: float) -> None:
    context.set_trailing_metadata((("retry-after-ms", str(round(retry_after_seconds * 1000))),))
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many agents connect at once; try again later")


def _bearer(context: _Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            scheme, _, token = (value if isinstance(value, str) else value.decode("latin-1")).partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""


def _from_loopback(peer: str) -> bool:
    """True for a gRPC peer string such as ``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711`` or ``unix:``."""
    family, _, rest = unquote(peer).partition(":")
    return family == "unix" or is_loopback(rest.rpartition(":")[0])
