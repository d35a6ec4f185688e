"""The whole vocabulary between the gateway and the life of a request: outcomes go in, steps come out.

The gateway (sockets) drives; the life (no sockets, no clock) decides:

    step = core.begin(facts, now)
    loop:
        SendToEndpoint / SendToRegion  -> the gateway makes the attempt; ``life.on_headers`` when a good status is in,
                                          ``life.on_first_byte`` when the first body byte is about to go to the client,
                                          or ``life.on_attempt_failed`` -> the next step
        WaitFor                        -> sleep, then ``life.on_wait_over`` -> the next step
        Reject                         -> answer with the error; over
    ``life.on_end`` exactly once on every path (``Reject`` included): releases all that was taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.request import Usage
from fleet.value import value


class Outcome(StrEnum):
    """How one attempt, or a whole request, came out. ``moved`` outcomes may be tried elsewhere while no byte has been sent."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """The engine judged the request (4xx) and its answer was passed on."""
    CONNECT_FAILED = "connect_failed"
    STALE_CONNECTION = "stale_connection"
    """A reused connection was closed before any response byte: nothing was processed (case-R10)."""
    RESET = "reset"
    """The connection broke before a response."""
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_BYTE = "timeout_first_byte"
    OVERLOADED = "overloaded"
    """The engine said 429 or 503; the request moves on."""
    UPSTREAM_ERROR = "upstream_error"
    """The engine said another 5xx."""
    BAD_RESPONSE = "bad_response"
    """Not HTTP, or not what was asked for (an HTML page with status 200)."""
    AUTH_FAILED = "auth_failed"
    """The engine refused *our* credentials (401): condition EngineAuthFailed."""
    DECLARED_DEAD = "declared_dead"
    """The place was declared dead while the attempt had no byte yet."""
    REFUSED_SPILL = "refused_spill"
    """A peer region had no headroom after all; not a failure of anything."""
    STREAM_BROKEN = "stream_broken"
    """The answer broke after its first byte: an in-band error, never a retry."""
    TIMEOUT_IDLE = "timeout_idle"
    TIMEOUT_TOTAL = "timeout_total"
    ABORTED = "aborted"
    """The client left."""
    REJECTED = "rejected"

    @property
    def connection_failure(self) -> bool:
        """The place did not take the request: moving on is a *failover*, outside the retry budget."""
        return self in _CONNECTION_FAILURES


_CONNECTION_FAILURES = frozenset(
    {
        Outcome.CONNECT_FAILED,
        Outcome.STALE_CONNECTION,
        Outcome.RESET,
        Outcome.TIMEOUT_CONNECT,
        Outcome.DECLARED_DEAD,
        Outcome.REFUSED_SPILL,
    }
)


@dataclass(frozen=True, slots=True)
class EndpointTarget:
    """All the gateway needs to send to an endpoint and to say where it went."""

    uid: str
    name: str
    url: str
    """Scheme, host and port, no path."""
    zone: str
    node: str
    gpu_uuids: tuple[str, ...]
    served_as: str
    api_key: str = ""

    def __repr__(self) -> str:
        return f"EndpointTarget({self.name!r} at {self.url!r}, zone {self.zone!r})"


@value
class SendToEndpoint:
    """Make one attempt at an endpoint. Its in-flight count is already taken."""

    attempt: int
    """From 1, over the whole request and all tiers."""
    target: EndpointTarget
    model: str
    """Our name of the model version chosen; the answer's ``model`` is put back to what the client asked for."""
    connect_timeout_seconds: float
    first_byte_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class SendToRegion:
    """Make one attempt through a router of a peer region: a signed hop. At most one hop per request."""

    attempt: int
    region: str
    addresses: tuple[str, ...]
    """Base URLs of its routers, best first."""
    model: str
    connect_timeout_seconds: float
    first_byte_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Nothing can be done now, but may be in a moment (an engine asked for a pause, a node is being probed)."""

    seconds: float


class RejectReason(StrEnum):
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    WRONG_TASK = "wrong_task"
    REGION_NOT_ALLOWED = "region_not_allowed"
    """Residency or the tenant's regions leave no place."""
    CONTEXT_TOO_LONG = "context_length_exceeded"
    NO_ENDPOINT = "no_healthy_endpoint"
    OVERLOADED = "overloaded"
    """All places that may serve it refused for load."""
    UPSTREAM_FAILED = "upstream_reset"
    UPSTREAM_AUTH = "upstream_auth"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    DEADLINE = "deadline"
    """The caller's own deadline has passed."""
    SECOND_HOP = "second_hop"


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer with an error; ``message`` is for the client and names no internal address."""

    reason: RejectReason
    message: str
    retry_after_seconds: float | None = None
    should_retry: bool | None = None
    """None lets the status speak; False adds ``x-should-retry: false``."""


Step = SendToEndpoint | SendToRegion | WaitFor | Reject


@value
class AttemptResult:
    """What one attempt came to, told by the gateway."""

    outcome: Outcome
    status: int | None = None
    retry_after_seconds: float | None = None
    detail: str = ""
    """For the operator's log only."""
    attempts: int = 1
    """Attempts this one stood for: those of the peer region when it was a hop that says how many it made (case-R01)."""


@value
class RequestRecord:
    """What is left of a request when it is over: for metrics and logs, later for the usage journal."""

    request_uid: str
    tenant_uid: str
    key_uid: str
    model: str
    sla_class: str
    outcome: Outcome
    entry_region: str
    serving_region: str
    zone: str
    node: str
    endpoint: str
    gpu_uuids: tuple[str, ...]
    attempts: int
    failovers: int
    retries: int
    seconds: float
    first_byte_seconds: float | None
    usage: Usage
    reject_reason: RejectReason | None = None
    origin: str = ""
    """Country of the client, else its continent; empty when neither is known."""
