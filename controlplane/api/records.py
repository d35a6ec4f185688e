"""``GET /events`` and ``GET /audit``: what happened, and who changed what. Newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import select

from controlplane.api import audit, paging
from controlplane.api.auth import Role, access
from controlplane.api.context import ApiContext
from controlplane.api.problems import responses
from controlplane.api.requests import PageSize, PageToken
from controlplane.tables import AuditEntry, Event

Filter = Annotated[str, Query(max_length=253, pattern=r"^[^\x00-\x1f]*$")]


class EventShown(BaseModel):
    uid: str
    reason: str
    message: str
    kind: str
    name: str
    region: str
    severity: str
    occurred_at: datetime


class EventPage(BaseModel):
    items: list[EventShown]
    next_page_token: str


class AuditShown(BaseModel):
    sequence: int
    occurred_at: datetime
    actor: str
    actor_uid: str
    role: str
    action: str
    kind: str
    name: str
    outcome: int
    request_id: str
    detail: dict[str, Any]
    hash: str


class AuditPage(BaseModel):
    items: list[AuditShown]
    next_page_token: str


class AuditVerified(BaseModel):
    ok: bool
    entries: int
    first_broken: int | None


def record_routes(context: ApiContext) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["records"])

    @router.get("/events", operation_id="list_events", response_model=EventPage, responses=responses())
    @access(Role.VIEWER)
    async def list_events(
        page_size: PageSize = None,
        page_token: PageToken = "",
        kind: Filter = "",
        name: Filter = "",
        region: Filter = "",
        reason: Filter = "",
        severity: Filter = "",
    ) -> Response:
        """Things that happened in the fleet and to its resources."""
        wanted = {"kind": kind, "name": name, "region": region, "reason": reason, "severity": severity}
        size, key, filters = paging.page_size(page_size), context.secrets.peppers()[0], ["events", *wanted.values()]
        before = paging.read_token(key, filters, page_token, 1)
        query = select(Event).order_by(Event.id.desc()).limit(size + 1)
        for column, value in wanted.items():
            if value:
                query = query.where(getattr(Event, column) == value)
        if before is not None:
            query = query.where(Event.id < int(before[0]))
        async with context.database.read() as session:
            rows = list(await session.scalars(query))
        token = paging.make_token(key, filters, [str(rows[size - 1].id)]) if len(rows) > size else ""
        items = [EventShown.model_validate(row, from_attributes=True).model_dump(mode="json") for row in rows[:size]]
        return JSONResponse({"items": items, "next_page_token": token})

    @router.get("/audit", operation_id="list_audit", response_model=AuditPage, responses=responses())
    @access(Role.OPERATOR)
    async def list_audit(
        page_size: PageSize = None,
        page_token: PageToken = "",
        actor: Filter = "",
        action: Filter = "",
        kind: Filter = "",
        name: Filter = "",
    ) -> Response:
        """Every call that changed something or was refused to. Secrets are nowhere in it."""
        wanted = {"actor": actor, "action": action, "kind": kind, "name": name}
        size, key, filters = paging.page_size(page_size), context.secrets.peppers()[0], ["audit", *wanted.values()]
        before = paging.read_token(key, filters, page_token, 1)
        query = select(AuditEntry).order_by(AuditEntry.sequence.desc()).limit(size + 1)
        for column, value in wanted.items():
            if value:
                query = query.where(getattr(AuditEntry, column) == value)
        if before is not None:
            query = query.where(AuditEntry.sequence < int(before[0]))
        async with context.database.read() as session:
            rows = list(await session.scalars(query))
        token = paging.make_token(key, filters, [str(rows[size - 1].sequence)]) if len(rows) > size else ""
        items = [
            {c.key: getattr(row, c.key) for c in AuditEntry.__table__.columns}
            | {"occurred_at": row.occurred_at.isoformat(), "hash": row.hash.hex()}
            for row in rows[:size]
        ]
        return JSONResponse({"items": items, "next_page_token": token})

    @router.get("/audit:verify", operation_id="verify_audit", response_model=AuditVerified, responses=responses())
    @access(Role.OPERATOR)
    async def verify_audit() -> Response:
        """Check that every entry follows from the one before."""
        async with context.database.read() as session:
            count, broken = await audit.first_broken(session)
        return JSONResponse({"ok": broken is None, "entries": count, "first_broken": broken})

    return router
