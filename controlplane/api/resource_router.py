"""The routes of one kind of resource: list, get, create, replace, patch, delete. Fifteen kinds, one definition."""

# No `from __future__ import annotations`: FastAPI reads the models of a kind from the annotations when a route is made.

from typing import Annotated, Any, cast

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse

from controlplane.api import documents, paging, writing
from controlplane.api.auth import Role, access
from controlplane.api.context import ApiContext
from controlplane.api.kinds import ApiKind
from controlplane.api.problems import Problem, invalid, responses
from controlplane.api.requests import (
    FieldQuery,
    LabelQuery,
    Named,
    PageSize,
    PageToken,
    etag,
    merge_patch,
    not_modified,
    require_match,
    sound_json,
    validated,
)
from controlplane.api.schemas import Deleted, Input, Models
from controlplane.api.selectors import parse_fields, parse_labels
from controlplane.api.work import Reply, Transaction, Work
from controlplane.store.resources import resource_version
from controlplane.tables import Resource
from fleet.resources.base import Spec

_SCAN = 500


def read_routes(context: ApiContext, models: Models) -> APIRouter:
    """List and get, for every kind, gpus included."""
    kind = models.kind
    router = APIRouter(prefix=f"/api/v1/{kind.plural}", tags=[kind.plural])

    @router.get("", operation_id=f"list_{kind.plural}", response_model=models.page, responses=responses())
    @access(kind.read)
    async def list_resources(
        page_size: PageSize = None,
        page_token: PageToken = "",
        label_selector: LabelQuery = "",
        field_selector: FieldQuery = "",
    ) -> Response:
        """In the order of names. Filters leave out; a page may be asked for anew at any time."""
        labels, fields = parse_labels(label_selector), parse_fields(field_selector)
        size = paging.page_size(page_size)
        key = context.secrets.peppers()[0]
        filters = [kind.name, label_selector.strip(), field_selector.strip()]
        position = paging.read_token(key, filters, page_token, 2)
        head = await context.feed.head()
        items: list[dict[str, Any]] = []
        async with context.database.read() as session:
            while True:
                found = await documents.keys_after(session, kind, position, _SCAN)
                shown = await documents.documents(session, kind, [uid for _, uid in found])
                items += [d for d in shown if labels.matches(d["labels"]) and fields.matches(d)]
                if len(items) > size or len(found) < _SCAN:
                    break
                position = list(found[-1])
        more = len(items) > size
        items = items[:size]
        token = paging.make_token(key, filters, [items[-1]["name"], items[-1]["uid"]]) if more else ""
        return JSONResponse({"items": items, "next_page_token": token, "resource_version": resource_version(head)})

    @router.get("/{name}", operation_id=f"get_{kind.name}", response_model=models.document, responses=responses(404))
    @access(kind.read)
    async def get_resource(request: Request, name: Named) -> Response:
        async with context.database.read() as session:
            row, item = await documents.find(session, kind, name)
            uid = row.uid if row is not None else item.uid if item is not None else None
            shown = await documents.documents(session, kind, [uid]) if uid is not None else []
        if not shown:
            raise not_found(kind, name)
        version = shown[0]["resource_version"]
        if not_modified(request, version):
            return Response(status_code=304, headers={"ETag": etag(version)})
        return JSONResponse(shown[0], headers={"ETag": etag(version)})

    return router


def write_routes(context: ApiContext, work: Work, models: Models) -> APIRouter:
    """Create, replace, patch and delete."""
    kind = models.kind
    router = APIRouter(prefix=f"/api/v1/{kind.plural}", tags=[kind.plural])
    conflicts = (404, 409, 412, 415)

    @router.post(
        "",
        operation_id=f"create_{kind.name}",
        status_code=201,
        response_model=models.created,
        responses=responses(*conflicts),
    )
    @access(kind.write)
    async def create_resource(request: Request, body: Annotated[models.input, Body()]) -> Response:  # type: ignore[name-defined]
        """The name must be free. A secret that is not given is made, and shown in this answer only."""
        given = cast(Input, body)

        async def rules(tx: Transaction) -> Reply:
            if await tx.world.get(kind.name, given.name) is not None:
                raise Problem("already-exists", f"there is a {kind.name} {given.name} already")
            written = await writing.put(tx, kind, given, _spec(given), None)
            await writing.check(tx, [("", written.row)])
            shown = await _shown(tx, kind, written.row)
            location = f"/api/v1/{kind.plural}/{given.name}"
            headers = {"ETag": etag(shown["resource_version"]), "Location": location}
            return Reply(shown | {"secret": written.shown}, 201, headers)

        sound_json(await request.json())
        return await work.run(request, "create", kind.name, given.name, rules)

    @router.put(
        "/{name}", operation_id=f"replace_{kind.name}", response_model=models.document, responses=responses(*conflicts)
    )
    @access(kind.write)
    async def replace_resource(request: Request, name: Named, body: Annotated[models.input, Body()]) -> Response:  # type: ignore[name-defined]
        """Labels, annotations and spec become what is given; a secret that is left out stays."""
        given = cast(Input, body)

        async def rules(tx: Transaction) -> Reply:
            row = await _existing(tx, kind, name)
            require_match(request, row.resource_version)
            _same_identity(row, given)
            return await _write_back(tx, kind, given, row)

        sound_json(await request.json())
        return await work.run(request, "replace", kind.name, name, rules)

    @router.patch(
        "/{name}", operation_id=f"patch_{kind.name}", response_model=models.document, responses=responses(*conflicts)
    )
    @access(kind.write)
    async def patch_resource(
        request: Request,
        name: Named,
        body: Annotated[dict[str, Any], Body(media_type="application/merge-patch+json")],
    ) -> Response:
        """JSON merge patch (RFC 7396) over name, labels, annotations and spec; null takes a field, or a secret, away."""
        sound_json(body)

        async def rules(tx: Transaction) -> Reply:
            row = await _existing(tx, kind, name)
            require_match(request, row.resource_version)
            present = {"name": row.name, "labels": row.labels, "annotations": row.annotations, "spec": row.spec}
            merged = merge_patch(present, body)
            secret_field, spec = kind.secret_field, body.get("spec")
            if (
                secret_field
                and isinstance(spec, dict)
                and secret_field in spec
                and isinstance(merged.get("spec"), dict)
            ):
                merged["spec"][secret_field] = spec[secret_field]  # null clears it, which a merged document cannot say
            given = validated(models.input, merged)
            _same_identity(row, given)
            return await _write_back(tx, kind, given, row)

        return await work.run(request, "patch", kind.name, name, rules)

    @router.delete(
        "/{name}", operation_id=f"delete_{kind.name}", response_model=Deleted, responses=responses(404, 409, 412)
    )
    @access(kind.write)
    async def delete_resource(
        request: Request,
        name: Named,
        cascade: Annotated[bool, Query(description="Delete whatever refers to it as well")] = False,
    ) -> Response:
        """Leaves a tombstone for 90 days."""

        async def rules(tx: Transaction) -> Reply:
            row, item = await documents.find(tx.session, kind, name)
            if item is not None and (row is None or row.owner == "agent"):
                raise Problem(
                    "agent-reported",
                    f"{kind.name} {name} is reported by its agent and would come back; cordon or drain it, or stop the agent: "
                    "a day after its last report it goes by itself",
                )
            if row is None:
                raise not_found(kind, name)
            row = await _existing(tx, kind, name)
            require_match(request, row.resource_version)
            gone = await writing.remove(tx, row, cascade=cascade)
            return Reply({"deleted": [{"kind": r.kind, "name": r.name, "uid": r.uid} for r in gone]})

        return await work.run(request, "delete", kind.name, name, rules)

    if kind.name == "key":

        @router.post(
            "/{name}:revoke",
            operation_id="revoke_key",
            response_model=models.document,
            responses=responses(404, 409, 412),
        )
        @access(Role.ADMIN)
        async def revoke_key(request: Request, name: Named) -> Response:
            """Refused by every router with a live watch within two seconds. A revoked key stays revoked."""

            async def rules(tx: Transaction) -> Reply:
                row = await _existing(tx, kind, name)
                require_match(request, row.resource_version)
                if not row.spec.get("revoked", False):
                    row.spec = row.spec | {"revoked": True}
                    await writing.republish(tx, row)
                    await tx.event("KeyRevoked", f"key {name} was revoked", "key", name)
                shown = await _shown(tx, kind, row)
                return Reply(shown, headers={"ETag": etag(shown["resource_version"])})

            return await work.run(request, "revoke", "key", name, rules)

    return router


def not_found(kind: ApiKind, name: str) -> Problem:
    return Problem("not-found", f"there is no {kind.name} {name}")


def _spec(given: Input) -> Spec:
    spec: Spec = given.spec  # type: ignore[attr-defined]  # every kind's input has one
    return spec


def _same_identity(row: Resource, given: Input) -> None:
    if given.name != row.name:
        raise invalid("/name", "cannot be changed; make a new one and delete this")
    if given.uid is not None and given.uid != row.uid:
        raise Problem("conflict", f"{row.kind} {row.name} is another one now: its uid is {row.uid}")
    if given.resource_version is not None and given.resource_version != row.resource_version:
        raise Problem("conflict", f"it is at version {row.resource_version} now; read it again")


async def _existing(tx: Transaction, kind: ApiKind, name: str) -> Resource:
    row = await tx.world.get(kind.name, name)
    if row is None:
        raise not_found(kind, name)
    return row


async def _write_back(tx: Transaction, kind: ApiKind, given: Input, row: Resource) -> Reply:
    written = await writing.put(tx, kind, given, _spec(given), row)
    if written.action == "changed":
        await writing.check(tx, [("", row)])
    shown = await _shown(tx, kind, row)
    return Reply(shown, headers={"ETag": etag(shown["resource_version"])})


async def _shown(tx: Transaction, kind: ApiKind, row: Resource) -> dict[str, Any]:
    await tx.session.flush()
    return (await documents.documents(tx.session, kind, [row.uid]))[0]
