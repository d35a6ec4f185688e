"""``POST /apply``: a list of resources, all or nothing."""

# No `from __future__ import annotations`: the union of all kinds is read from the annotation when the route is made.

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import BaseModel

from controlplane.api import writing
from controlplane.api.auth import Role, access, principal
from controlplane.api.kinds import API_KINDS, ApiKind
from controlplane.api.problems import Problem, responses
from controlplane.api.references import referrers
from controlplane.api.requests import sound_json
from controlplane.api.schemas import Input, Models, discriminated
from controlplane.api.selectors import LabelSelector, parse_labels
from controlplane.api.work import Reply, Transaction, Work
from controlplane.tables import Resource
from fleet.errors import FieldError, InvalidInput

MAX_DOCUMENTS = 20_000


class AppliedChange(BaseModel):
    action: Literal["created", "changed", "unchanged", "deleted"]
    kind: str
    name: str
    uid: str
    diff: list[dict[str, Any]]
    """Objects {pointer, from, to}."""
    secret: str | None
    """One that was made here, shown this once."""


class Applied(BaseModel):
    """What was (or, in a dry run, would be) done."""

    dry_run: bool
    resource_version: str
    changes: list[AppliedChange]


def apply_routes(work: Work, models: Sequence[Models]) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["apply"])
    document = discriminated(list(models))

    @router.post("/apply", operation_id="apply", response_model=Applied, responses=responses(409, 415))
    @access(Role.OPERATOR)
    async def apply(
        request: Request,
        body: Annotated[list[document], Body(max_length=MAX_DOCUMENTS)],  # type: ignore[valid-type]
        dry_run: Annotated[bool, Query(description="Only say what would change")] = False,
        prune: Annotated[
            str | None,
            Query(max_length=4096, description="Delete what this label selector matches and the list does not name"),
        ] = None,
    ) -> Response:
        """Create what is not there, change what differs, leave the rest. References may point forward within the list."""
        sound_json(await request.json())
        given = cast(list[Input], body)
        selector = parse_labels(prune, "/query/prune") if prune is not None else None
        if selector is not None and not selector.requirements:
            raise Problem("invalid", "prune wants a selector", errors=[FieldError("/query/prune", "must not be empty")])
        _permitted(request, given)
        _distinct(given)

        async def rules(tx: Transaction) -> Reply:
            return await _apply(tx, given, selector, dry_run)

        return await work.run(request, "apply", "", "", rules, dry_run=dry_run)

    return router


def _kind(given: Input) -> ApiKind:
    return API_KINDS[cast(Any, given).kind]


def _permitted(request: Request, given: Sequence[Input]) -> None:
    """Applying a kind wants the role that writing it alone would want."""
    who = principal(request)
    refused = sorted({_kind(g).name for g in given if not who.may(_kind(g).write)})
    if refused:
        raise Problem("forbidden", f"the token {who.name} ({who.role}) may not write {', '.join(refused)}")


def _distinct(given: Sequence[Input]) -> None:
    seen: dict[tuple[str, str], int] = {}
    errors = []
    for index, item in enumerate(given):
        first = seen.setdefault((_kind(item).name, item.name), index)
        if first != index:
            errors.append(FieldError(f"/{index}/name", f"{_kind(item).name} {item.name} is also item {first}"))
    if errors:
        raise InvalidInput(errors)


async def _apply(tx: Transaction, given: Sequence[Input], selector: LabelSelector | None, dry_run: bool) -> Reply:
    kinds = [kind for kind in API_KINDS.values() if kind.file]
    for kind in kinds:
        await tx.world.all(kind.name)
    order = {kind.name: place for place, kind in enumerate(kinds)}
    results: dict[int, writing.Written] = {}
    for index in sorted(range(len(given)), key=lambda i: order[_kind(given[i]).name]):
        item = given[index]
        kind = _kind(item)
        existing = await tx.world.get(kind.name, item.name)
        try:
            results[index] = await writing.put(tx, kind, item, cast(Any, item).spec, existing)
        except Problem as problem:
            errors = [FieldError(f"/{index}{e.pointer}", e.reason) for e in problem.errors]
            raise Problem(problem.slug, f"{kind.name} {item.name}: {problem.detail}", errors=errors) from None
    doomed = await _doomed(tx, kinds, given, selector) if selector is not None else []
    # Doomed things first, so that what is checked is the world as it will be.
    for row in doomed:
        await writing.bury(tx, row)
    changed = [(f"/{index}", w.row) for index, w in sorted(results.items()) if w.action != "unchanged"]
    await writing.check(tx, changed)
    for row in doomed:
        left = await referrers(tx.world, row.kind, row.name)
        if left:
            raise writing.referenced(row, left)
    changes = [_change(w.action, w.row, w.diff, None if dry_run else w.shown) for _, w in sorted(results.items())]
    changes += [_change("deleted", row, [], None) for row in doomed]
    if tx.touched:
        counts = {action: sum(c["action"] == action for c in changes) for action in ("created", "changed", "deleted")}
        told = ", ".join(f"{count} {action}" for action, count in counts.items() if count)
        await tx.event("Applied", f"{told} by {tx.who.name}", "fleet", "fleet")
    return Reply({"dry_run": dry_run, "resource_version": tx.version, "changes": changes})


async def _doomed(
    tx: Transaction, kinds: Sequence[ApiKind], given: Sequence[Input], selector: LabelSelector
) -> list[Resource]:
    """What users wrote, the selector matches and the list does not name; whatever refers comes before what it refers to."""
    named = {(_kind(g).name, g.name) for g in given}
    doomed = []
    for kind in reversed(kinds):
        for name, row in sorted((await tx.world.all(kind.name)).items()):
            if row.owner != "user" or (kind.name, name) in named or not selector.matches(row.labels):
                continue
            if not tx.who.may(kind.write):
                raise Problem("forbidden", f"the token {tx.who.name} ({tx.who.role}) may not delete {kind.name} {name}")
            doomed.append(row)
    return doomed


def _change(action: str, row: Resource, diff: list[dict[str, Any]], secret: str | None) -> dict[str, Any]:
    return {"action": action, "kind": row.kind, "name": row.name, "uid": row.uid, "diff": diff, "secret": secret}
