"""A whole router in this process, for tests: started, reached, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from headrace import embedded_agent
from regional.main import run
from regional.settings import RouterSettings
from regional.shared.base import SharedState
from tests.router.waiting import until

MODEL = "m"


class RunningRouter:
    """One router and an HTTP client for it."""

    def __init__(self, settings: RouterSettings, shared: SharedState | None, *, embedded: bool) -> None:
        self.settings = settings
        self.ports: dict[str, int] = {}
        self.is_ready = asyncio.Event()
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(
            run(
                settings,
                stop=self.stop,
                ready=self.is_ready.set,
                embedded_agent_factory=embedded_agent.create if embedded else None,
                on_bound=self.ports.__setitem__,
                shared=shared,
                environ={},
            )
        )

    _scheme = "http"
    _tls: ssl.SSLContext | None = None

    def trust(self, context: ssl.SSLContext) -> None:
        """Talk to it over TLS from now on."""
        self._scheme, self._tls = "https", context

    def _client(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._tls) if self._tls is not None else None
        return aiohttp.ClientSession(connector=connector)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.ports['http']}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    @property
    def admin(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.ports['admin']}"

    async def page(self, path: str) -> Any:
        """JSON of a page of the admin port."""
        async with self._client() as session, session.get(self.admin + path) as answer:
            return await answer.json()

    async def metric(self, name: str, **labels: str) -> float | None:
        """Value of one series on ``/metrics``; None when it is absent."""
        from prometheus_client.parser import text_string_to_metric_families

        async with self._client() as session, session.get(self.admin + "/metrics") as answer:
            text = await answer.text()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    async def chat(self, key: str = "", **extra: Any) -> tuple[int, dict[str, str], Any]:
        """One chat request: (status, headers in lower case, body)."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **extra}
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with (
            self._client() as session,
            session.post(self.url + "/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.json()

    async def serves(self, key: str = "") -> bool:
        """True when a chat request is answered with 200 now."""
        with contextlib.suppress(aiohttp.ClientError):
            return (await self.chat(key))[0] == 200
        return False


@contextlib.asynccontextmanager
async def router(
    settings: RouterSettings, *, shared: SharedState | None = None, embedded: bool = True, wait_ready: bool = True
) -> AsyncIterator[RunningRouter]:
    """Run a router for the block; a router that cannot start raises here."""
    running = RunningRouter(settings, shared, embedded=embedded)
    try:
        await until(
            lambda: running.task.done() or ("admin" in running.ports and (running.is_ready.is_set() or not wait_ready))
        )
        if running.task.done():
            running.task.result()
        yield running
    finally:
        running.stop.set()
        async with asyncio.timeout(15):
            await asyncio.gather(running.task, return_exceptions=True)
        if running.task.exception() is not None and not running.task.cancelled():
            raise running.task.exception()  # type: ignore[misc]


def fleet_file(
    path: Path,
    *engines: tuple[str, str],
    region: str = "eu",
    regions: tuple[str, ...] = ("eu",),
    public_urls: dict[str, str] | None = None,
    more: str = "",
) -> Path:
    """A fleet file with one zone and node a region, and ``engines`` (name, url) in ``region``."""
    documents = [f"kind: model\nname: {MODEL}\nspec: {{task: chat}}"]
    for name in regions:
        url = (public_urls or {}).get(name)
        spec = f'spec: {{public_url: "{url}"}}' if url else "spec: {}"
        documents += [
            f"kind: region\nname: {name}\n{spec}",
            f"kind: zone\nname: {name}-a\nspec: {{region: {name}}}",
            f"kind: node\nname: {name}-a-1\nspec: {{zone: {name}-a, gpus: [{{product: h100-sxm-80, count: 8}}]}}",
        ]
    for name, url in engines:
        documents.append(
            f"kind: endpoint\nname: {name}\nspec: {{node: {region}-a-1, url: '{url}', engine: openai, "
            f"models: [{MODEL}], gpus: ['0']}}"
        )
    if more:
        documents.append(more)
    path.write_text("\n---\n".join(documents))
    return path
