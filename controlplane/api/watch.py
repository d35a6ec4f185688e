"""``GET /watch``: changes of resources as server-sent events.

Events: ``changed`` (the document as it is now), ``deleted`` ({kind, uid}), ``bookmark`` ({resource_version}: everything up to there
has been sent) and ``gone`` (the history has broken off: list again). A version that is no longer in the history answers 410.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from controlplane.api import documents
from controlplane.api.auth import Authenticator, Role, access, bearer, principal
from controlplane.api.context import ApiContext
from controlplane.api.kinds import API_KINDS, GPU, ApiKind
from controlplane.api.problems import Problem, invalid, responses
from controlplane.api.requests import LabelQuery
from controlplane.api.selectors import LabelSelector, parse_labels
from controlplane.store.intent import Change
from controlplane.store.resources import resource_version
from fleet.errors import Unavailable
from fleet.resources.translate import HOLD_KIND
from fleet.snapshot import IntentVersion

MAX_WATCHES = 256
RECHECK_SECONDS = 2.0
"""How soon a watch notices that its token has been revoked."""
_KEEPALIVE_ROUNDS = 7
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


def watch_routes(context: ApiContext, authenticator: Authenticator) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["watch"])
    open_watches = 0

    @router.get(
        "/watch",
        operation_id="watch",
        response_class=StreamingResponse,
        responses=responses(410, 429) | _STREAM,
    )
    @access(Role.VIEWER)
    async def watch(
        request: Request,
        resource_version: Annotated[str, Query(max_length=64, description="From a list; without it, from now on")] = "",
        kind: Annotated[list[str] | None, Query(max_length=32, description="Only these kinds (singular)")] = None,
        label_selector: LabelQuery = "",
    ) -> Response:
        nonlocal open_watches
        kinds = _kinds(request, kind)
        labels = parse_labels(label_selector)
        start = await _start(context, resource_version)
        if open_watches >= MAX_WATCHES:
            raise Problem("too-many-watches", "try again later", headers={"Retry-After": "5"})
        token = bearer(request.scope)

        async def events() -> AsyncIterator[bytes]:
            nonlocal open_watches
            open_watches += 1
            try:
                async for event in _events(context, authenticator, token, start, kinds, labels):
                    yield event
            finally:
                open_watches -= 1

        return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    return router


def _kinds(request: Request, wanted: list[str] | None) -> dict[str, ApiKind]:
    """The kinds to tell of: those asked for, else all; never one the caller may not read."""
    who = principal(request)
    published = {k.name: k for k in (*API_KINDS.values(), GPU) if k.file or k is GPU}
    for index, name in enumerate(wanted or ()):
        if name not in published:
            raise invalid(f"/query/kind/{index}", f"is not one of {', '.join(published)}")
    return {n: k for n, k in published.items() if who.may(k.read) and (not wanted or n in wanted)}


async def _start(context: ApiContext, version: str) -> IntentVersion:
    if not version:
        return await context.feed.head()
    epoch, _, number = version.partition("-")
    if not (epoch.isdecimal() and number.isdecimal() and max(int(epoch), int(number)) < 1 << 63):
        raise invalid("/query/resource_version", "is not the resource_version of a list")
    start = await context.feed.at(int(epoch), int(number))
    if start is None:
        raise Problem("gone", f"version {version} is no longer in the history; list again")
    return start


async def _events(
    context: ApiContext,
    authenticator: Authenticator,
    token: str,
    at: IntentVersion,
    kinds: dict[str, ApiKind],
    labels: LabelSelector,
) -> AsyncIterator[bytes]:
    yield _event("bookmark", {"resource_version": resource_version(at)})
    quiet = 0
    while True:
        try:
            await context.feed.wait(at, RECHECK_SECONDS)
            if await authenticator.who(token) is None:
                return
            changes = await context.feed.changes_since(at, limit=100)
            if changes is None:  # a new epoch: the client must list again
                yield _event("gone", {"resource_version": resource_version(await context.feed.head())})
                return
            for change in changes:
                for event in await _of_change(context, change, kinds, labels):
                    yield event
                at = change.at
        except Unavailable:
            changes = []
        if changes:
            quiet = 0
            yield _event("bookmark", {"resource_version": resource_version(at)})
        else:
            quiet += 1
            if quiet % _KEEPALIVE_ROUNDS == 0:
                yield b": keepalive\n\n"


async def _of_change(
    context: ApiContext, change: Change, kinds: dict[str, ApiKind], labels: LabelSelector
) -> list[bytes]:
    wanted: dict[str, list[str]] = {}
    for obj in change.upserts:
        kind, uid = (obj.spec["target_kind"], obj.spec["target"]) if obj.kind == HOLD_KIND else (obj.kind, obj.uid)
        if kind in kinds:
            wanted.setdefault(kind, []).append(uid)
    events: list[bytes] = []
    async with context.database.read() as session:
        for name, uids in wanted.items():
            shown = await documents.documents(session, kinds[name], uids)
            events += [_event("changed", d) for d in shown if labels.matches(d["labels"])]
    events += [_event("deleted", {"kind": kind, "uid": uid}) for kind, uid in change.removals if kind in kinds]
    return events


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
