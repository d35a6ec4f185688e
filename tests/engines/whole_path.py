"""A router with an agent in front of one engine, all in this process, and a recorder on the wire between router and engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httptools

from agents.main import run as run_agent
from agents.settings import AgentSettings
from headrace.embedded_agent import create
from regional.main import run as run_router
from regional.settings import RouterSettings

KEY = "hr-whole-path-key"


@dataclass(slots=True)
class Message:
    """One HTTP response as it was on the wire, its body without transfer coding."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class ResponseReader:
    """Takes bytes of a connection, gives the responses in them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._now = Message()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._now.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._now.body += body

    def on_message_complete(self) -> None:
        self._now.status = self._parser.get_status_code()
        self.messages.append(self._now)


class Recorder:
    """Stands between router and engine and keeps what the engine said."""

    def __init__(self, engine_url: str) -> None:
        parts = urlsplit(engine_url)
        self._engine = (parts.hostname, parts.port)
        self.answers: list[Message] = []

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._engine)
            parsed = ResponseReader()
            parsed.messages = self.answers
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(pump(reader, upstream_writer, None))
                    group.create_task(pump(upstream_reader, writer, parsed))
            finally:
                upstream_writer.close()
                writer.close()
                tasks.discard(task)

        async def pump(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parsed: ResponseReader | None
        ) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    if parsed is not None:
                        parsed.feed(data)
                    writer.write(data)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def inference(self) -> list[Message]:
        """Answers to inference requests, without those to probes and scrapes."""
        return [a for a in self.answers if b'"choices"' in a.body]


@contextlib.asynccontextmanager
async def whole_path(
    folder: Path, *, kind: str, engine_url: str, models: Mapping[str, tuple[str, str]]
) -> AsyncIterator[str]:
    """The router's base URL, once the agent's engine is in rotation. ``models``: our name to (the engine's name, task)."""
    fleet = folder / "fleet.yaml"
    written = "".join(f"---\nkind: model\nname: {name}\nspec: {{task: {task}}}\n" for name, (_, task) in models.items())
    fleet.write_text(
        f"""
kind: region
name: here
spec: {{latitude: 48.9, longitude: 2.4}}
---
kind: zone
name: here-a
spec: {{region: here, endpoint_ranges: ["127.0.0.0/8"]}}
{written}---
kind: tenant
name: acme
spec: {{}}
---
kind: key
name: acme-1
spec: {{tenant: acme, secret: {KEY}}}
""",
        encoding="utf-8",
    )
    ports: dict[str, int] = {}
    stop, router_ready = asyncio.Event(), asyncio.Event()
    router = asyncio.ensure_future(
        run_router(
            RouterSettings.embedded(fleet=str(fleet), region="here", state_dir=str(folder / "router")),
            stop=stop,
            ready=router_ready.set,
            embedded_agent_factory=create,
            on_bound=ports.__setitem__,
        )
    )
    agent: asyncio.Future[None] | None = None
    try:
        await asyncio.wait_for(_first(router, router_ready.wait()), 20)
        served = {served_as: name for name, (served_as, _) in models.items()}
        engine = {"name": "engine", "kind": kind, "url": engine_url, "models": served, "gpus": ["0"]}
        settings = AgentSettings.embedded(
            node="node-1",
            zone="here-a",
            state_dir=str(folder / "agent"),
            devices="simulated:1xh100-sxm-80",
            routers=[f"127.0.0.1:{ports['grpc']}"],
            engines=[engine],
        )
        agent = asyncio.ensure_future(run_agent(settings, stop=stop))
        base = f"http://127.0.0.1:{ports['http']}"
        await asyncio.wait_for(_first(agent, _until_ready(ports["admin"])), 20)
        yield base
    finally:
        stop.set()
        running = [task for task in (agent, router) if task is not None]
        await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 20)


async def _first(process: asyncio.Future[None], awaited: object) -> None:
    """Wait for something, or for the process to end with what went wrong."""
    waiting = asyncio.ensure_future(awaited)  # type: ignore[arg-type]
    await asyncio.wait({process, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if process.done():
        waiting.cancel()
        process.result()
    await waiting


async def _until_ready(admin_port: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{admin_port}/debug/endpoints") as answer:
                nodes = (await answer.json())["nodes"]
            if any(e["phase"] == "ready" for node in nodes for e in node["endpoints"]):
                return
            await asyncio.sleep(0.05)


async def ask(url: str, path: str, body: bytes, key: str = "") -> Message:
    """One raw request on a connection of its own; the response as it was on the wire."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n{authorization}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    parsed = ResponseReader()
    try:
        async with asyncio.timeout(20):
            while not parsed.messages:
                data = await reader.read(65536)
                assert data, "the connection was closed before the answer was whole"
                parsed.feed(data)
    finally:
        writer.close()
    return parsed.messages[0]
