"""``/api/v1/version``, ``/openapi.json`` and ``/docs``: what this is and how to use it. Open to anybody."""

from __future__ import annotations

from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel

from controlplane.api.auth import access
from controlplane.api.problems import responses
from controlplane.store import migrate

API_VERSION = "v1"


class Version(BaseModel):
    version: str
    api: str
    schema_revision: str


def own_version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "0+unknown"


def about_routes() -> APIRouter:
    router = APIRouter(tags=["about"])
    revision = migrate.head()

    @router.get("/api/v1/version", operation_id="version", response_model=Version, responses=responses())
    @access()
    async def tell_version() -> Response:
        return JSONResponse({"version": own_version(), "api": API_VERSION, "schema_revision": revision})

    @router.get("/openapi.json", include_in_schema=False)
    @access()
    async def openapi(request: Request) -> Response:
        app: FastAPI = request.app
        return JSONResponse(app.openapi())

    @router.get("/docs", include_in_schema=False)
    @access()
    async def docs(request: Request) -> Response:
        """A page of our own: it works offline, runs no script and loads nothing."""
        app: FastAPI = request.app
        policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
        return HTMLResponse(render(app.openapi()), headers={"content-security-policy": policy})

    return router


def render(document: dict[str, Any]) -> str:
    """The operations of an OpenAPI document as one plain page."""
    rows = []
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            if not isinstance(operation, dict):
                continue
            said = operation.get("description") or operation.get("summary", "")
            taken = ", ".join(p["name"] for p in operation.get("parameters", ()))
            rows.append(
                f"<tr><td><b>{escape(method.upper())}</b></td><td><code>{escape(path)}</code></td>"
                f"<td>{escape(said)}</td><td>{escape(taken)}</td></tr>"
            )
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:15px/1.4 system-ui,sans-serif;margin:2rem}td{padding:.2rem .8rem;vertical-align:top}</style>"
        f"<h1>{title}</h1><p>The full description is <a href=/openapi.json>/openapi.json</a>. "
        "Send <code>Authorization: Bearer TOKEN</code>.</p>"
        f"<table><tr><th>method<th>path<th>what it does<th>parameters</tr>{''.join(rows)}</table></html>"
    )
