"""One attempt: reach one of a place's addresses and hand it the request."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from regional.gateway import errors, hop
from regional.gateway.openai import BadBody, RequestBody
from regional.gateway.pools import UpstreamPool
from regional.gateway.upstream import UpstreamConnection
from regional.request.steps import AttemptResult, Outcome, SendToEndpoint, SendToRegion

if TYPE_CHECKING:
    from regional.gateway.exchange import Exchange
    from regional.gateway.server import Gateway

UNREACHED = frozenset({Outcome.CONNECT_FAILED, Outcome.STALE_CONNECTION, Outcome.TIMEOUT_CONNECT})


class Attempt:
    """Owns the connection, or the task that makes it, until it is let go of. What comes back goes to the exchange directly."""

    __slots__ = (
        "_addresses",
        "_body",
        "_connecting",
        "_exchange",
        "_gateway",
        "_ranges",
        "first_by",
        "reached_by",
        "step",
        "upstream",
    )

    def __init__(
        self, gateway: Gateway, exchange: Exchange, body: RequestBody, step: SendToEndpoint | SendToRegion, now: float
    ) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._body = body
        self.step = step
        self._ranges: tuple[str, ...] = ()
        if isinstance(step, SendToEndpoint):
            self._addresses = [step.target.url]
            zone = gateway.intent().zones.get(step.target.zone)
            if zone is not None:
                self._ranges = zone.endpoint_ranges
        else:
            self._addresses = list(step.addresses)
        self._connecting: asyncio.Task[None] | None = None
        self.upstream: UpstreamConnection | None = None
        self.reached_by = now + step.connect_timeout_seconds
        self.first_by = now + step.first_byte_timeout_seconds

    @property
    def connecting(self) -> bool:
        return self._connecting is not None

    def begin(self, now: float) -> None:
        """Use a kept connection to the next address, or make one."""
        if not self._addresses:
            self._exchange.attempt_failed(AttemptResult(Outcome.CONNECT_FAILED, detail="no address"))
            return
        try:
            pool = self._gateway.upstreams.pool(self._addresses.pop(0), now, self._ranges)
        except ValueError:
            self.unreached(Outcome.CONNECT_FAILED, "not a usable URL")
            return
        connection = pool.take()
        if connection is not None:
            self._send(connection, pool)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(pool))

    async def _connect(self, pool: UpstreamPool) -> None:
        try:
            connection = await pool.connect()
        except (OSError, ssl.SSLError, UnicodeError) as error:
            if self._connecting is not None:
                self._connecting = None
                self.unreached(Outcome.CONNECT_FAILED, type(error).__name__)
            return
        if self._connecting is None:  # let go of meanwhile
            connection.abandon()
            return
        self._connecting = None
        try:
            self._send(connection, pool)
        except Exception as error:  # noqa: BLE001  # a fault of ours costs this request, never another one
            self._exchange.fault(error)

    def _send(self, connection: UpstreamConnection, pool: UpstreamPool) -> None:
        step, body, request = self.step, self._body, self._exchange.request
        try:
            if isinstance(step, SendToEndpoint):
                payload = body.rendered(step.target.served_as)
                special = self._gateway.credentials(step.target)
            else:
                payload = body.rendered(body.model)
                special = self._hop_line(step)
        except BadBody as bad:
            connection.abandon()
            self._exchange.refuse(errors.invalid_json(bad.message, bad.param))
            return
        head = (
            b"POST %b HTTP/1.1\r\n%b%b%bcontent-length: %d\r\nx-request-id: %b\r\naccept-encoding: identity\r\n\r\n"
            % (
                request.path,
                pool.host_line,
                b"".join(request.forward),
                special,
                len(payload),
                request.uid.encode(),
            )
        )
        self.upstream = connection
        connection.send(self._exchange, head, payload, self._gateway.outbox)

    def _hop_line(self, step: SendToRegion) -> bytes:
        gateway, facts, request = self._gateway, self._exchange.facts, self._exchange.request
        keys = gateway.intent().secrets.hop_keys
        if facts is None or not keys:
            raise RuntimeError("a hop needs a key to sign with")
        elapsed = gateway.monotonic() - request.arrived
        claims = gateway.reception.claims(facts, request.label, step.region, step.model, step.attempt, elapsed)
        return b"%b: %b\r\n" % (hop.HEADER, hop.sign(claims, keys[0]))

    def unreached(self, outcome: Outcome, detail: str) -> None:
        """An address did not take the request: another of the same place may."""
        if outcome is Outcome.STALE_CONNECTION and isinstance(self.step, SendToEndpoint):
            # The others that were kept as long are no better (case-R10).
            self._gateway.upstreams.pool(self.step.target.url, self._gateway.now, self._ranges).drop_idle()
        if self._addresses:
            self.begin(self._gateway.monotonic())
        else:
            self._exchange.attempt_failed(AttemptResult(outcome, detail=detail))

    def let_go(self) -> None:
        """Stop, whatever it is doing. The engine sees its connection close at once."""
        if self._connecting is not None:
            task, self._connecting = self._connecting, None
            task.cancel()
        if self.upstream is not None:
            upstream, self.upstream = self.upstream, None
            upstream.abandon()


def place_of(step: SendToEndpoint | SendToRegion | None) -> dict[str, str]:
    """Where an attempt went, for the operator's log."""
    if isinstance(step, SendToEndpoint):
        return {"endpoint": step.target.name, "zone": step.target.zone, "node": step.target.node}
    return {"region": step.region} if isinstance(step, SendToRegion) else {}
