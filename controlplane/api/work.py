"""One change to what users want, start to finish: lock, rules, rows, audit, the stored answer, and the next version of the feed.

Everything happens in one transaction, so a failure at any point leaves nothing behind. The order of its parts is fixed here and
nowhere else.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fastapi import Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.api import audit
from controlplane.api.audit import AuditDraft
from controlplane.api.auth import Principal, Role, principal, request_id
from controlplane.api.context import ApiContext
from controlplane.api.idempotency import HEADER, Answer, Claim, Idempotency
from controlplane.api.problems import Problem, as_problem
from controlplane.store.intent import UNPUBLISHED_KINDS
from controlplane.store.resources import World, intent_object, resource_version
from controlplane.tables import Event, Resource
from fleet.errors import InvalidInput, Unavailable
from fleet.process.logs import get_logger
from fleet.snapshot import IntentObject, IntentVersion

AUDITED_RESOURCES = 100
"""An entry about more than so many resources names them only by count."""

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})

log = get_logger("controlplane.api.work")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a successful call answers. ``body`` goes through JSON; None is no body."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Transaction:
    """What the rules of a call work with."""

    context: ApiContext
    session: AsyncSession
    who: Principal
    request_id: str
    now: datetime
    head: IntentVersion
    world: World
    upserts: dict[tuple[str, str], IntentObject] = field(default_factory=dict)
    removals: list[tuple[str, str]] = field(default_factory=list)
    touched: list[dict[str, Any]] = field(default_factory=list)

    @property
    def version(self) -> str:
        """The resource version of everything this transaction writes."""
        return resource_version(IntentVersion(self.head.epoch, self.head.version + 1))

    def written(self, action: str, row: Resource, secrets: Mapping[str, Any], secret_changed: bool = False) -> None:
        """A row was made or changed: publish and audit it. ``secrets`` in clear."""
        if row.kind not in UNPUBLISHED_KINDS:
            self.upserts[row.kind, row.uid] = intent_object(row, secrets)
        note = {
            "action": action,
            "kind": row.kind,
            "name": row.name,
            "uid": row.uid,
            "generation": row.generation,
            "spec": row.spec,
        }
        self.touched.append(note | {"secret": "changed"} if secret_changed else note)

    def removed(self, row: Resource) -> None:
        if row.kind not in UNPUBLISHED_KINDS:
            self.upserts.pop((row.kind, row.uid), None)
            self.removals.append((row.kind, row.uid))
        self.touched.append({"action": "deleted", "kind": row.kind, "name": row.name, "uid": row.uid})

    async def event(
        self, reason: str, message: str, kind: str, name: str, *, region: str = "", severity: str = "info"
    ) -> None:
        """Tell people; in the transaction, so that it is told only if it happens."""
        values = {
            "uid": str(uuid.uuid4()),
            "reason": reason,
            "message": message,
            "kind": kind,
            "name": name,
            "region": region,
            "severity": severity,
            "occurred_at": self.now,
            "recorded_at": self.now,
        }
        await self.session.execute(insert(Event).values(values))

    def audit_detail(self) -> dict[str, Any]:
        if len(self.touched) > AUDITED_RESOURCES:
            return {"count": len(self.touched)}
        return {"resources": self.touched}


class _DryRun(Exception):
    """Rolls a transaction back once its answer is known."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply


Rules = Callable[[Transaction], Awaitable[Reply]]


class Work:
    """Runs changes. One per application."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._idempotency = Idempotency(context)

    async def run(
        self, request: Request, action: str, kind: str, name: str, rules: Rules, *, dry_run: bool = False
    ) -> Response:
        """Run ``rules`` in a transaction and answer. Refused calls are audited too; a dry run changes and audits nothing."""
        request.scope["state"]["audited"] = True
        claim: Claim | None = None
        key = request.headers.get(HEADER)
        if key is not None and request.method == "POST" and not dry_run:
            target = request.url.path + "?" + request.url.query
            begun = await self._idempotency.begin(principal(request), key, request.method, target, await request.body())
            if isinstance(begun, Answer):
                return Response(begun.body, begun.status, begun.headers, "application/json")
            claim = begun
        try:
            return await self._transaction(request, action, kind, name, rules, claim, dry_run)
        except _DryRun as told:
            return _response(told.reply)
        except Exception as error:
            problem = _clash(error)
            await self._after_failure(request, action, kind, name, problem, claim, dry_run)
            if isinstance(error, IntegrityError):
                raise problem from error
            raise

    async def _transaction(
        self, request: Request, action: str, kind: str, name: str, rules: Rules, claim: Claim | None, dry_run: bool
    ) -> Response:
        who, own_id = principal(request), request_id(request)
        async with self._context.database.write() as session:
            head = await self._context.feed.lock(session)
            tx = Transaction(self._context, session, who, own_id, self._context.now(), head, World(session))
            reply = await rules(tx)
            if dry_run:
                raise _DryRun(reply)
            await session.flush()
            response = _response(reply)
            detail = tx.audit_detail()
            await audit.append(session, AuditDraft(tx.now, who, action, kind, name, reply.status, own_id, detail))
            if claim is not None:
                headers = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
                await self._idempotency.finish(session, claim, Answer(reply.status, headers, bytes(response.body)))
            if tx.touched:  # also for what routers are not told of: a resource version is never given twice
                await self._context.feed.record(
                    session, upserts=list(tx.upserts.values()), removals=tx.removals, head=head
                )
        return response

    async def _after_failure(
        self, request: Request, action: str, kind: str, name: str, problem: Problem, claim: Claim | None, dry_run: bool
    ) -> None:
        """Audit the refusal and let the key be used again. The database may be the very thing that failed: then only log."""
        if dry_run:
            return
        who, own_id = principal(request), request_id(request)
        draft = AuditDraft(
            self._context.now(), who, action, kind, name, problem.status, own_id, {"refused": problem.slug}
        )
        try:
            if claim is not None:
                await self._idempotency.abandon(claim)
            if problem.status < 500:
                await self.note(draft)
        except Unavailable as error:
            log.warning("refusal_not_audited", action=action, kind=kind, request_id=own_id, error=str(error))

    async def refused(self, request: Request, problem: Problem) -> None:
        """Audit a changing call that was refused before it got to ``run``: its role or its body was wrong."""
        endpoint, state = request.scope.get("endpoint"), request.scope["state"]
        changes = Role.VIEWER not in getattr(endpoint, "__access__", {Role.VIEWER})
        if request.method not in _CHANGING or not changes or "principal" not in state or state.get("audited"):
            return
        path, own_id = request.scope["path"], request_id(request)
        detail = {"refused": problem.slug}
        draft = AuditDraft(
            self._context.now(), principal(request), request.method, "", path, problem.status, own_id, detail
        )
        try:
            await self.note(draft)
        except Unavailable as error:
            log.warning("refusal_not_audited", path=path, request_id=own_id, error=str(error))

    async def note(self, draft: AuditDraft) -> None:
        """Audit something that changed nothing."""
        async with self._context.database.write() as session:
            await self._context.feed.lock(session)
            await audit.append(session, draft)


def _clash(error: Exception) -> Problem:
    """What a failure is, seen from outside. A unique index that speaks up knows more than the checks before it did."""
    if isinstance(error, IntegrityError):
        if "digest" in str(error.orig):
            return Problem("conflict", "this secret is in use already; every key and token needs its own")
        return Problem("conflict", "it clashes with something that was written meanwhile; read it again")
    if isinstance(error, Problem | InvalidInput | Unavailable):
        return as_problem(error)
    return Problem("internal", "An internal error; the request id leads to it in the log.")


def _response(reply: Reply) -> Response:
    if reply.body is None:
        return Response(status_code=reply.status, headers=dict(reply.headers))
    return JSONResponse(jsonable_encoder(reply.body), reply.status, headers=dict(reply.headers))
