"""One request's way through the router: drives its life, makes the attempts, carries the answer back.

The life decides and this acts (``regional/request/steps.py``). Everything here is called back: by the client's connection, by an
upstream connection, by the gateway's clock. There is no task per request. The answer's head is held back until the first byte
of its body is there, so that until then the request can still go elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fleet.request import RequestFacts, Usage
from regional.gateway import errors
from regional.gateway.answer import WHOLE_BYTES, Answer, Failure, judge_head, whole_answer
from regional.gateway.attempt import UNREACHED, Attempt
from regional.gateway.openai import NO_USAGE, BadBody, RequestBody, read_answer, read_body, rename_model
from regional.gateway.request import ClientRequest
from regional.gateway.upstream import UpstreamConnection
from regional.request.interfaces import RequestLife
from regional.request.steps import (
    AttemptResult,
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


class Exchange:
    """Owns one request from its complete arrival to its end. ``over`` is set once, and everything is released with it."""

    __slots__ = (
        "_answer",
        "_attempt",
        "_body",
        "_client",
        "_deadline",
        "_gateway",
        "_last_seen",
        "_life",
        "_waiting",
        "_waits_since",
        "direct",
        "facts",
        "fresh",
        "over",
        "request",
    )

    def __init__(self, gateway: Gateway, client: ClientConnection, request: ClientRequest) -> None:
        self._gateway = gateway
        self._client = client
        self.request = request
        self.facts: RequestFacts | None = None
        self._life: RequestLife | None = None
        self._body: RequestBody | None = None
        self._attempt: Attempt | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        self._answer: Answer | None = None
        """Of the present attempt, once its head is in and usable."""
        self._deadline = 0.0
        self._last_seen = 0.0
        self.direct = False
        self.fresh = False
        """Bytes of the answer have come since the last tick."""
        self.over = False

    # Steps

    def start(self) -> None:
        request, gateway = self.request, self._gateway
        try:
            body = self._body = read_body(b"".join(request.body), request.task)
        except BadBody as bad:
            self._turn_away(errors.invalid_json(bad.message, bad.param))
            return
        request.body = []
        gateway.exchanges.add(self)
        try:
            facts = self.facts = gateway.reception.facts(request, body, self._client.peer)
            limit = facts.total_seconds
            if facts.deadline_seconds is not None and facts.deadline_seconds < limit:
                limit = facts.deadline_seconds
            self._deadline = request.arrived + limit
            began = gateway.monotonic()
            self._life, step = gateway.core.begin(facts, began, self.revoke)
            now = gateway.monotonic()
            gateway.observe_decision(now - began)
            self._run(step, now)
        except Exception as error:  # noqa: BLE001  # a fault of ours costs this request, never the process or another one
            self.fault(error)

    def _turn_away(self, refusal: errors.Refusal) -> None:
        """Refused before it has a life."""
        self.over = True
        self._gateway.unbuffer(self.request)
        self.request.refusal = refusal
        self._gateway.count_refusal(self.request)
        self._client.answer(self.request, refusal)

    def _run(self, step: Step, now: float) -> None:
        """Do what the life says."""
        self._attempt = self._answer = None
        if isinstance(step, Reject):
            self._reject(step)
        elif isinstance(step, WaitFor):
            self._wait(step, now)
        elif isinstance(step, SendToRegion) and self.request.claims is not None:
            self._reject(Reject(RejectReason.SECOND_HOP, "A request is passed between regions once at most."))
        elif self._body is not None:
            self.request.attempts = step.attempt
            self._attempt = attempt = Attempt(self._gateway, self, self._body, step, now)
            attempt.begin(now)

    def _decide(self, decision: Callable[[float], Step]) -> None:
        now = self._gateway.monotonic()
        try:
            self._run(decision(now), now)
        except Exception as error:  # noqa: BLE001  # as in start
            self.fault(error)

    def _wait(self, step: WaitFor, now: float) -> None:
        self._waits_since = now
        self._gateway.metrics.queue_depth.inc()
        self._waiting = asyncio.get_running_loop().call_later(max(0.0, step.seconds), self._wait_over)

    def _wait_over(self) -> None:
        self._stop_waiting()
        if self._life is not None and not self.over:
            self._decide(self._life.on_wait_over)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._gateway.metrics.queue_depth.dec()
            self._gateway.metrics.queue_wait_seconds.observe(self._gateway.monotonic() - self._waits_since)

    def _reject(self, reject: Reject) -> None:
        refusal = errors.refusal_of(reject)
        self._end(Outcome.REJECTED, NO_USAGE)
        self._client.answer(self.request, refusal)

    def refuse(self, refusal: errors.Refusal) -> None:
        """The client's body turned out to be unusable when it had to be changed."""
        self._end(Outcome.CLIENT_ERROR, NO_USAGE)
        self._client.answer(self.request, refusal)

    def attempt_failed(self, result: AttemptResult) -> None:
        """Before the first byte: ask the life where to go now."""
        life, attempt, gateway = self._life, self._attempt, self._gateway
        self._let_go()
        if life is None or attempt is None or self.over:
            return
        gateway.note_failure(self.request, attempt.step, result)

        def following(now: float) -> Step:
            step = life.on_attempt_failed(result, now)
            if isinstance(step, SendToEndpoint | SendToRegion):
                gateway.metrics.retried(result.outcome.value)
            return step

        self._decide(following)

    def revoke(self) -> None:
        """The place of the present attempt was declared dead. May be called from inside the core, so it acts a moment later."""
        asyncio.get_running_loop().call_soon(self._revoked, self._attempt)

    def _revoked(self, attempt: Attempt | None) -> None:
        if self.over or attempt is None or attempt is not self._attempt:
            return
        if self._answer is None or not self._answer.begun:
            self.attempt_failed(AttemptResult(Outcome.DECLARED_DEAD, detail="declared dead"))

    # What the upstream connection tells (upstream.Owner)

    def on_head(self, connection: UpstreamConnection) -> None:
        attempt, life, body = self._attempt, self._life, self._body
        if attempt is None or life is None or body is None:
            return
        self.fresh = True
        head, step = connection.head, attempt.step
        hopped = isinstance(step, SendToRegion)
        verdict = judge_head(head, hop_attempt=step.attempt if hopped else 0)
        if isinstance(verdict, Failure):
            attempt.upstream = None
            connection.discard()
            self.attempt_failed(verdict.result)
            return
        try:
            self._answer = Answer(
                self.request,
                head,
                connection.length,
                verdict=verdict,
                strip_usage=body.stream and not body.wants_usage,
                rename=body.model if isinstance(step, SendToEndpoint) and step.target.served_as != body.model else "",
                lines=self._gateway.answer_lines(self.request, step, head.headers),
                close=self._gateway.closing,
            )
            life.on_headers(head.status, self._gateway.monotonic())
        except Exception as error:  # noqa: BLE001  # as in start
            self.fault(error)

    def on_whole(self, connection: UpstreamConnection, body: bytes) -> None:
        attempt, life, asked, head = self._attempt, self._life, self._body, connection.head
        if attempt is None or life is None or asked is None:
            return
        step = attempt.step
        if head.whole_json and isinstance(step, SendToEndpoint) and len(body) <= WHOLE_BYTES:
            usage = read_answer(body)
            if usage is not None:
                self._pass_whole(connection, body, usage, step, asked, life)
                return
        self.on_head(connection)
        answer = self._answer
        if answer is None or connection.owner is not self:
            return
        self.on_data(body)
        if connection.owner is self:
            connection.finished()
            self.on_complete()

    def _pass_whole(
        self,
        connection: UpstreamConnection,
        body: bytes,
        usage: Usage,
        step: SendToEndpoint,
        asked: RequestBody,
        life: RequestLife,
    ) -> None:
        """The usual plain answer, in one go: what ``on_head``, ``on_data`` and ``on_complete`` would do."""
        gateway, head, request = self._gateway, connection.head, self.request
        keep = request.keep_alive and not gateway.closing
        try:
            now = gateway.monotonic()
            life.on_headers(head.status, now)
            life.on_first_byte(now)
            if step.target.served_as != asked.model:
                body = rename_model(body, asked.model)
            lines = gateway.answer_lines(request, step, head.headers)
            connection.finished()
            if self._attempt is not None:
                self._attempt.upstream = None
            gateway.outbox.add(self._client.transport, whole_answer(request, head, lines, body, keep=keep))
            self._end(Outcome.OK, usage)
        except Exception as error:  # noqa: BLE001  # as in start
            self.fault(error)
            return
        self._client.done(keep=keep)

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
            self.fault(error)

    def relay_chunk(self, chunk: bytes) -> None:
        answer = self._answer
        if answer is not None:
            self.fresh = True
            answer.passed(chunk)
            self._client.transport.write(chunk)

    def on_complete(self) -> None:
        attempt, answer = self._attempt, self._answer
        if attempt is None or answer is None or self.over:
            return
        attempt.upstream = None
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
            self.fault(error)
            return
        self._client.done(keep=answer.keep)

    def on_broken(self, outcome: Outcome, detail: str) -> None:
        attempt, answer = self._attempt, self._answer
        if attempt is None:
            return
        attempt.upstream = None
        if answer is not None and answer.said_all():
            # The terminal event was seen; how the connection went down behind it does not matter (case-S08).
            self.on_complete()
        elif outcome in UNREACHED:
            attempt.unreached(outcome, detail)
        else:
            self._broken(AttemptResult(outcome, detail=detail))

    def _first_byte(self, answer: Answer) -> None:
        answer.begun = True
        if self._life is not None:
            self._life.on_first_byte(self._gateway.monotonic())

    def _broken(self, result: AttemptResult) -> None:
        answer, attempt = self._answer, self._attempt
        if answer is None or not answer.begun:
            self.attempt_failed(result)
            return
        self._gateway.note_failure(self.request, attempt.step if attempt else None, result)
        timed_out = result.outcome in _TIMEOUTS
        self._break_off(
            answer,
            errors.STREAM_TIMEOUT_EVENT if timed_out else errors.STREAM_BROKEN_EVENT,
            result.outcome if timed_out else Outcome.STREAM_BROKEN,
        )

    def _break_off(self, answer: Answer, event: bytes, outcome: Outcome) -> None:
        """After the first byte: one error event in the band, and the connection closes behind it."""
        self._let_go()
        self._client.transport.write(answer.in_band(event))
        self._end(outcome, answer.usage)
        self._client.done(keep=False)

    # The client

    def client_gone(self) -> None:
        """The client left: the engine is told at once by its connection closing (case-S06)."""
        if not self.over:
            self._let_go()
            self._end(Outcome.ABORTED, self._answer.usage if self._answer else NO_USAGE)

    def slow_down(self) -> None:
        """The client does not read: the engine's bytes stay where they are."""
        if self._attempt is not None and self._attempt.upstream is not None:
            self._attempt.upstream.hold()

    def go_on(self) -> None:
        if self._attempt is not None and self._attempt.upstream is not None:
            self.fresh = True
            self._attempt.upstream.flow()

    # Time

    def tick(self, now: float) -> None:
        """Apply time limits; called ten times a second."""
        attempt, answer = self._attempt, self._answer
        if self.over or attempt is None:
            return
        if now >= self._deadline:
            self._cut(Outcome.TIMEOUT_TOTAL, "total time limit")
        elif attempt.connecting:
            if now >= attempt.reached_by:
                self._cut(Outcome.TIMEOUT_CONNECT, "connect time limit")
        elif answer is None or not answer.seen:
            if now >= attempt.first_by:
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
        if answer is not None and answer.begun:
            self._break_off(answer, errors.STREAM_BROKEN_EVENT, Outcome.STREAM_BROKEN)
            return
        self._let_go()
        self._end(Outcome.ABORTED, NO_USAGE)
        self.request.keep_alive = False
        self._client.answer(self.request, errors.LEAVING)

    # The end

    def _let_go(self) -> None:
        """Stop the present attempt or wait, whatever it is doing."""
        if self._attempt is not None:
            self._attempt.let_go()
        self._stop_waiting()
        self.direct = False

    def _end(self, outcome: Outcome, usage: Usage) -> None:
        """Exactly once, on every path."""
        if self.over:
            return
        self.over = True
        gateway = self._gateway
        gateway.exchanges.discard(self)
        gateway.unbuffer(self.request)
        # Both refer back to this object: kept, all three would wait for the garbage collector.
        life, self._life = self._life, None
        self._attempt = None
        if life is not None:
            gateway.finished(life.on_end(outcome, usage, gateway.monotonic()))

    def fault(self, error: Exception) -> None:
        """A fault of ours: this request gets a 500 or an in-band error, and everything it holds is released."""
        self._gateway.log_fault(self.request, error)
        if self.over:  # it failed in ending: what has been written is all there will be
            if self._client.exchange is self:
                self._client.done(keep=False)
            return
        answer = self._answer
        begun = answer is not None and answer.begun
        self._let_go()
        try:
            self._end(Outcome.STREAM_BROKEN if begun else Outcome.REJECTED, NO_USAGE)
        except Exception as second:  # noqa: BLE001  # the life itself is what fails
            self._gateway.log_fault(self.request, second)
        if answer is not None and begun:
            self._client.transport.write(answer.in_band(errors.STREAM_BROKEN_EVENT))
            self._client.done(keep=False)
        else:
            self._client.answer(self.request, errors.INTERNAL)
