"""The router's admin port: health with reasons and metrics for everybody, what the router sees for operators."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from fleet.process.admin import admin_app
from fleet.process.health import Readiness
from regional.metrics import RouterMetrics

Page = Callable[[], Any]
"""Gives what a debugging page shows, as plain JSON values. No secret is ever in it."""


class _Forbidden(Exception):
    """The caller may not see debugging pages."""


def router_admin(
    readiness: Readiness, metrics: RouterMetrics, pages: Mapping[str, Page], *, token: str, open_without_token: bool
) -> FastAPI:
    """The app. Pages are at ``/debug/NAME`` and listed at ``/debug``.

    They want ``token`` as bearer token; without one they are open on loopback only (``open_without_token``).
    """

    def allowed(request: Request) -> None:
        if token:
            shown = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            if hmac.compare_digest(shown.encode(), token.encode()):
                return
        elif open_without_token:
            return
        raise _Forbidden

    debug = APIRouter(prefix="/debug", dependencies=[Depends(allowed)])

    async def index() -> Response:
        return JSONResponse({"pages": [f"/debug/{name}" for name in sorted(pages)]})

    debug.add_api_route("", index, methods=["GET"])
    for name, page in pages.items():
        debug.add_api_route(f"/{name}", _shown(page), methods=["GET"])
    app = admin_app("router", readiness, metrics.registry, [debug])
    app.add_exception_handler(_Forbidden, _refuse)
    return app


def _shown(page: Page) -> Callable[[], Any]:
    async def show() -> Response:
        return JSONResponse(page(), headers={"cache-control": "no-store"})

    return show


async def _refuse(_request: Request, _error: Exception) -> Response:
    detail = "debugging pages want the router's admin token as bearer token (HEADRACE_ROUTER_ADMIN_TOKEN)"
    problem = {"type": "about:blank", "title": "Forbidden", "status": 403, "detail": detail}
    return JSONResponse(problem, 403, media_type="application/problem+json")
