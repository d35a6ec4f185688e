"""A bare engine for router tests: health, models, completions; it can hang, die and be counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

_HEAD = "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{more}\r\n"


class BareEngine:
    """Answers ``GET /health``, ``GET /v1/models`` and any POST under ``/v1`` with its own name."""

    def __init__(self, name: str, model: str = "m", port: int = 0) -> None:
        self.name = name
        self.model = model
        self.port = port
        self.requests = 0
        """POSTs begun."""
        self.probes = 0
        """GETs answered."""
        self.hanging = False
        """True: connections are accepted and nothing is ever answered."""
        self.hold = asyncio.Event()
        """Clear it to keep POSTs waiting."""
        self.hold.set()
        self.waiting = 0
        self.retry_after: int | None = None
        """POSTs are refused with 429 and this many seconds of Retry-After."""
        self.on_probe: Callable[[], None] | None = None
        """Called when a GET of ``/health`` has come, before it is answered."""
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As if its process were killed: the port refuses, open connections are reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._connections):
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[BareEngine]:
        await self.start()
        try:
            yield self
        finally:
            await self.kill()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.split("\r\n")
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                if self.hanging:
                    await asyncio.Event().wait()
                writer.write(await self._answer(method, path, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client, or the test, is gone
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, method: str, path: str, body: bytes) -> bytes:
        if method == "GET":
            self.probes += 1
            if path == "/health":
                if self.on_probe is not None:
                    self.on_probe()
                return _reply(200, {"status": "ok"})
            if path == "/v1/models":
                return _reply(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
            return _reply(404, {"error": "not found"})
        self.requests += 1
        self.waiting += 1
        try:
            await self.hold.wait()
        finally:
            self.waiting -= 1
        if self.retry_after is not None:
            return _reply(429, {"error": "busy"}, f"retry-after: {self.retry_after}\r\n")
        asked = json.loads(body)
        message = {"role": "assistant", "content": f"from {self.name}"}
        return _reply(
            200,
            {
                "id": "x",
                "object": "chat.completion",
                "model": asked.get("model"),
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            },
        )


def _reply(status: int, body: object, more: str = "") -> bytes:
    data = json.dumps(body).encode()
    return _HEAD.format(status=status, kind="application/json", length=len(data), more=more).encode() + data
