"""Cordon, uncordon and drain, for whatever can be held: written or only reported."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response
from pydantic import Field

from controlplane.api import documents, holds
from controlplane.api.auth import Role, access
from controlplane.api.context import ApiContext
from controlplane.api.problems import responses
from controlplane.api.requests import Named, sound_json
from controlplane.api.resource_router import not_found
from controlplane.api.schemas import Models
from controlplane.api.work import Reply, Transaction, Work
from fleet.intent import HoldState
from fleet.resources.base import Strict


class HoldRequest(Strict):
    reason: str = Field("", max_length=1024, description="For people; shown with the condition")


_ACTIONS: dict[str, tuple[HoldState | None, str, str]] = {
    "cordon": (HoldState.CORDONED, "Cordoned", "Takes no new work or sessions; what runs goes on."),
    "drain": (HoldState.DRAINING, "Draining", "Cordoned, and sessions leave too; done when nothing runs there."),
    "uncordon": (None, "Uncordoned", "Ends a cordon or a drain."),
}


def action_routes(context: ApiContext, work: Work, models: Models) -> APIRouter:
    """``POST /{kind}/{name}:cordon`` and so on. Doing it again changes nothing."""
    kind = models.kind
    router = APIRouter(prefix=f"/api/v1/{kind.plural}", tags=[kind.plural])

    def add(verb: str, state: HoldState | None, reason_word: str, description: str) -> None:
        @access(Role.OPERATOR)
        async def act(request: Request, name: Named, body: Annotated[HoldRequest | None, Body()] = None) -> Response:
            why = body.reason if body is not None else ""
            sound_json(why, "/reason")

            async def rules(tx: Transaction) -> Reply:
                row, item = await documents.find(tx.session, kind, name)
                uid = row.uid if row is not None else item.uid if item is not None else None
                if uid is None:
                    raise not_found(kind, name)
                if state is None:
                    changed = await holds.release(tx, kind.name, uid)
                else:
                    changed = await holds.hold(tx, kind.name, uid, state, why)
                if changed:
                    region = item.region if item is not None else ""
                    told = f"by {tx.who.name}" + (f": {why}" if why else "")
                    await tx.event(reason_word, told, kind.name, name, region=region)
                await tx.session.flush()
                shown: list[dict[str, Any]] = await documents.documents(tx.session, kind, [uid])
                return Reply(shown[0])

            return await work.run(request, verb, kind.name, name, rules)

        router.post(
            f"/{{name}}:{verb}",
            operation_id=f"{verb}_{kind.name}",
            description=description,
            response_model=models.document,
            responses=responses(404, 409, 415),
        )(act)

    for verb, (state, word, description) in _ACTIONS.items():
        add(verb, state, word, description)
    return router
