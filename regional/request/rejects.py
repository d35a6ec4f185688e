"""Refusals in words for clients: no internal address, name of a machine or other tenant's model ever stands in one."""

from __future__ import annotations

from regional.request.steps import Outcome, Reject, RejectReason

RETRY_AFTER_SECONDS = 1.0

_MESSAGES = {
    RejectReason.MODEL_NOT_FOUND: "The model does not exist or you do not have access to it.",
    RejectReason.MODEL_NOT_ALLOWED: "This key may not use the model.",
    RejectReason.WRONG_TASK: "The model does not support this kind of request.",
    RejectReason.REGION_NOT_ALLOWED: "No place that your data may be processed in can serve this request.",
    RejectReason.CONTEXT_TOO_LONG: "Prompt and answer are longer than the model's context.",
    RejectReason.NO_ENDPOINT: "No replica of the model is available at the moment.",
    RejectReason.OVERLOADED: "All replicas of the model are overloaded at the moment.",
    RejectReason.UPSTREAM_FAILED: "The model server failed to answer.",
    RejectReason.UPSTREAM_AUTH: "The model server refused the router's credentials.",
    RejectReason.UPSTREAM_TIMEOUT: "The model server did not answer in time.",
    RejectReason.DEADLINE: "The request's deadline has passed.",
    RejectReason.SECOND_HOP: "A request is passed on between regions at most once.",
}

_NO_USE_RETRYING = frozenset(
    {
        RejectReason.MODEL_NOT_FOUND,
        RejectReason.MODEL_NOT_ALLOWED,
        RejectReason.WRONG_TASK,
        RejectReason.REGION_NOT_ALLOWED,
        RejectReason.CONTEXT_TOO_LONG,
        RejectReason.DEADLINE,
        RejectReason.SECOND_HOP,
    }
)
_RETRY_LATER = frozenset({RejectReason.NO_ENDPOINT, RejectReason.OVERLOADED})

_AFTER = {
    Outcome.OVERLOADED: RejectReason.OVERLOADED,
    Outcome.AUTH_FAILED: RejectReason.UPSTREAM_AUTH,
    Outcome.TIMEOUT_FIRST_BYTE: RejectReason.UPSTREAM_TIMEOUT,
    Outcome.TIMEOUT_TOTAL: RejectReason.UPSTREAM_TIMEOUT,
    Outcome.TIMEOUT_IDLE: RejectReason.UPSTREAM_TIMEOUT,
    Outcome.UPSTREAM_ERROR: RejectReason.UPSTREAM_FAILED,
    Outcome.BAD_RESPONSE: RejectReason.UPSTREAM_FAILED,
    Outcome.RESET: RejectReason.UPSTREAM_FAILED,
    Outcome.STREAM_BROKEN: RejectReason.UPSTREAM_FAILED,
    Outcome.STALE_CONNECTION: RejectReason.UPSTREAM_FAILED,
}


def reason_after(outcome: Outcome | None) -> RejectReason:
    """What to say when nothing is left to try after an attempt that ended so; None when none was made."""
    return RejectReason.NO_ENDPOINT if outcome is None else _AFTER.get(outcome, RejectReason.NO_ENDPOINT)


def reject(reason: RejectReason, chance: float, retry_after_seconds: float | None = None) -> Reject:
    """A refusal. ``chance`` in [0, 1) spreads the retries of those who are refused together."""
    if reason in _NO_USE_RETRYING:
        return Reject(reason, _MESSAGES[reason], None, False)
    if reason in _RETRY_LATER or retry_after_seconds is not None:
        base = RETRY_AFTER_SECONDS if retry_after_seconds is None else max(0.05, retry_after_seconds)
        return Reject(reason, _MESSAGES[reason], round(base * (1.0 + 0.5 * chance), 3), None)
    return Reject(reason, _MESSAGES[reason])
