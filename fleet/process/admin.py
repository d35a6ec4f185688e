"""The admin HTTP port of a process: health with reasons, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from fleet.process.health import HEALTH_PATHS, Readiness


def admin_app(
    process: str,
    readiness: Readiness,
    registry: CollectorRegistry,
    extra_routers: Iterable[APIRouter] = (),
    *,
    title: str | None = None,
) -> FastAPI:
    """An app with the health paths and ``/metrics``; ``extra_routers`` add what the process has besides."""
    app = FastAPI(title=title or f"headrace {process}", docs_url=None, redoc_url=None, openapi_url=None)
    add_health(app, process, readiness)
    add_metrics(app, registry)
    for router in extra_routers:
        app.include_router(router)
    return app


def add_health(app: FastAPI, process: str, readiness: Readiness) -> None:
    """Answer the health paths on ``app``: 200, or 503 with the reasons. They need no authentication and touch nothing."""
    for path, kind in HEALTH_PATHS.items():
        app.add_api_route(path, _probe(process, readiness, kind), methods=["GET", "HEAD"], include_in_schema=False)


def add_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    """Answer ``/metrics``. Rendering thousands of series takes tens of milliseconds, so it runs in a thread, one at a time."""
    one_at_a_time = asyncio.Lock()

    async def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        async with one_at_a_time:
            body: bytes = await asyncio.to_thread(encoder, registry)
        return Response(body, media_type=None, headers={"content-type": content_type, "cache-control": "no-store"})

    app.add_api_route("/metrics", metrics, methods=["GET"], include_in_schema=False)


def _probe(process: str, readiness: Readiness, kind: str) -> Callable[[], Awaitable[Response]]:
    async def probe() -> Response:
        ok, reasons = readiness.probe(kind)
        body = {"status": "ok" if ok else "unavailable", "process": process, "reasons": reasons}
        return JSONResponse(body, 200 if ok else 503, headers={"cache-control": "no-store"})

    return probe
