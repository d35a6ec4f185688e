"""Several processes that share one inference port. Each is a router of its own, with its own identity, streams and state."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from fleet.errors import HeadraceError
from fleet.process.logs import get_logger
from fleet.process.serve import bind
from regional.settings import RouterSettings

POLL_SECONDS = 0.2
RESTART_PAUSE_SECONDS = 1.0
KILLED_SECONDS = 5.0
WorkerMain = Callable[[RouterSettings, Connection], None]
"""Serves one worker until SIGTERM; sends True over the connection once it is ready, or a text when it cannot start."""


class WorkerFailed(HeadraceError):
    """A worker could not start; the text is its own error."""


async def run_workers(
    settings: RouterSettings, main: WorkerMain, *, stop: asyncio.Event, ready: Callable[[], None] | None
) -> None:
    """Run ``settings.workers`` processes until ``stop``; one that dies is started again.

    ``ready`` is called once all are ready. Raises WorkerFailed when one cannot start, BindError when the port is taken.
    """
    # A taken port is found here, once, instead of by each worker: they share it among themselves and with nobody else.
    with bind(settings.host, settings.port) as probe:
        settings = settings.model_copy(update={"port": probe.getsockname()[1]})
    context = multiprocessing.get_context("spawn")
    workers = [_Worker(context, settings.worker(i), main, i) for i in range(settings.workers)]
    told = False
    try:
        while not stop.is_set():
            for worker in workers:
                worker.look()
            if not told and all(worker.ready for worker in workers):
                told = True
                if ready is not None:
                    ready()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await stop.wait()
            except TimeoutError:
                continue
    finally:
        for worker in workers:
            worker.terminate()
        grace = settings.shutdown_delay_seconds + settings.shutdown_grace_seconds + 5.0
        await asyncio.to_thread(_join, workers, grace)


def _join(workers: list[_Worker], grace_seconds: float) -> None:
    for worker in workers:
        worker.process.join(grace_seconds)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(KILLED_SECONDS)
        worker.pipe.close()


class _Worker:
    """One process and its successors."""

    def __init__(
        self, context: multiprocessing.context.SpawnContext, settings: RouterSettings, main: WorkerMain, index: int
    ) -> None:
        self._context = context
        self._settings = settings
        self._main = main
        self._index = index
        self._was_ready = False
        self._start_at: float | None = None
        self.ready = False
        self.process, self.pipe = self._start()

    def _start(self) -> tuple[SpawnProcess, Connection]:
        parent, child = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=self._main, args=(self._settings, child), name=f"headrace-router-{self._index}"
        )
        process.start()
        child.close()
        return process, parent

    def look(self) -> None:
        """Notice readiness and death. Raises WorkerFailed when it died before it was ever ready."""
        try:
            while self.pipe.poll():
                said = self.pipe.recv()
                if said is True:
                    self.ready = self._was_ready = True
                else:
                    raise WorkerFailed(str(said))
        except EOFError:
            pass  # it is gone; the exit code below says so
        if self.process.is_alive():
            return
        self.ready = False
        if not self._was_ready:
            raise WorkerFailed(f"worker {self._index} ended with code {self.process.exitcode} before it was ready")
        loop_time = asyncio.get_running_loop().time()
        if self._start_at is None:
            get_logger("router").error("worker ended", worker=self._index, code=self.process.exitcode)
            self._start_at = loop_time + RESTART_PAUSE_SECONDS
        elif loop_time >= self._start_at:
            self._start_at = None
            self.pipe.close()
            self.process, self.pipe = self._start()

    def terminate(self) -> None:
        if self.process.is_alive() and self.process.pid is not None:
            self.process.terminate()


def stop_with_parent(stop: asyncio.Event) -> None:
    """In a worker: stop at SIGTERM, or when the parent is gone. The terminal's Ctrl-C is the parent's, which sends SIGTERM."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def orphaned() -> None:
        loop.remove_reader(parent.sentinel)
        stop.set()

    # The sentinel becomes readable when the parent ends, however it ends.
    loop.add_reader(parent.sentinel, orphaned)
