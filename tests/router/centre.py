"""A real control plane in this process, on SQLite: stopped and started again on the same ports and database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from controlplane.main import run
from controlplane.settings import ControlPlaneSettings
from tests.router.waiting import until

BOOTSTRAP = "bootstrap-token-of-the-router-tests"


class Centre:
    """One control plane and an administrator's client for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports: dict[str, int] = {"http": 0, "grpc": 0}
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._admin = BOOTSTRAP

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    async def start(self) -> None:
        settings = ControlPlaneSettings.embedded(
            database_url=f"sqlite:///{self._folder / 'centre.sqlite3'}",
            bootstrap_admin_token=BOOTSTRAP,
            port=self.ports["http"],
            grpc_port=self.ports["grpc"],
            shutdown_grace_seconds=0.2,
        )
        ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._task = task = asyncio.create_task(
            run(settings, stop=self._stop, ready=ready.set, on_bound=self.ports.__setitem__)
        )
        await until(lambda: task.done() or ready.is_set(), 30)
        if task.done():
            task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._stop.set()
            await self._task
            self._task = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Centre]:
        await self.start()
        try:
            self._admin = await self.token("root", "admin")
            yield self
        finally:
            await self.stop()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer of the admin API. Raises AssertionError for an error, with its text."""
        url = f"http://127.0.0.1:{self.ports['http']}/api/v1{path}"
        headers = {"authorization": f"Bearer {self._admin}"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json=body, headers=headers) as answer,
        ):
            text = await answer.text()
            assert answer.status < 300, f"{method} {path}: {answer.status} {text}"
            return await answer.json() if text else None

    async def apply(self, *resources: tuple[str, str, dict[str, Any]]) -> None:
        """Create or change resources, each (kind, name, spec)."""
        await self.call("POST", "/apply", [{"kind": k, "name": n, "spec": s} for k, n, s in resources])

    async def token(self, name: str, role: str, region: str | None = None) -> str:
        spec = {"role": role} | ({"region": region} if region else {})
        return str((await self.call("POST", "/admin-tokens", {"name": name, "spec": spec}))["secret"])

    async def join_token(self, name: str, **spec: Any) -> str:
        return str((await self.call("POST", "/join-tokens", {"name": name, "spec": spec}))["secret"])
