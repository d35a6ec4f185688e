"""The tasks of a process: started together, ended together; none can die unnoticed, and few take the process with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

ENDING_SECONDS = 3.0
RESTART_SECONDS = 1.0

Work = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """Runs tasks that should live as long as the process."""

    def __init__(self, on_fault: Callable[[str, BaseException | None], None]) -> None:
        """``on_fault(name, error)`` is told of each task that failed, or (None) ended by itself."""
        self._on_fault = on_fault
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, name: str, work: Work) -> None:
        """Run ``work`` until :meth:`close`. If it fails or ends before, that is told, and it starts anew after a second:
        a part that is broken must not take the requests with it that do without it."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._again_and_again(name, work), name=name))

    def start_vital(self, name: str, work: Work) -> None:
        """Run ``work`` until :meth:`close`. The process cannot go on without it: :meth:`wait` raises what it raised."""
        self._tasks.append(asyncio.get_running_loop().create_task(work(), name=name))

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when ``stop`` is set. Raises what a vital task raised, or RuntimeError when one ended by itself."""
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

    async def _again_and_again(self, name: str, work: Work) -> None:
        while True:
            error: BaseException | None = None
            try:
                await work()
            except Exception as caught:  # noqa: BLE001  # any fault of ours: it is told with its traceback
                error = caught
            self._on_fault(name, error)
            await asyncio.sleep(RESTART_SECONDS)
