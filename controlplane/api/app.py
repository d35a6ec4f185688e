"""The admin API put together. ``build_api`` is all that a process needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import RouteContext, iter_route_contexts

from controlplane.api import problems
from controlplane.api.about import about_routes, own_version
from controlplane.api.actions import action_routes
from controlplane.api.apply import apply_routes
from controlplane.api.auth import PUBLIC_PATHS, Authenticator, Gate, authorise
from controlplane.api.context import ApiContext
from controlplane.api.kinds import API_KINDS, GPU
from controlplane.api.problems import ProblemDetails
from controlplane.api.records import record_routes
from controlplane.api.resource_router import read_routes, write_routes
from controlplane.api.schemas import Models
from controlplane.api.watch import watch_routes
from controlplane.api.work import Work


def build_api(context: ApiContext, routers: Iterable[APIRouter] = ()) -> FastAPI:
    """The application: all resources, ``apply``, records, ``watch``; and ``routers``, whose routes need an ``access`` of their own.

    Raises RuntimeError for a route without an auth decision.
    """
    app = FastAPI(
        title="headrace control plane",
        version=own_version(),
        description="Fleet inventory, tenants and their SLAs, and what operators do about them.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(authorise)],
    )
    authenticator = Authenticator(context)
    work = Work(context)
    models = [Models(kind) for kind in API_KINDS.values()]
    for kind_models in models:
        if kind_models.kind.holdable:
            app.include_router(action_routes(context, work, kind_models))
        app.include_router(read_routes(context, kind_models))
        app.include_router(write_routes(context, work, kind_models))
    gpus = Models(GPU)
    app.include_router(action_routes(context, work, gpus))
    app.include_router(read_routes(context, gpus))
    app.include_router(apply_routes(work, [m for m in models if m.kind.file]))
    app.include_router(record_routes(context))
    app.include_router(watch_routes(context, authenticator))
    app.include_router(about_routes())
    for router in routers:
        app.include_router(router)
    problems.install(app, work.refused)
    app.add_middleware(Gate, authenticator=authenticator)
    undecided = [route.path for route in undecided_routes(app)]
    if undecided:
        raise RuntimeError(f"routes without an auth decision: {undecided}")
    _describe(app)
    return app


def undecided_routes(app: FastAPI) -> list[RouteContext]:
    """Routes that neither carry an ``access`` nor stand among the public paths."""
    return [
        route
        for route in iter_route_contexts(app.routes)
        if route.path not in PUBLIC_PATHS and not hasattr(route.endpoint, "__access__")
    ]


def _describe(app: FastAPI) -> None:
    """Make the OpenAPI document say what every route shares: the bearer token and the shape of problems."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            parts = document.setdefault("components", {})
            details = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
            parts.setdefault("schemas", {}).update(details.pop("$defs", {}) | {"ProblemDetails": details})
            parts["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    operation["security"] = [] if path in PUBLIC_PATHS else [{"bearer": []}]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
