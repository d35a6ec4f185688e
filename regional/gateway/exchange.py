"""One request's way through the router: drives its life, makes the attempts, carries the answer back.

The life decides and this acts (``regional/request/steps.py``). Everything here is called back: by the client's connection, by an
upstream connection, by the gateway's clock. There is no task per request. The answer's head is held back until the first byte
of its body is there, so that until then the request can still go elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from fleet.request import RequestFacts, Usage
from regional.gateway import errors, hop
from regional.gateway.answer import Answer, Failure, judge_head
from regional.gateway.openai import NO_USAGE, BadBody, RequestBody, read_body
from regional.gateway.request import ClientRequest
from regional.gateway.upstream import UpstreamConnection, UpstreamPool
from regional.request.interfaces import RequestLife
from regional.request.steps import (
    AttemptResult,
    EndpointTarget,
    Outcome,
    Reject,
    RejectReason,
    SendToEndpoint,
    SendToRegion,
    Step,
    WaitFor,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from regional.gateway.connection import ClientConnection
    from regional.gateway.server import Gateway

_TIMEOUTS = frozenset({Outcome.TIMEOUT_IDLE, Outcome.TIMEOUT_TOTAL})
_UNREACHED = frozenset({Outcome.CONNECT_FAILED, Outcome.STALE_CONNECTION, Outcome.TIMEOUT_CONNECT})


class Exchange:
    """Owns one request from its complete arrival to its end. ``over`` is set once, and everything is released with it."""

    __slots__ = (
        "_addresses",
        "_answer",
        "_attempt",
        "_body",
        "_client",
        "_connecting",
        "_deadline",
        "_facts",
        "_first_by",
        "_gateway",
        "_last_seen",
        "_life",
        "_reached_by",
        "_request",
        "_step",
        "_upstream",
        "_waiting",
        "direct",
        "fresh",
        "over",
    )

    def __init__(self, gateway: Gateway, client: ClientConnection, request: ClientRequest) -> None:
        self._gateway = gateway
        self._client = client
        self._request = request
        self._life: RequestLife | None = None
        self._body: RequestBody | None = None
        self._facts: RequestFacts | None = None
        self._step: SendToEndpoint | SendToRegion | None = None
        self._attempt = 0
        """Counts attempts made here, so that a late call about an earlier one is recognised."""
        self._addresses: list[str] = []
        """Of the present step's place, those not tried yet."""
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._answer: Answer | None = None
        self._deadline = 0.0
        self._reached_by = 0.0
        self._first_by = 0.0
        self._last_seen = 0.0
        self.direct = False
        self.fresh = False
        """Bytes of the answer have come since the last tick."""
        self.over = False

    # From arrival to the first step

    def start(self) -> None:
        request, gateway = self._request, self._gateway
        try:
            body = self._body = read_body(b"".join(request.body), request.task)
        except BadBody as bad:
            self._turn_away(errors.invalid_json(bad.message, bad.param))
            return
        request.body = []
        gateway.exchanges.add(self)
        try:
            facts = self._facts = gateway.reception.facts(request, body, self._client.peer)
            limit = facts.total_seconds
            if facts.deadline_seconds is not None and facts.deadline_seconds < limit:
                limit = facts.deadline_seconds
            self._deadline = request.arrived + limit
            began = gateway.monotonic()
            self._life, step = gateway.core.begin(facts, began, self.revoke)
            gateway.observe_decision(gateway.monotonic() - began)
            self._run(step)
        except Exception as error:  # noqa: BLE001  # a fault of ours costs this request, never the process or another one
            self._fault(error)

    def _turn_away(self, refusal: errors.Refusal) -> None:
        """Refused before it has a life."""
        self.over = True
        self._gateway.unbuffer(self._request)
        self._request.refusal = refusal
        self._gateway.count_refusal(self._request)
        self._client.answer(self._request, refusal)

    def _run(self, step: Step) -> None:
        """Do what the life says."""
        self._step = None
        if isinstance(step, SendToEndpoint):
            self._begin_attempt(step, [step.target.url])
        elif isinstance(step, SendToRegion):
            self._send_to_region(step)
        elif isinstance(step, WaitFor):
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_later(max(0.0, step.seconds), self._wait_over)
        else:
            self._reject(step)

    def _decide(self, decision: Callable[[], Step]) -> None:
        try:
            self._run(decision())
        except Exception as error:  # noqa: BLE001  # as in start
            self._fault(error)

    def _wait_over(self) -> None:
        self._waiting = None
        life, now = self._life, self._gateway.monotonic()
        if life is not None and not self.over:
            self._decide(lambda: life.on_wait_over(now))

    def _reject(self, reject: Reject) -> None:
        refusal = errors.refusal_of(reject)
        self._end(Outcome.REJECTED, NO_USAGE)
        self._client.answer(self._request, refusal)

    # Attempts

    def _send_to_region(self, step: SendToRegion) -> None:
        if self._request.claims is not None:
            self._reject(Reject(RejectReason.SECOND_HOP, "A request is passed between regions once at most."))
            return
        self._begin_attempt(step, list(step.addresses))

    def _begin_attempt(self, step: SendToEndpoint | SendToRegion, addresses: list[str]) -> None:
        self._step = step
        self._attempt += 1
        self._answer = None
        self._addresses = addresses
        now = self._gateway.monotonic()
        self._reached_by = now + step.connect_timeout_seconds
        self._first_by = now + step.first_byte_timeout_seconds
        self._try_address(now)

    def _try_address(self, now: float) -> None:
        if not self._addresses:
            self._attempt_failed(AttemptResult(Outcome.CONNECT_FAILED, detail="no address"))
            return
        try:
            pool = self._gateway.upstreams.pool(self._addresses.pop(0), now)
        except ValueError:
            self._unreached(Outcome.CONNECT_FAILED, "not a usable URL")
            return
        connection = pool.take()
        if connection is not None:
            self._send(connection, pool)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(pool, self._attempt))

    async def _connect(self, pool: UpstreamPool, attempt: int) -> None:
        try:
            connection = await pool.connect()
        except (OSError, ssl.SSLError, UnicodeError) as error:
            if attempt == self._attempt and not self.over:
                self._connecting = None
                self._unreached(Outcome.CONNECT_FAILED, type(error).__name__)
            return
        if attempt != self._attempt or self.over:
            connection.abandon()
            return
        self._connecting = None
        try:
            self._send(connection, pool)
        except Exception as error:  # noqa: BLE001  # as in start
            self._fault(error)

    def _send(self, connection: UpstreamConnection, pool: UpstreamPool) -> None:
        step, body = self._step, self._body
        if step is None or body is None:
            raise RuntimeError("nothing to send")
        try:
            if isinstance(step, SendToEndpoint):
                payload = body.rendered(step.target.served_as)
                special = self._gateway.credentials(step.target)
            else:
                payload = body.rendered(body.model)
                special = self._hop_line(step)
        except BadBody as bad:
            connection.abandon()
            self._refused_late(errors.invalid_json(bad.message, bad.param))
            return
        request = self._request
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
        self._upstream = connection
        connection.send(self, [head, payload])

    def _hop_line(self, step: SendToRegion) -> bytes:
        gateway, facts = self._gateway, self._facts
        keys = gateway.intent().secrets.hop_keys
        if facts is None or not keys:
            raise RuntimeError("a hop needs a key to sign with")
        elapsed = gateway.monotonic() - self._request.arrived
        claims = gateway.reception.claims(facts, self._request.label, step.region, step.model, step.attempt, elapsed)
        return b"%b: %b\r\n" % (hop.HEADER, hop.sign(claims, keys[0]))

    def _refused_late(self, refusal: errors.Refusal) -> None:
        """The client's body turned out to be unusable when it had to be changed."""
        self._end(Outcome.CLIENT_ERROR, NO_USAGE)
        self._client.answer(self._request, refusal)

    def _unreached(self, outcome: Outcome, detail: str) -> None:
        """An address did not take the request: another of the same place may."""
        if self._addresses:
            self._try_address(self._gateway.monotonic())
        else:
            self._attempt_failed(AttemptResult(outcome, detail=detail))

    def _attempt_failed(self, result: AttemptResult) -> None:
        """Before the first byte: ask the life where to go now."""
        self._let_go()
        life, step = self._life, self._step
        if life is None or self.over:
            return
        gateway = self._gateway
        gateway.note_failure(self._request, step, result)
        now = gateway.monotonic()

        def decide() -> Step:
            following = life.on_attempt_failed(result, now)
            if isinstance(following, SendToEndpoint | SendToRegion):
                gateway.metrics.retried(result.outcome.value)
            return following

        self._decide(decide)

    def revoke(self) -> None:
        """The place of the present attempt was declared dead. May be called from inside the core, so it acts a moment later."""
        asyncio.get_running_loop().call_soon(self._revoked, self._attempt)

    def _revoked(self, attempt: int) -> None:
        if self.over or attempt != self._attempt or self._step is None:
            return
        if self._answer is None or not self._answer.begun:
            self._attempt_failed(AttemptResult(Outcome.DECLARED_DEAD, detail="declared dead"))

    # What the upstream connection tells (upstream.Owner)

    def on_head(self, connection: UpstreamConnection) -> None:
        step, life, body = self._step, self._life, self._body
        if step is None or life is None or body is None:
            return
        self.fresh = True
        head = connection.head
        verdict = judge_head(head, hopped=isinstance(step, SendToRegion))
        if isinstance(verdict, Failure):
            self._upstream = None
            connection.discard()
            self._attempt_failed(verdict.result)
            return
        target = step.target if isinstance(step, SendToEndpoint) else None
        rename = body.model if target is not None and target.served_as != body.model else ""
        self._answer = Answer(
            self._request,
            head,
            connection.length,
            verdict=verdict,
            strip_usage=body.stream and not body.wants_usage,
            rename=rename,
            lines=self._gateway.answer_lines(self._request, step, head.headers),
            close=self._gateway.closing,
        )
        try:
            life.on_headers(head.status, self._gateway.monotonic())
        except Exception as error:  # noqa: BLE001  # as in start
            self._fault(error)

    def on_data(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or self.over:
            return
        self.fresh = True
        try:
            out = answer.feed(data)
            if out:
                if not answer.begun:
                    self._first_byte(answer)
                self._client.transport.write(out)
            self.direct = answer.direct
        except Exception as error:  # noqa: BLE001  # as in start
            self._fault(error)

    def relay_chunk(self, chunk: bytes) -> None:
        answer = self._answer
        if answer is not None:
            self.fresh = True
            answer.passed(chunk)
            self._client.transport.write(chunk)

    def on_complete(self) -> None:
        self._upstream = None
        answer = self._answer
        if answer is None or self.over:
            return
        try:
            out, result = answer.finish()
            if result is not None:
                self._broken(result)
                return
            if out:
                if not answer.begun:
                    self._first_byte(answer)
                self._client.transport.write(out)
            self._end(Outcome.CLIENT_ERROR if answer.status >= 400 else Outcome.OK, answer.usage)
        except Exception as error:  # noqa: BLE001  # as in start
            self._fault(error)
            return
        self._client.done(keep=answer.keep)

    def on_broken(self, outcome: Outcome, detail: str) -> None:
        self._upstream = None
        answer = self._answer
        if answer is not None and answer.said_all():
            # The terminal event was seen; how the connection went down behind it does not matter (case-S08).
            self.on_complete()
        elif outcome in _UNREACHED:
            if outcome is Outcome.STALE_CONNECTION:
                self._gateway.drop_stale(self._step)
            self._unreached(outcome, detail)
        else:
            self._broken(AttemptResult(outcome, detail=detail))

    def _first_byte(self, answer: Answer) -> None:
        answer.begun = True
        life = self._life
        if life is not None:
            life.on_first_byte(self._gateway.monotonic())

    def _broken(self, result: AttemptResult) -> None:
        answer = self._answer
        if answer is None or not answer.begun:
            self._attempt_failed(result)
            return
        self._let_go()
        self._gateway.note_failure(self._request, self._step, result)
        event = errors.STREAM_TIMEOUT_EVENT if result.outcome in _TIMEOUTS else errors.STREAM_BROKEN_EVENT
        self._client.transport.write(answer.in_band(event))
        self._end(result.outcome if result.outcome in _TIMEOUTS else Outcome.STREAM_BROKEN, answer.usage)
        self._client.done(keep=False)

    # The client

    def client_gone(self) -> None:
        """The client left: the engine is told at once by its connection closing (case-S06)."""
        if not self.over:
            self._let_go()
            self._end(Outcome.ABORTED, self._answer.usage if self._answer else NO_USAGE)

    def slow_down(self) -> None:
        """The client does not read: the engine's bytes stay where they are."""
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def go_on(self) -> None:
        if self._upstream is not None:
            self.fresh = True
            self._upstream.transport.resume_reading()

    # Time

    def tick(self, now: float) -> None:
        """Apply time limits; called ten times a second."""
        if self.over or self._step is None:
            return
        answer = self._answer
        if now >= self._deadline:
            self._cut(Outcome.TIMEOUT_TOTAL, "total time limit")
        elif self._connecting is not None:
            if now >= self._reached_by:
                self._addresses = []
                self._cut(Outcome.TIMEOUT_CONNECT, "connect time limit")
        elif answer is None or not answer.seen:
            if now >= self._first_by:
                self._cut(Outcome.TIMEOUT_FIRST_BYTE, "first byte time limit")
        elif self.fresh or self._client.paused_writing:
            if self.fresh and self._life is not None:
                self._life.note_progress(now)
            self.fresh = False
            self._last_seen = now
        elif now - self._last_seen >= self._gateway.settings.idle_seconds:
            self._cut(Outcome.TIMEOUT_IDLE, "idle time limit")

    def _cut(self, outcome: Outcome, detail: str) -> None:
        self._let_go()
        self._broken(AttemptResult(outcome, detail=detail))

    def shut(self) -> None:
        """The grace period is over."""
        if self.over:
            return
        answer = self._answer
        self._let_go()
        if answer is not None and answer.begun:
            self._client.transport.write(answer.in_band(errors.STREAM_BROKEN_EVENT))
            self._end(Outcome.STREAM_BROKEN, answer.usage)
            self._client.done(keep=False)
        else:
            self._end(Outcome.ABORTED, NO_USAGE)
            self._request.keep_alive = False
            self._client.answer(self._request, errors.LEAVING)

    # The end

    def _let_go(self) -> None:
        """Stop the present attempt, whatever it is doing."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._upstream is not None:
            upstream, self._upstream = self._upstream, None
            upstream.abandon()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self.direct = False

    def _end(self, outcome: Outcome, usage: Usage) -> None:
        """Exactly once, on every path."""
        if self.over:
            return
        self.over = True
        gateway = self._gateway
        gateway.exchanges.discard(self)
        gateway.unbuffer(self._request)
        if self._life is not None:
            record = self._life.on_end(outcome, usage, gateway.monotonic())
            gateway.finished(record)

    def _fault(self, error: Exception) -> None:
        """A fault of ours: this request gets a 500 or an in-band error, and everything it holds is released."""
        self._gateway.log_fault(self._request, error)
        if self.over:
            return
        self._let_go()
        answer = self._answer
        try:
            self._end(Outcome.STREAM_BROKEN if answer is not None and answer.begun else Outcome.REJECTED, NO_USAGE)
        except Exception as second:  # noqa: BLE001  # the life itself is what fails
            self._gateway.log_fault(self._request, second)
        if answer is not None and answer.begun:
            self._client.transport.write(answer.in_band(errors.STREAM_BROKEN_EVENT))
            self._client.done(keep=False)
        else:
            self._client.answer(self._request, errors.INTERNAL)


def place_of(step: SendToEndpoint | SendToRegion | None) -> dict[str, str]:
    """Where an attempt went, for the operator's log."""
    if isinstance(step, SendToEndpoint):
        target: EndpointTarget = step.target
        return {"endpoint": target.name, "zone": target.zone, "node": target.node}
    return {"region": step.region} if isinstance(step, SendToRegion) else {}
