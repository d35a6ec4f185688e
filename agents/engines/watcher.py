"""Watches engines over HTTP and says what they are like now. Needs no devices: routers use it for endpoints without an agent.

watcher = EngineWatcher(interval_seconds=0.4)
watcher.set_targets([EngineTarget(uid, name, EngineKind.VLLM, "http://10.0.0.7:8000")])
task = asyncio.create_task(watcher.run())
watcher.reports()        # EndpointReports as of now, whenever wanted; devices are for the caller to add
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from agents.engines.base import EngineTarget
from agents.engines.watch import Watch
from agents.lifecycle import Limits
from agents.probes import EngineHttp
from fleet.clock import Clock, SystemClock
from fleet.endpoint import EndpointReport


class RangedPlaces(Protocol):
    """Where a host may be dialled: its addresses inside ``ranges``. Raises OSError when there is none."""

    async def __call__(self, host: str, port: int, ranges: tuple[str, ...]) -> list[str]: ...


class EngineWatcher:
    """One task an engine, so that a slow engine holds up no other. All methods are for one event loop."""

    def __init__(
        self,
        *,
        interval_seconds: float = 0.4,
        timeout_seconds: float = 2.0,
        limits: Limits | None = None,
        clock: Clock | None = None,
        on_change: Callable[[], None] | None = None,
        places: RangedPlaces | None = None,
    ) -> None:
        """``on_change`` is called when an engine's phase, models or incarnation changed: something to report at once.

        ``places(host, port, ranges)`` resolves the names of targets that have ranges.
        """
        self._interval_seconds = interval_seconds
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._on_change = on_change
        self._timeout_seconds = timeout_seconds
        self._places = places
        self._https: dict[tuple[str, ...], EngineHttp] = {}
        """By ranges: a connection made under some is none for a target with others."""
        self._watches: dict[str, Watch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self._failed: asyncio.Future[None] | None = None

    def set_targets(self, targets: Iterable[EngineTarget]) -> None:
        """Watch exactly these from now on. A target with a known uid keeps what has been learned, unless it moved."""
        wanted = {t.uid: t for t in targets}
        moved = {uid for uid, w in self._watches.items() if uid in wanted and w.target.ranges != wanted[uid].ranges}
        for uid in (self._watches.keys() - wanted.keys()) | moved:
            del self._watches[uid]
            task = self._tasks.pop(uid, None)
            if task is not None:
                task.cancel()
        for uid, target in wanted.items():
            watch = self._watches.get(uid)
            if watch is None:
                self._watches[uid] = Watch(
                    target, self._http(target.ranges), self._clock, self._interval_seconds, self._limits, self._changed
                )
                if self._running:
                    self._start(uid)
            else:
                watch.retarget(target)

    def reports(self) -> list[EndpointReport]:
        """Every engine as it is now, by the order of ``set_targets``."""
        now = self._clock.monotonic()
        return [watch.report(now) for watch in self._watches.values()]

    def watches(self) -> list[Watch]:
        """For metrics of the watching itself."""
        return list(self._watches.values())

    async def run(self) -> None:
        """Watch until cancelled. An error in our own code ends it, loudly; engines can do nothing that does."""
        self._running = True
        self._failed = asyncio.get_running_loop().create_future()
        for uid in self._watches:
            self._start(uid)
        try:
            await self._failed
        finally:
            self._running = False
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for http in self._https.values():
                await http.aclose()

    def _http(self, ranges: tuple[str, ...]) -> EngineHttp:
        http = self._https.get(ranges)
        if http is None:
            places = None if not ranges or self._places is None else partial(self._places, ranges=ranges)
            http = self._https[ranges] = EngineHttp(timeout_seconds=self._timeout_seconds, places=places)
        return http

    def _start(self, uid: str) -> None:
        task = asyncio.get_running_loop().create_task(self._watches[uid].run(), name=f"engine-{uid}")
        task.add_done_callback(self._ended)
        self._tasks[uid] = task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._failed is None or self._failed.done():
            return
        error = task.exception()
        if error is not None:
            self._failed.set_exception(error)

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()
