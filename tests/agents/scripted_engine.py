"""An engine over real HTTP that answers what a test writes into it."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

VLLM_IDLE = """\
process_start_time_seconds 1000.0
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 0.0
vllm:generation_tokens_total{engine="0",model_name="m"} 0.0
"""


class ScriptedEngine:
    """Pages by path: a text, a JSON value, or a status. ``hang`` takes connections and says nothing."""

    def __init__(self) -> None:
        self.pages: dict[str, str | int | dict[str, Any] | list[Any]] = {
            "/health": "ok",
            "/metrics": VLLM_IDLE,
            "/v1/models": {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]},
        }
        self.key = ""
        self.hang = False
        self.asked: list[str] = []
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._released = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        self._released.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if self.hang:
            await self._released.wait()
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}" and request.path != "/health":
            return web.json_response({"error": {"message": "no"}}, status=401)
        page = self.pages.get(request.path, 404)
        if isinstance(page, int):
            return web.Response(status=page)
        if isinstance(page, str):
            return web.Response(text=page)
        return web.json_response(page)
