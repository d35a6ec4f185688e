"""The tasks of a process: started together, ended together, and none can die unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

ENDING_SECONDS = 3.0


class Supervisor:
    """Runs tasks that should live as long as the process."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until :meth:`close`; if it ends or fails before, :meth:`wait` says so."""
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when ``stop`` is set. Raises what a task raised, or RuntimeError when one ended by itself."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait((stopped, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if stopped in done:
            return
        for task in done:
            task.result()
            raise RuntimeError(f"task {task.get_name()} ended before it was told to")

    async def ended(self, name: str) -> None:
        """Wait for one task that was told to end by other means; it has a few seconds before it is cancelled."""
        for task in [task for task in self._tasks if task.get_name() == name]:
            await asyncio.wait((task,), timeout=ENDING_SECONDS)

    async def close(self) -> None:
        """End all tasks, newest first, each having finished before the next is told."""
        while self._tasks:
            task = self._tasks.pop()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
