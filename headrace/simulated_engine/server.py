"""A simulated model server on a port, and the faults it can be given."""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from headrace.simulated_engine import metrics, openai
from headrace.simulated_engine.engine import EngineLoop
from headrace.simulated_engine.generation import Embedding, Generation
from headrace.simulated_engine.http import Connection, Exchange
from headrace.simulated_engine.openai import Refused
from headrace.simulated_engine.profiles import DEFAULT_MODEL, find_profile
from headrace.simulated_engine.scheduler import ContinuousBatching


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one simulated server is."""

    models: tuple[str, ...]
    """Names it serves, as a client writes them; the first is the one metrics carry."""
    product: str = "h100-sxm-80"
    profile_model: str = DEFAULT_MODEL
    """Whose step times it has."""
    tensor_parallel: int = 1
    precision: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    context_tokens: int = 131_072
    max_sequences: int = 256
    kv_tokens: int | None = None
    """None takes what the product has room for."""
    speed: float = 1.0
    """Time scale: 2 is twice as fast as the hardware."""
    api_key: str = field(default="", repr=False)


class SimulatedEngine:
    """One server. ``start`` and ``close`` it; in between give it faults and take them back."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._profile = find_profile(
            settings.product, settings.profile_model, settings.tensor_parallel, settings.precision
        )
        self._port = settings.port
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._frozen = False
        self._crash_timer: asyncio.TimerHandle | None = None
        self.last_inference_at: float | None = None
        """Loop time at which the last inference request came in; for whoever watches a failover."""

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        host = self.settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def scheduler(self) -> ContinuousBatching:
        return self._loop.scheduler

    async def start(self) -> None:
        """Listen, as a process that has just been started: empty caches, counters at zero. Raises OSError on a taken port."""
        settings = self.settings
        scheduler = ContinuousBatching(
            self._profile, max_sequences=settings.max_sequences, kv_tokens=settings.kv_tokens, speed=settings.speed
        )
        self._loop = EngineLoop(scheduler)
        self._metrics = metrics.RequestMetrics()
        self._context_tokens = min(settings.context_tokens, scheduler.kv_tokens)
        self._started_wall = time.time()
        self._frozen = False
        await self._listen()

    async def close(self) -> None:
        """Stop, breaking off what runs."""
        self._die()
        if self._server is not None:
            await self._server.wait_closed()

    # --- faults -------------------------------------------------------------------------------------------------------

    def slow(self, factor: float) -> None:
        """Run at ``factor`` of the speed it was set up with."""
        self._loop.set_speed(self.settings.speed * factor)

    def hang(self) -> None:
        """Requests get in and no token comes out; health and metrics still answer."""
        self._loop.pause()

    def freeze(self) -> None:
        """Connections are accepted and nothing at all is answered."""
        self._frozen = True
        self._loop.pause()

    def refuse(self) -> None:
        """Refuse new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    def crash(self) -> None:
        """Go away as a killed process does: refused, reset, everything lost."""
        self._die()

    def lose_gpu(self, exit_after_seconds: float = 1.5) -> None:
        """What vLLM does when its GPU falls off the bus: the step never ends, and a little later the server exits."""
        self._loop.pause()
        self._crash_timer = asyncio.get_running_loop().call_later(exit_after_seconds, self._die)

    async def restore(self) -> None:
        """Take back every fault. One that crashed or froze starts afresh, on the same port."""
        if self._crash_timer is not None or self._frozen or self._server is None or not self._server.is_serving():
            self._die()
            await self.start()
        else:
            self._loop.set_speed(self.settings.speed)
            self._loop.resume()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handle, self._connections), self.settings.host, self._port, backlog=512
        )
        self._port = self._server.sockets[0].getsockname()[1]

    def _die(self) -> None:
        if self._crash_timer is not None:
            self._crash_timer.cancel()
            self._crash_timer = None
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.abort()
        if hasattr(self, "_loop"):
            self._loop.close()

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _handle(self, exchange: Exchange) -> None:
        if self._frozen:
            return
        try:
            self._route(exchange)
        except Refused as refused:
            self._metrics.finished["error"] += 1
            exchange.respond(refused.status, refused.body())

    def _route(self, exchange: Exchange) -> None:
        method, path = exchange.method, exchange.path
        routes = {
            "/health": ("GET", self._health),
            "/ping": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics_page),
            "/v1/models": ("GET", self._models),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completion),
            "/v1/embeddings": ("POST", self._embedding),
            "/reset_prefix_cache": ("POST", self._reset_prefix_cache),
            "/simulated/state": ("GET", self._state),
            "/simulated/faults": ("POST", self._faults),
        }
        route = routes.get(path)
        if route is None:
            exchange.respond(404, b'{"detail":"Not Found"}')
        elif route[0] != method:
            exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=(("allow", route[0]),))
        elif path.startswith("/v1/") and not self._authorized(exchange):
            exchange.respond(401, b'{"error":"Unauthorized"}')
        else:
            route[1](exchange)

    def _authorized(self, exchange: Exchange) -> bool:
        wanted = self.settings.api_key
        given = exchange.headers.get("authorization", "")
        return not wanted or hmac.compare_digest(given.encode("latin-1"), f"Bearer {wanted}".encode())

    def _serves(self, model: str) -> bool:
        return model in self.settings.models

    def _health(self, exchange: Exchange) -> None:
        exchange.respond(200, b"")

    def _version(self, exchange: Exchange) -> None:
        exchange.respond(200, b'{"version":"0.32.0+simulated"}')

    def _metrics_page(self, exchange: Exchange) -> None:
        self._loop.advance()
        page = metrics.render(
            self.scheduler, self._metrics, model=self.settings.models[0], started_wall=self._started_wall
        )
        exchange.respond(200, page, "text/plain; version=0.0.4; charset=utf-8")

    def _models(self, exchange: Exchange) -> None:
        data = [
            {
                "id": name,
                "object": "model",
                "created": int(self._started_wall),
                "owned_by": "vllm",
                "root": name,
                "parent": None,
                "max_model_len": self._context_tokens,
            }
            for name in self.settings.models
        ]
        exchange.respond(200, orjson.dumps({"object": "list", "data": data}))

    def _chat(self, exchange: Exchange) -> None:
        self._generate(exchange, chat=True)

    def _completion(self, exchange: Exchange) -> None:
        self._generate(exchange, chat=False)

    def _generate(self, exchange: Exchange, *, chat: bool) -> None:
        self.last_inference_at = asyncio.get_running_loop().time()
        request = openai.read_generation(exchange.body, chat=chat, served=self._serves)
        Generation(exchange, request, self._loop, self._metrics, self._context_tokens).start()

    def _embedding(self, exchange: Exchange) -> None:
        self.last_inference_at = asyncio.get_running_loop().time()
        request = openai.read_embedding(exchange.body, served=self._serves)
        Embedding(exchange, request, self._loop, self._metrics, self._context_tokens).start()

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        self.scheduler.pool.forget()
        exchange.respond(200, b"")

    def _state(self, exchange: Exchange) -> None:
        self._loop.advance()
        scheduler = self.scheduler
        state: dict[str, Any] = {
            "product": self._profile.product,
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "kv_usage": scheduler.kv_usage,
            "speed": scheduler.speed,
            "connections": len(self._connections),
            "steps": scheduler.counters.steps,
            "busy_seconds": scheduler.counters.busy_seconds,
        }
        exchange.respond(200, orjson.dumps(state))

    def _faults(self, exchange: Exchange) -> None:
        """``{"fault": "slow", "factor": 0.1}``, or hang, freeze, refuse, crash, lose_gpu; ``{}`` takes slow and hang back."""
        data = openai.read_json(exchange.body)
        fault, factor = data.get("fault"), data.get("factor", 0.1)
        if fault is None:
            self.slow(1.0)
            self._loop.resume()
        elif fault == "slow" and isinstance(factor, int | float) and factor > 0:
            self.slow(float(factor))
        elif fault in ("hang", "freeze", "refuse", "crash", "lose_gpu"):
            # The answer goes out before the fault strikes.
            asyncio.get_running_loop().call_soon(getattr(self, fault))
        else:
            raise Refused(400, "fault must be slow (with a factor above 0), hang, freeze, refuse, crash or lose_gpu")
        exchange.respond(200, b"{}")
