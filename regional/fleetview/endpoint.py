"""One row of the view: an endpoint, the work it has, and how it stands. Written by the view and by health only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, EngineLoad, ServedModel
from fleet.intent import HoldState
from regional.health.breaker import Breaker, BreakerState

if TYPE_CHECKING:
    from regional.fleetview.node import Node
    from regional.fleetview.pool import Seat

HISTORY_STEP_SECONDS = 0.025
HISTORY_LENGTH = 128
"""Own in-flight over the last three seconds or more, to know what it was when the engine took a sample."""


class Ticket:
    """Work taken at an endpoint: one attempt. Given back exactly once, whatever happens (case-F01)."""

    __slots__ = (
        "batch",
        "context_tokens",
        "endpoint",
        "expected_seconds",
        "input_tokens",
        "read",
        "released",
        "revoke",
        "seat",
        "sent_at",
        "step",
        "trial",
        "wait",
    )

    def __init__(
        self,
        seat: Seat,
        input_tokens: float,
        context_tokens: float,
        sent_at: float,
        revoke: Callable[[], None] | None,
    ) -> None:
        self.seat = seat
        self.endpoint = seat.endpoint
        self.input_tokens = input_tokens
        self.context_tokens = context_tokens
        self.sent_at = sent_at
        self.revoke = revoke
        self.batch = seat.endpoint.inflight
        """In flight there when it was sent, itself included."""
        self.wait = seat.wait
        """Expected wait there when it was sent."""
        self.step = seat.step
        """Expected decode step there when it was sent."""
        self.expected_seconds = 0.0
        """Until its first byte, as expected when it was sent."""
        self.trial = False
        """Let through half open."""
        self.read = False
        """Its first byte is in, so its prompt has been read."""
        self.released = False


class Endpoint:
    """What is known of one endpoint. Identity is ``uid``; the object lives while it is known or has work of ours."""

    __slots__ = (
        "answered_at",
        "api_key",
        "auth_failed_until",
        "banned_until",
        "breaker",
        "context_limit",
        "counters_move",
        "dead",
        "dead_cause",
        "dead_since",
        "declared",
        "dirty",
        "engine_incarnation",
        "gone",
        "gpu_down",
        "gpu_problem",
        "gpu_products",
        "gpu_uuids",
        "gpus_known",
        "history",
        "hold",
        "kind",
        "kv_tokens",
        "last_ok_at",
        "max_inflight",
        "models",
        "name",
        "network_seconds",
        "node",
        "others",
        "others_unread",
        "own",
        "own_context",
        "own_unread",
        "pace_decode",
        "pace_prefill",
        "paced",
        "paced_at",
        "pending",
        "phase",
        "priced_decode",
        "priced_prefill",
        "progress_at",
        "ramp_limit",
        "rated_at",
        "reason",
        "report",
        "reported",
        "reported_auth_failed",
        "sample",
        "sample_factor",
        "sampled_at",
        "seats",
        "seen_at",
        "silent",
        "slots",
        "slow_start_from",
        "speed_factor",
        "suspect_until",
        "tensor_parallel",
        "uid",
        "url",
        "waiting_excess",
        "zone",
    )

    def __init__(self, uid: str, name: str, node: Node, zone: str, now: float) -> None:
        self.uid = uid
        self.name = name
        self.node = node
        self.zone = zone
        self.kind = EngineKind.OPENAI
        self.url = ""
        self.api_key = ""
        self.models: tuple[ServedModel, ...] = ()
        self.gpu_uuids: tuple[str, ...] = ()
        self.gpus_known = False
        self.gpu_products: tuple[str, ...] = ()
        self.tensor_parallel = 1
        self.max_inflight: int | None = None
        self.kv_tokens: int | None = None
        self.context_limit: int | None = None
        self.engine_incarnation = 0
        self.declared = False
        """Written down in intent: stays known while it is, reported or not."""
        self.reported = False
        self.report: EndpointReport | None = None
        """The last one accepted."""
        self.gone = False
        """No longer part of the fleet; kept until our work there is over."""
        self.phase = EndpointPhase.READY
        self.reason = ""
        self.reported_auth_failed = False
        # Our own work: exact
        self.own = 0
        self.own_unread = 0.0
        self.own_context = 0.0
        self.pending: dict[Ticket, None] = {}
        """Attempts without a first byte, oldest first."""
        self.history: deque[tuple[float, int]] = deque(maxlen=HISTORY_LENGTH)
        # Others' work: estimated
        self.others = 0
        self.others_unread = 0.0
        self.waiting_excess = 0
        self.sample = EngineLoad()
        self.sampled_at: float | None = None
        self.sample_factor = 1.0
        """Widening by the sample's age times the risk of a full KV cache."""
        self.slots = 1_000_000
        # How it stands
        self.hold: HoldState | None = None
        self.gpu_down = False
        self.gpu_problem = ""
        self.silent = False
        """Reported unreachable by its watcher, and not proven alive since."""
        self.suspect_until = 0.0
        """A connection to it has failed: after all others until then, or until it answers."""
        self.dead = False
        self.dead_since = 0.0
        self.dead_cause = ""
        """``node``: it was silent when its node was; ``endpoint``: it alone did not answer."""
        self.banned_until = 0.0
        self.auth_failed_until = 0.0
        self.breaker = Breaker()
        self.slow_start_from: float | None = None
        self.ramp_limit = 1_000_000
        """Requests at once beyond which a newcomer is dearer."""
        # What it showed
        self.seen_at = now
        self.answered_at = -1e18
        self.last_ok_at = -1e18
        self.progress_at = -1e18
        """When a first byte, a byte of a stream or a moved counter was last seen."""
        self.counters_move = False
        """Its token counters were seen to grow while requests ran, so that standing still means something."""
        self.pace_prefill = 1.0
        self.pace_decode = 1.0
        """Observed time over expected; 2.0 is half as fast as its product promises."""
        self.priced_prefill = 1.0
        self.priced_decode = 1.0
        """The paces that the present prices rest on."""
        self.paced = False
        """It has shown a pace of its own; until then its peers' counts."""
        self.paced_at = now
        self.speed_factor = 1.0
        """Slowed down by throttling, as its devices report it; 1.0 is not."""
        self.network_seconds = 0.0
        self.seats: list[Seat] = []
        self.rated_at = -1e18
        """When its standing and speeds were last worked out."""
        self.dirty = 0
        """What has to be worked out anew before the next decision: 0 nothing, 1 price, 2 all."""

    @property
    def inflight(self) -> int:
        """Best estimate of everything in flight there, queued in the engine included."""
        return self.own + self.others

    def proven(self, now: float, seconds: float) -> bool:
        """It answered this router itself this lately."""
        return now - max(self.last_ok_at, self.answered_at) <= seconds

    def timed(self, now: float) -> bool:
        """Whether its standing changes with time alone."""
        return (
            self.banned_until > now
            or self.suspect_until > now
            or self.auth_failed_until > now
            or self.slow_start_from is not None
            or self.breaker.state is BreakerState.OPEN
        )

    def own_at(self, when: float) -> int:
        """Own in-flight at a moment of the last seconds."""
        for t, count in reversed(self.history):
            if t <= when:
                return count
        return self.history[0][1] if self.history else self.own

    def note_history(self, now: float) -> None:
        """Remember own in-flight; at most one entry per step, the newest kept."""
        history = self.history
        if history and now - history[-1][0] < HISTORY_STEP_SECONDS:
            history[-1] = (history[-1][0], self.own)
        else:
            history.append((now, self.own))

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r} in {self.zone!r}, own={self.own})"
