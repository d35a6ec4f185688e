"""The gateway: listens, holds what all connections share, keeps time, and drains."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol

from fleet.clock import Clock, SystemClock
from fleet.intent import Intent
from fleet.locality import Origin
from fleet.process.logs import get_logger
from fleet.request import Usage
from regional.gateway import errors, models
from regional.gateway.attempt import place_of
from regional.gateway.auth import Authenticator
from regional.gateway.connection import ClientConnection
from regional.gateway.exchange import Exchange
from regional.gateway.hop import peer_answer
from regional.gateway.openai import PATHS
from regional.gateway.outbox import Outbox
from regional.gateway.placement import Placement
from regional.gateway.pools import Upstreams
from regional.gateway.reception import Reception
from regional.gateway.request import ClientRequest, Kind
from regional.gateway.settings import GatewaySettings
from regional.metrics import RouterMetrics
from regional.request.interfaces import RequestCore
from regional.request.steps import AttemptResult, EndpointTarget, Outcome, RequestRecord, SendToEndpoint, SendToRegion

TICK_SECONDS = 0.1
BACKLOG = 4096
_TICKS_PER_SWEEP = 10
"""Connections are looked at once a second, requests ten times."""
_LOG_LINES_PER_SECOND = 20
_TEXT = b"content-type: text/plain; charset=utf-8\r\n"
_JSON = b"content-type: application/json\r\n"


class Origins(Protocol):
    """Client addresses to places (``fleet.geo.resolver``)."""

    def locate(self, address: str) -> Origin: ...


class Gateway:
    """One router's front door. Everything in it belongs to one event loop."""

    def __init__(
        self,
        core: RequestCore,
        intent: Callable[[], Intent],
        origins: Origins,
        settings: GatewaySettings,
        metrics: RouterMetrics,
        *,
        clock: Clock | None = None,
        peer_status: Callable[[], Mapping[str, object]] = dict,
        ready: Callable[[], bool] = lambda: True,
        discovered_models: Callable[[], frozenset[str]] = frozenset,
        upstream_tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        """``intent`` gives the intent in force; a new object means that it has changed. ``peer_status`` answers peers' probes.
        ``discovered_models`` are served by agents' endpoints without being written down."""
        self.core = core
        self.intent = intent
        self.settings = settings
        self.metrics = metrics
        self.observe_decision = metrics.decision_seconds.observe
        self.clock: Clock = clock or SystemClock()
        self.monotonic = self.clock.monotonic
        self.now = self.monotonic()
        """The time at the last tick: near enough for everything that is counted in seconds."""
        self.closing = False
        """Answers end their connections from now on."""
        self.upstreams = Upstreams(settings.upstream_idle_connections, settings.upstream_idle_seconds, upstream_tls)
        self.outbox = Outbox()
        self.exchanges: set[Exchange] = set()
        auth = Authenticator(intent, anonymous=settings.anonymous)
        self.reception = Reception(settings, intent, auth, origins.locate, self.clock)
        self._placement = Placement(settings)
        self._peer_status = peer_status
        self._ready = ready
        self._discovered_models = discovered_models
        self._on_record = on_record
        self._connections: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._held_bytes = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._gone = asyncio.Event()
        self._log = get_logger("gateway")
        self._log_second = 0.0
        self._log_lines = 0
        metrics.inflight.set_function(lambda: len(self.exchanges))

    # Serving

    async def serve(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False
    ) -> list[tuple[str, int]]:
        """Listen; returns the addresses bound (``port`` 0 lets the system choose). Raises OSError when it cannot."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: ClientConnection(self), host, port, ssl=tls, backlog=BACKLOG, reuse_port=reuse_port or None
        )
        self._servers.append(server)
        if self._ticker is None:
            self._ticker = loop.call_later(TICK_SECONDS, self._tick)
        return [sock.getsockname()[:2] for sock in server.sockets]

    async def drain(self) -> None:
        """Stop gracefully: keep serving for the shutdown delay (the caller has made readiness say no), then take no new
        connections, let running requests finish within the grace, break off the rest, and release everything."""
        await asyncio.sleep(self.settings.shutdown_delay_seconds)
        self.closing = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.shut()
        if self._connections:
            try:
                async with asyncio.timeout(self.settings.shutdown_grace_seconds):
                    await self._gone.wait()
            except TimeoutError:
                self._log.warning("grace_over", requests=len(self.exchanges))
        for exchange in list(self.exchanges):
            exchange.shut()
        await self.close()

    async def close(self) -> None:
        """Release everything now. May be called more than once."""
        self.closing = True
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._connections:
            await asyncio.sleep(0)  # what was just written goes out first
        for connection in list(self._connections):
            connection.transport.abort()
        if self._connections:
            await self._gone.wait()
        self.upstreams.close()

    # Connections

    def admit(self, connection: ClientConnection) -> bool:
        """Every connection is counted; False when it is one too many."""
        self._connections.add(connection)
        self._gone.clear()
        return len(self._connections) <= self.settings.connections

    def departed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._gone.set()

    def buffer(self, request: ClientRequest, size: int) -> bool:
        """Count bytes of a body that is being held; False when there is no room for them."""
        if self._held_bytes + size > self.settings.buffered_bytes:
            return False
        self._held_bytes += size
        request.held += size
        return True

    def unbuffer(self, request: ClientRequest) -> None:
        self._held_bytes -= request.held
        request.held = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of request bodies held now."""
        return self._held_bytes

    # What is answered here

    def answer_locally(self, connection: ClientConnection, request: ClientRequest) -> None:
        """Health, the model list, peers' probes."""
        match request.kind:
            case Kind.LIVE:
                connection.write_whole(request, 200, _TEXT, b"ok\n")
            case Kind.READY:
                ready = self._ready() and not self.closing
                connection.write_whole(request, 200 if ready else 503, _TEXT, b"ok\n" if ready else b"not ready\n")
            case Kind.PEER:
                connection.write_whole(request, 200, _JSON, peer_answer(self._peer_status()))
            case _:
                self._answer_models(connection, request)

    def _answer_models(self, connection: ClientConnection, request: ClientRequest) -> None:
        if request.principal is None:
            connection.answer(request, errors.UNAUTHORIZED)
            return
        names = models.visible_models(self.intent(), request.principal, self._discovered_models())
        wanted = models.wanted_name(request.path)
        if wanted is None:
            connection.write_whole(request, 200, _JSON, models.list_json(names))
        elif wanted in names:
            connection.write_whole(request, 200, _JSON, models.one_json(wanted))
        else:
            connection.answer(request, models.NOT_FOUND)

    # What exchanges ask for

    def credentials(self, target: EndpointTarget) -> bytes:
        """The header line with an endpoint's own key. The tenant's never leaves this router (rel-S9). A key that could end the
        line, which an agent may report, is no key."""
        key = target.api_key
        return b"authorization: Bearer %b\r\n" % key.encode() if key.isprintable() and key else b""

    def answer_lines(
        self, request: ClientRequest, step: SendToEndpoint | SendToRegion, headers: list[tuple[bytes, bytes]]
    ) -> bytes:
        """Our own header lines of an answer: the request's id, and where it was served as far as that may be told."""
        return b"x-request-id: %b\r\n%b" % (
            request.shown_id.encode(),
            self._placement.lines(step, headers, hopped=request.claims is not None),
        )

    # Counting and telling

    def finished(self, record: RequestRecord) -> None:
        self.metrics.request_over(record)
        if self._on_record is not None:
            self._on_record(record)

    def count_refusal(self, request: ClientRequest) -> None:
        """A request for an engine that was refused before it had a life."""
        if request.path not in PATHS:
            return
        principal, region = request.principal, self.settings.region
        busy = request.refusal is not None and request.refusal.status == 503
        self.metrics.request_over(
            RequestRecord(
                request_uid=request.uid,
                tenant_uid=principal.tenant_uid if principal else "",
                key_uid=principal.key_uid if principal else "",
                model="",
                sla_class=principal.sla.name if principal else "",
                outcome=Outcome.OVERLOADED if busy else Outcome.CLIENT_ERROR,
                entry_region=region,
                serving_region=region,
                zone="",
                node="",
                endpoint="",
                gpu_uuids=(),
                attempts=0,
                failovers=0,
                retries=0,
                seconds=max(0.0, self.monotonic() - request.arrived),
                first_byte_seconds=None,
                usage=Usage(),
            )
        )

    def note_failure(
        self, request: ClientRequest, step: SendToEndpoint | SendToRegion | None, result: AttemptResult
    ) -> None:
        """An attempt failed: for the operator's log, a bounded number of lines a second."""
        if self._may_log():
            self._log.warning(
                "attempt_failed",
                request=request.uid,
                label=request.label,
                outcome=result.outcome.value,
                status=result.status,
                detail=result.detail,
                attempt=step.attempt if step else 0,
                **place_of(step),
            )

    def log_fault(self, request: ClientRequest, error: Exception) -> None:
        """A fault of ours."""
        if self._may_log():
            self._log.error("request_fault", request=request.uid, exc_info=error)

    def _may_log(self) -> bool:
        if self.now - self._log_second >= 1.0:
            self._log_second, self._log_lines = self.now, 0
        self._log_lines += 1
        return self._log_lines <= _LOG_LINES_PER_SECOND

    # Time

    def _tick(self) -> None:
        now = self.now = self.monotonic()
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        for exchange in list(self.exchanges):
            exchange.tick(now)
        self._ticks += 1
        if self._ticks % _TICKS_PER_SWEEP == 0:
            self.upstreams.expire(now)
            for connection in list(self._connections):
                connection.tick(now)
