"""Errors of the admin API: RFC 9457 problem details with a stable ``type``, made in one place.

Problem                  an answer other than success, on purpose
InvalidInput             422, every field at fault named
Unavailable              503 with Retry-After; nothing has changed
anything else            500; the cause is in the log only
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from controlplane.store.database import RETRY_AFTER_SECONDS
from fleet.errors import FieldError, InvalidInput, Unavailable
from fleet.process.logs import get_logger
from fleet.resources.kinds import KINDS

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:headrace:problem:"

log = get_logger("controlplane.api")

TITLES: dict[str, tuple[int, str]] = {
    "bad-request": (400, "The request cannot be read"),
    "unauthenticated": (401, "A valid bearer token is needed"),
    "forbidden": (403, "This token may not do that"),
    "not-found": (404, "There is no such thing"),
    "method-not-allowed": (405, "This cannot be done here"),
    "already-exists": (409, "The name is taken"),
    "referenced": (409, "Other resources refer to it"),
    "agent-reported": (409, "Its agent reports it"),
    "idempotency-running": (409, "The first call with this Idempotency-Key is still running"),
    "conflict": (409, "It clashes with what is there"),
    "gone": (410, "That version is no longer in the history"),
    "precondition-failed": (412, "It has changed meanwhile"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The body is not JSON"),
    "invalid": (422, "Something in the request is wrong"),
    "idempotency-mismatch": (422, "This Idempotency-Key came with another request before"),
    "too-many-watches": (429, "Too many watches are open"),
    "internal": (500, "Something went wrong here"),
    "unavailable": (503, "It cannot be done now"),
}
_OF_STATUS = {
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
}


class ProblemError(BaseModel):
    """One thing that is wrong. ``pointer`` is a JSON pointer into the body, or ``/query/…``, ``/path/…``, ``/header/…``."""

    pointer: str
    reason: str


class ProblemDetails(BaseModel):
    """RFC 9457."""

    type: str = Field(description="Stable identifier of the kind of problem", examples=[_TYPE + "not-found"])
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemError]
    request_id: str


class Problem(Exception):
    """``slug`` is a key of TITLES. ``extra`` adds members to the answer."""

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.slug = slug
        self.status = TITLES[slug][0]
        self.detail = detail
        self.errors = list(errors)
        self.headers = headers or {}
        self.extra = extra or {}
        super().__init__(detail)


def invalid(pointer: str, reason: str) -> Problem:
    """One field is wrong."""
    return Problem("invalid", reason, errors=[FieldError(pointer, reason)])


def as_problem(error: Exception) -> Problem:
    """What the caller is told of ``error``."""
    match error:
        case Problem():
            return error
        case InvalidInput():
            return Problem("invalid", str(error), errors=error.errors)
        case Unavailable():
            return Problem(
                "unavailable",
                "The database cannot be reached or written now; nothing has changed.",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        case RequestValidationError():
            errors = [FieldError(_pointer(e["loc"]), _plain(e["msg"])) for e in error.errors()]
            slug = "bad-request" if any(e["type"] == "json_invalid" for e in error.errors()) else "invalid"
            return Problem(slug, "; ".join(str(e) for e in errors), errors=errors)
        case HTTPException():
            slug = _OF_STATUS.get(error.status_code, "internal" if error.status_code >= 500 else "bad-request")
            return Problem(slug, str(error.detail), headers=dict(error.headers or {}))
        case _:
            return Problem("internal", "An internal error; the request id leads to it in the log.")


def problem_response(problem: Problem, path: str, request_id: str) -> JSONResponse:
    status, title = TITLES[problem.slug]
    body = {
        "type": _TYPE + problem.slug,
        "title": title,
        "status": status,
        "detail": problem.detail,
        "instance": path,
        "errors": [{"pointer": e.pointer, "reason": e.reason} for e in problem.errors],
        "request_id": request_id,
    } | problem.extra
    return JSONResponse(body, status, headers=problem.headers, media_type=MEDIA_TYPE)


def install(app: FastAPI, on_refused: Callable[[Request, Problem], Awaitable[None]]) -> None:
    """Answer every error of ``app`` as a problem. ``on_refused`` hears of those below 500 before the caller does."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        problem = as_problem(error)
        request_id: str = request.scope.get("state", {}).get("request_id", "")
        if problem.slug == "internal":
            log.error("request_failed", path=request.scope["path"], request_id=request_id, exc_info=error)
        elif problem.slug == "unavailable":
            log.warning("database_unavailable", path=request.scope["path"], request_id=request_id, error=str(error))
        else:
            await on_refused(request, problem)
        return problem_response(problem, request.scope["path"], request_id)

    for kind in (Problem, InvalidInput, Unavailable, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of the problems that an operation may answer with; those that any operation may are always in."""
    described: dict[int | str, dict[str, Any]] = {}
    for status in sorted({400, 401, 403, 413, 422, 503, *statuses}):
        titles = " / ".join(title for code, title in TITLES.values() if code == status)
        described[status] = {
            "description": titles,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
    return described


def _pointer(location: Sequence[int | str]) -> str:
    parts = [str(p).replace("~", "~0").replace("/", "~1") for p in location]
    if parts and parts[0] == "body":
        parts = parts[1:]
        if (
            len(parts) > 1 and parts[1] in KINDS
        ):  # the branch of the union of kinds that was tried is no part of the document
            del parts[1]
    return "".join("/" + p for p in parts)


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")
