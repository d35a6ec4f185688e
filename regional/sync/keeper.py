"""Puts the held snapshot on disk whenever it has changed, never in the way of anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from regional.sync.held import HeldSnapshot
from regional.sync.snapshot_file import SnapshotFile
from regional.sync.watch import Freshness

MIN_INTERVAL_SECONDS = 1.0
TOUCH_INTERVAL_SECONDS = 15.0
RETRY_SECONDS = 10.0


class SnapshotKeeper:
    """Writes ``held`` to ``file`` at most once a second, the newest state last."""

    def __init__(
        self, file: SnapshotFile, held: HeldSnapshot, freshness: Freshness, on_error: Callable[[OSError], None]
    ) -> None:
        self._file = file
        self._held = held
        self._freshness = freshness
        self._on_error = on_error
        self._dirty = asyncio.Event()

    def changed(self) -> None:
        """The held snapshot is another one now."""
        self._dirty.set()

    async def run(self) -> None:
        """Until cancelled. A disk that fails is reported and tried again."""
        touched: float | None = None
        while True:
            try:
                async with asyncio.timeout(TOUCH_INTERVAL_SECONDS):
                    await self._dirty.wait()
            except TimeoutError:
                touched = await self._touch(touched)
                continue
            await asyncio.sleep(MIN_INTERVAL_SECONDS if await self.flush() else RETRY_SECONDS)

    async def flush(self) -> bool:
        """Write now what has changed and is not on disk yet. False when the disk failed."""
        stored = self._held.store() if self._dirty.is_set() else None
        self._dirty.clear()
        if stored is None:
            return True
        try:
            await asyncio.to_thread(self._file.save, stored)
        except OSError as error:
            self._dirty.set()
            self._on_error(error)
            return False
        return True

    async def _touch(self, before: float | None) -> float | None:
        heard = self._freshness.heard_wall
        if heard is None or heard == before:
            return before
        try:
            await asyncio.to_thread(self._file.touch, heard)
        except OSError as error:
            self._on_error(error)
        return heard
