"""The life of one request: what happened goes in, the next step comes out. Every path gives back what it took, once.

begin -> place -> SendTo... -> first byte -> end
           ^          |
           |          +-- connection failed or place died: failover, once per place, outside the retry budget
           |          +-- answered badly or too late: retry, at most three attempts in all, inside the budget
           +-- WaitFor: every place that could serve asked for a pause, or failed once already
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.request import RequestFacts, Usage
from regional.fleetview.endpoint import Endpoint, Ticket
from regional.fleetview.standing import SUSPECT
from regional.fleetview.work import read
from regional.request import learning
from regional.request.interfaces import AttemptRevoker
from regional.request.rejects import reason_after, reject
from regional.request.steps import (
    AttemptResult,
    EndpointTarget,
    Outcome,
    Reject,
    RejectReason,
    RequestRecord,
    SendToEndpoint,
    SendToRegion,
    Step,
    WaitFor,
)
from regional.routing.asked import Asked
from regional.routing.place import Here, Nowhere, There

if TYPE_CHECKING:
    from regional.fleetview.regions import PeerRegion
    from regional.request.core import Core

REGION_CONNECT_FACTOR = 2.0
"""A connection to another region may take this many times longer than one inside the region."""
PLAIN_PATIENCE = 4.0
"""The first byte of an answer in one piece is its last: it may take its time limit and this many times its expected decoding."""
BACKOFF_SECONDS = 0.05
_NO_FAULT_OF_THE_PLACE = (Outcome.STALE_CONNECTION, Outcome.REFUSED_SPILL)
_ENDED = {outcome: AttemptResult(outcome) for outcome in Outcome}


class Life:
    """Implements ``RequestLife``."""

    __slots__ = (
        "_asked",
        "_core",
        "_endpoint",
        "_excluded",
        "_facts",
        "_failovers",
        "_first_at",
        "_last",
        "_made",
        "_model",
        "_peer",
        "_record",
        "_region",
        "_reject",
        "_retries",
        "_revoke",
        "_stale",
        "_started",
        "_status",
        "_ticket",
        "_versions",
        "_waits",
    )

    def __init__(self, core: Core, facts: RequestFacts, now: float, revoke: AttemptRevoker) -> None:
        self._core = core
        self._facts = facts
        self._revoke = revoke
        self._started = now
        self._asked = Asked(facts)
        self._versions: tuple[str, ...] = ()
        self._model = ""
        self._ticket: Ticket | None = None
        self._endpoint: Endpoint | None = None
        self._region = ""
        self._peer: PeerRegion | None = None
        self._excluded: tuple[str, ...] = ()
        """Regions that have failed or refused this request."""
        self._stale: list[Endpoint] = []
        self._made = 0
        self._retries = 0
        self._failovers = 0
        self._waits = 0
        self._last: Outcome | None = None
        self._status = 0
        self._first_at: float | None = None
        self._reject: RejectReason | None = None
        self._record: RequestRecord | None = None

    # What the gateway calls

    def start(self, now: float) -> Step:
        """The first step."""
        core = self._core
        versions, reason = core.resolve(self._facts)
        if reason is not None:
            return self._refuse(reason)
        self._versions = versions
        if core.outside_residency(self._facts):
            return self._refuse(RejectReason.REGION_NOT_ALLOWED)
        return self._next(now)

    def on_headers(self, status: int, now: float) -> None:
        """A usable response head is in for the present attempt."""
        self._status = status

    def on_first_byte(self, now: float) -> None:
        """The first body byte goes to the client now."""
        if self._first_at is not None or self._record is not None:
            return
        self._first_at = now
        self._leave_peer()
        ticket = self._ticket
        if ticket is None:
            return
        endpoint = ticket.endpoint
        read(ticket, now)
        self._core.judge.on_answer(endpoint, now)
        if self._facts.stream and self._status < 400 and learning.on_first_token(ticket, now):
            self._core.view.changed(endpoint)
        else:
            self._core.view.mark(endpoint)

    def note_progress(self, now: float) -> None:
        """Bytes of the answer have passed."""
        if self._ticket is not None:
            self._ticket.endpoint.progress_at = now

    def on_attempt_failed(self, result: AttemptResult, now: float) -> Step:
        """The present attempt failed before its first byte."""
        outcome = result.outcome
        endpoint, region = self._endpoint, self._region
        self._settle(result, now)
        if self._record is not None or self._first_at is not None:
            return self._refuse(reason_after(outcome))
        self._last = outcome
        self._retries += max(0, result.attempts - 1)
        if outcome.connection_failure:
            return self._fail_over(outcome, endpoint, region, now)
        self._exclude(endpoint, region)
        return self._retry(result, now)

    def on_wait_over(self, now: float) -> Step:
        """A WaitFor has passed."""
        return self._next(now)

    def on_end(self, outcome: Outcome, usage: Usage, now: float) -> RequestRecord:
        """It is over."""
        if self._record is not None:
            return self._record
        ticket = self._ticket
        if ticket is not None and outcome is Outcome.OK:
            self._learn(ticket, usage, now)
        self._settle(_ENDED[outcome], now)
        facts, place, first = self._facts, self._endpoint, self._first_at
        self._record = RequestRecord(
            facts.request_uid,
            facts.tenant_uid,
            facts.key_uid,
            self._model,
            facts.sla_class,
            outcome,
            facts.entry_region or self._core.view.region,
            self._region,
            place.zone if place is not None else "",
            place.node.name if place is not None else "",
            place.name if place is not None else "",
            place.gpu_uuids if place is not None else (),
            facts.attempts_used + self._made,
            self._failovers,
            self._retries,
            now - self._started,
            None if first is None else first - self._started,
            usage,
            self._reject,
            facts.origin.country or facts.origin.continent,
        )
        return self._record

    # After a failure

    def _fail_over(self, outcome: Outcome, endpoint: Endpoint | None, region: str, now: float) -> Step:
        """Move off a place that did not take the request: outside the budget, once per place."""
        core = self._core
        if outcome is Outcome.STALE_CONNECTION and endpoint is not None and endpoint not in self._stale:
            self._stale.append(endpoint)  # nothing is wrong with the place: once more there, on a fresh connection
        else:
            self._exclude(endpoint, region)
            ours = outcome in _NO_FAULT_OF_THE_PLACE or core.excused(outcome, now)
            if not ours:
                core.zone_failures.note(endpoint.zone if endpoint is not None else core.region_key(region), now)
        if self._failovers >= core.settings.failover_max:
            return self._refuse(reason_after(outcome))
        self._failovers += 1
        self._asked.avoid_zones = core.zone_failures.failing(now)
        return self._next(now)

    def _retry(self, result: AttemptResult, now: float) -> Step:
        late = self._too_late(now)
        if late is not None:
            return self._refuse(late)
        if not self._may_retry(now):
            return self._refuse(reason_after(result.outcome), result.retry_after_seconds)
        return self._next(now)

    def _may_retry(self, now: float) -> bool:
        """Take one retry: of this request's attempts, over all tiers, and of the budget."""
        if self._facts.attempts_used + self._retries + 1 >= self._core.settings.retry_max:
            return False
        if not self._core.budget.take(now):
            return False
        self._retries += 1
        return True

    def _exclude(self, endpoint: Endpoint | None, region: str) -> None:
        if endpoint is not None:
            self._asked.tried.append(endpoint)
        elif region:
            self._excluded = (*self._excluded, region)

    # Where next

    def _next(self, now: float) -> Step:
        late = self._too_late(now)
        if late is not None:
            return self._refuse(late)
        core, asked, facts = self._core, self._asked, self._facts
        stay = bool(facts.hop_from)
        weak: tuple[str, Here] | None = None
        forbidden = True
        excluded = (*self._excluded, *core.failing_regions(now)) if core.any_failing else self._excluded
        for model in self._versions:
            placement = core.placing.place(asked, model, excluded, now, stay=stay)
            if isinstance(placement, Nowhere) and excluded != self._excluded:
                placement = core.placing.place(asked, model, self._excluded, now, stay=stay)
            if isinstance(placement, Here):
                if placement.tier < SUSPECT:
                    return self._send_here(placement, model, now)
                weak = weak or (model, placement)
            elif isinstance(placement, There):
                return self._send_there(placement.region, model, now)
            else:
                forbidden = forbidden and placement.forbidden
        if weak is not None:
            model, here = weak
            if len(self._versions) > 1:  # deciding on other versions has changed what is expected of this one
                again = core.placing.place(asked, model, excluded, now, stay=True)
                here = again if isinstance(again, Here) else here
            return self._send_here(here, model, now)
        return self._nowhere(forbidden, now)

    def _nowhere(self, forbidden: bool, now: float) -> Step:
        """No place can take it now: wait if one is about to, else refuse."""
        if forbidden:
            return self._refuse(RejectReason.REGION_NOT_ALLOWED)
        core = self._core
        reason = reason_after(self._last)
        pause = core.pause_over(self._versions, now)
        left = self._seconds_left(now)
        may_wait = self._waits < core.settings.wait_max_count
        if pause is not None:
            seconds = pause * (1.0 + 0.1 * core.rng.random()) + 0.001
            if may_wait and seconds < left and now + seconds - self._started <= core.settings.wait_max_seconds:
                return self._wait(seconds)
            return self._refuse(RejectReason.OVERLOADED if self._last is None else reason, pause)
        if (self._asked.tried or self._excluded) and may_wait:
            seconds = BACKOFF_SECONDS * 2.0**self._waits * (0.5 + core.rng.random())
            if seconds < left and self._may_retry(now):
                return self._wait(seconds)
        return self._refuse(reason)

    def _wait(self, seconds: float) -> Step:
        """Those that failed once may be tried again afterwards: none else is left (case-R02)."""
        self._waits += 1
        self._asked.tried.clear()
        self._asked.avoid_zones = ()
        self._excluded = ()
        return WaitFor(seconds)

    def _send_here(self, here: Here, model: str, now: float) -> Step:
        core, asked, seat = self._core, self._asked, here.seat
        endpoint, settings = seat.endpoint, core.settings
        ticket = core.view.take(seat, asked.input_tokens, asked.output_tokens, now, self._revoke)
        decode = seat.step * asked.output_tokens
        expected = seat.wait + seat.prefill_floor + seat.prefill_per_token * asked.input_tokens
        ticket.expected_seconds = expected if self._facts.stream else expected + decode
        if asked.session is not None:
            core.placing.note_session(seat, asked)
        self._ticket = ticket
        self._endpoint = endpoint
        self._region = core.view.region
        self._model = model
        self._made += 1
        target = seat.target
        if target is None:
            target = seat.target = EndpointTarget(
                endpoint.uid,
                endpoint.name,
                endpoint.url,
                endpoint.zone,
                endpoint.node.name,
                endpoint.gpu_uuids,
                seat.served_as,
                endpoint.api_key,
            )
        left = self._seconds_left(now, 0.0 if self._facts.stream else PLAIN_PATIENCE * decode)
        limit = settings.first_byte_timeout_seconds
        if not self._facts.stream:
            limit += PLAIN_PATIENCE * decode
        return SendToEndpoint(
            self._facts.attempts_used + self._made,
            target,
            model,
            min(settings.connect_timeout_seconds, left),
            min(limit, left),
        )

    def _send_there(self, region: str, model: str, now: float) -> Step:
        core = self._core
        peer = core.view.peers.get(region)
        if peer is not None:
            peer.pending[self._revoke] = None
        self._peer = peer
        self._endpoint = None
        self._region = region
        self._model = model
        self._made += 1
        known = core.view.intent.regions.get(region)
        settings = core.settings
        decode = 0.0 if self._facts.stream else PLAIN_PATIENCE * self._asked.output_tokens * core.typical_step
        left = self._seconds_left(now, decode)
        return SendToRegion(
            self._facts.attempts_used + self._made,
            region,
            core.view.peers.addresses(region, known.public_url if known is not None else "", now),
            model,
            min(settings.connect_timeout_seconds * REGION_CONNECT_FACTOR, left),
            min(settings.first_byte_timeout_seconds + decode, left),
        )

    # Time

    def _seconds_left(self, now: float, extra: float = 0.0) -> float:
        """Until the earliest of the limits for a first byte. ``extra`` is what an answer in one piece gets on top."""
        facts = self._facts
        left = min(
            facts.first_byte_deadline_seconds + extra, facts.total_seconds, self._core.settings.total_timeout_seconds
        )
        if facts.deadline_seconds is not None and facts.deadline_seconds < left:
            left = facts.deadline_seconds
        return max(0.001, left - (now - self._started))

    def _too_late(self, now: float) -> RejectReason | None:
        facts = self._facts
        passed = now - self._started
        if facts.deadline_seconds is not None and passed >= facts.deadline_seconds:
            return RejectReason.DEADLINE
        if passed and passed >= min(facts.first_byte_deadline_seconds, facts.total_seconds):
            return RejectReason.UPSTREAM_TIMEOUT
        return None

    # Giving back

    def _settle(self, result: AttemptResult, now: float) -> None:
        """The present attempt is over: release what it held, and let its outcome count for or against its place."""
        self._leave_peer()
        ticket = self._ticket
        if ticket is None:
            return
        self._ticket = None
        self._core.view.release(ticket, now)
        self._core.on_outcome(ticket.endpoint, result, now)

    def _leave_peer(self) -> None:
        if self._peer is not None:
            self._peer.pending.pop(self._revoke, None)
            self._peer = None

    def _learn(self, ticket: Ticket, usage: Usage, now: float) -> None:
        ticket.seat.pool.learn_lengths(usage.prompt_tokens, usage.completion_tokens)
        if self._facts.stream:
            first = self._first_at
            matters = first is not None and learning.on_streamed(ticket, first, usage, now)
        else:
            matters = learning.on_whole(ticket, usage, self._asked.output_tokens, now)
        if matters:
            self._core.view.changed(ticket.endpoint)

    def _refuse(self, reason: RejectReason, retry_after_seconds: float | None = None) -> Reject:
        self._reject = reason
        return reject(reason, self._core.rng.random(), retry_after_seconds)
