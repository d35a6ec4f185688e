"""Who calls, and what they may do. Deny by default, twice:

* no request gets past :class:`Gate` without a valid token, unless its path is one of a short, fixed list;
* no route runs without a decision of its own (:func:`access`); a route that has none is refused to everybody.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from fastapi import Request
from sqlalchemy import exists, or_, select
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.api.context import ApiContext
from controlplane.api.problems import Problem, as_problem, problem_response
from controlplane.tables import AdminToken
from fleet.process.health import HEALTH_PATHS

MAX_TOKEN_CHARS = 512
MAX_BODY_BYTES = 16 * 1024 * 1024
PUBLIC_PATHS = frozenset({*HEALTH_PATHS, "/metrics", "/openapi.json", "/docs", "/api/v1/version"})
"""What anybody may ask: nothing of it depends on who asks or shows what users have written."""

F = TypeVar("F", bound=Callable[..., Any])


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    ROUTER = "router"
    """A regional router; not a step between the others."""


_INCLUDES = {
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.OPERATOR: frozenset({Role.VIEWER, Role.OPERATOR}),
    Role.ADMIN: frozenset({Role.VIEWER, Role.OPERATOR, Role.ADMIN}),
    Role.ROUTER: frozenset({Role.ROUTER}),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a valid token."""

    uid: str
    name: str
    role: Role
    region: str = ""
    """Of a router token."""

    def may(self, role: Role) -> bool:
        return role in _INCLUDES[self.role]


def access(*roles: Role) -> Callable[[F], F]:
    """Decorates an endpoint function: whoever has (or includes) one of ``roles`` may call it. Every route needs one."""

    def mark(endpoint: F) -> F:
        endpoint.__access__ = frozenset(roles)  # type: ignore[attr-defined]
        return endpoint

    return mark


def principal(request: Request) -> Principal:
    """The caller. Only in routes behind the gate."""
    who: Principal = request.scope["state"]["principal"]
    return who


def request_id(request: Request) -> str:
    """Ours, never the client's."""
    return str(request.scope["state"]["request_id"])


def authorise(request: Request) -> None:
    """The application's dependency: runs before every route's own code. Raises Problem (403)."""
    if request.scope["path"] in PUBLIC_PATHS:
        return
    roles: Collection[Role] = getattr(request.scope.get("endpoint"), "__access__", ())
    who = principal(request)
    if not any(who.may(role) for role in roles):
        wanted = " or ".join(sorted(roles)) or "no role at all"
        raise Problem("forbidden", f"this wants the role {wanted}; the token {who.name} has {who.role}")


class Authenticator:
    """Knows tokens by their digests. One indexed query a call, so a revoked token is refused at once."""

    def __init__(self, context: ApiContext) -> None:
        """Its bootstrap token is an admin as long as there is no valid admin token."""
        self._context = context

    async def who(self, token: str) -> Principal | None:
        """The token's owner; None for one that is unknown, revoked or expired. Raises DatabaseUnavailable."""
        digests = self._context.secrets.token_digests(token)
        now = self._context.now()
        valid = or_(AdminToken.expires_at.is_(None), AdminToken.expires_at > now)
        async with self._context.database.read() as session:
            found = select(AdminToken.uid, AdminToken.name, AdminToken.role, AdminToken.region)
            row = (await session.execute(found.where(AdminToken.digest.in_(digests), valid))).first()
            if row is not None:
                return Principal(row.uid, row.name, Role(row.role), row.region or "")
            bootstrap = self._context.bootstrap_admin_token
            if not bootstrap or not hmac.compare_digest(token.encode(), bootstrap.encode()):
                return None
            admins = select(exists().where(AdminToken.role == Role.ADMIN.value, valid))
            if (await session.execute(admins)).scalar_one():
                return None
        return Principal("bootstrap", "bootstrap", Role.ADMIN)


_SECURITY_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]


class Gate:
    """The outermost layer: gives a request its id, and lets it in only with a valid token, before any of its body is read."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, public: Collection[str] = PUBLIC_PATHS) -> None:
        self._app = app
        self._authenticator = authenticator
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        own_id = uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = own_id

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                extra = [(n, v) for n, v in _SECURITY_HEADERS if n not in present]
                message["headers"] = [*message["headers"], *extra, (b"x-request-id", own_id.encode())]
            await send(message)

        if scope["path"] not in self._public:
            try:
                state["principal"] = await self._caller(scope)
                _bounded(scope)
            except Exception as error:
                problem = as_problem(error)
                if problem.slug == "internal":
                    raise
                await problem_response(problem, scope["path"], own_id)(scope, receive, send_marked)
                return
        await self._app(scope, _counted(receive), send_marked)

    async def _caller(self, scope: Scope) -> Principal:
        found = await self._authenticator.who(bearer(scope))
        if found is None:
            raise _refused("the token is not known, revoked or expired")
        return found


def _bounded(scope: Scope) -> None:
    """Raises Problem (413) for a body that says itself that it is too large."""
    said = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
    if any(value.isdigit() and int(value) > MAX_BODY_BYTES for value in said):
        raise Problem("too-large", f"a body has at most {MAX_BODY_BYTES} bytes")


def _counted(receive: Receive) -> Receive:
    """``receive`` that gives up on a body that turns out too large."""
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes")
        return message

    return counted


def bearer(scope: Scope) -> str:
    """The token of the one ``Authorization: Bearer`` header. Raises Problem (401)."""
    values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(values) != 1:
        raise _refused("send one header: Authorization: Bearer <token>")
    scheme, _, rest = str(values[0], "latin-1").partition(" ")
    token = rest.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARS:
        raise _refused("send one header: Authorization: Bearer <token>")
    return token


def _refused(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="headrace"'})
