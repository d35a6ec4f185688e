"""Errors in the shape OpenAI clients expect, and the one table from reasons to status codes."""

from __future__ import annotations

import http
import math
import random
from dataclasses import dataclass, field, replace

import msgspec

from regional.request.steps import Reject, RejectReason

REASON_PHRASES = {s.value: s.phrase.encode() for s in http.HTTPStatus} | {499: b"Client Closed Request"}
_JITTER = random.Random()  # noqa: S311  # spreads clients' retries; nothing rests on its being hard to guess
_DEFAULT_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the gateway gives by itself."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    retry_after_seconds: float | None = None
    should_retry: bool | None = None
    """None lets the status speak to the client's SDK."""
    headers: tuple[bytes, ...] = field(default=())
    """Further header lines, each with its line end."""

    def body(self) -> bytes:
        return error_json(self.message, self.type, self.code, self.param)

    def header_lines(self) -> bytes:
        lines = list(self.headers)
        if self.should_retry is not None:
            lines.append(b"x-should-retry: %s\r\n" % (b"true" if self.should_retry else b"false"))
        wait = self.retry_after_seconds
        if wait is None and self.status in (429, 503) and self.should_retry is not False:
            wait = _DEFAULT_RETRY_SECONDS
        if wait is not None:
            # Up to a quarter later, each caller differently, so that those refused together do not return together.
            wait *= 1 + _JITTER.random() / 4
            lines.append(b"retry-after-ms: %d\r\nretry-after: %d\r\n" % (wait * 1000, max(1, math.ceil(wait))))
        return b"".join(lines)


def error_json(message: str, kind: str, code: str, param: str | None = None) -> bytes:
    """The error object with all four keys."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


_INVALID = "invalid_request_error"

UNAUTHORIZED = Refusal(401, _INVALID, "invalid_api_key", "The API key is missing, unknown, expired or revoked.")
UNKNOWN_PATH = Refusal(404, _INVALID, "unknown_path", "There is nothing at this path.")
TOO_LARGE = Refusal(413, _INVALID, "request_too_large", "The request body is larger than this service accepts.")
HEAD_TOO_LARGE = Refusal(
    431, _INVALID, "headers_too_large", "The request's headers are larger than this service accepts."
)
MALFORMED = Refusal(400, _INVALID, "malformed_request", "The request is not valid HTTP/1.1.")
TOO_SLOW = Refusal(408, "timeout_error", "request_timeout", "The request was not received in time.")
CONTENT_CODING = Refusal(
    415, _INVALID, "unsupported_content_encoding", "Send the body without a content coding.", should_retry=False
)
SESSION_TOO_LONG = Refusal(400, _INVALID, "invalid_session", "The session id is too long.", "x-session-id")
TOO_BUSY = Refusal(
    503, "server_error", "overloaded", "The service holds as many requests as it can; try again shortly."
)
INTERNAL = Refusal(
    500, "server_error", "internal_error", "The service failed; the request id helps its operator to find out why."
)
LEAVING = Refusal(503, "server_error", "shutting_down", "This router is shutting down; try again.")

_REJECTS: dict[RejectReason, Refusal] = {
    RejectReason.MODEL_NOT_FOUND: Refusal(404, _INVALID, "model_not_found", "", "model", should_retry=False),
    RejectReason.MODEL_NOT_ALLOWED: Refusal(
        403, "permission_error", "model_not_allowed", "", "model", should_retry=False
    ),
    RejectReason.WRONG_TASK: Refusal(400, _INVALID, "unsupported_parameter", "", "model", should_retry=False),
    RejectReason.REGION_NOT_ALLOWED: Refusal(403, "permission_error", "region_not_allowed", "", should_retry=False),
    RejectReason.CONTEXT_TOO_LONG: Refusal(
        400, _INVALID, "context_length_exceeded", "", "messages", should_retry=False
    ),
    RejectReason.NO_ENDPOINT: Refusal(503, "server_error", "no_healthy_endpoint", ""),
    RejectReason.OVERLOADED: Refusal(429, "requests", "overloaded", ""),
    RejectReason.UPSTREAM_FAILED: Refusal(502, "server_error", "upstream_reset", ""),
    RejectReason.UPSTREAM_AUTH: Refusal(502, "server_error", "upstream_auth", "", should_retry=False),
    RejectReason.UPSTREAM_TIMEOUT: Refusal(504, "timeout_error", "upstream_timeout", ""),
    RejectReason.DEADLINE: Refusal(504, "timeout_error", "upstream_timeout", "", should_retry=False),
    RejectReason.SECOND_HOP: Refusal(403, "permission_error", "second_hop", "", should_retry=False),
}


def refusal_of(reject: Reject) -> Refusal:
    """The answer to a request that the core rejected."""
    base = _REJECTS[reject.reason]
    return replace(
        base,
        message=reject.message,
        retry_after_seconds=reject.retry_after_seconds,
        should_retry=base.should_retry if reject.should_retry is None else reject.should_retry,
    )


def invalid_json(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, _INVALID, "invalid_json", message, param)


STREAM_BROKEN_EVENT = b"data: " + error_json("The answer broke off.", "server_error", "upstream_reset") + b"\n\n"
STREAM_TIMEOUT_EVENT = (
    b"data: " + error_json("The answer took too long.", "timeout_error", "upstream_timeout") + b"\n\n"
)
"""In-band errors after the first byte. The connection closes behind them; a ``[DONE]`` is never made up (case-S09)."""
