"""From the held snapshot, or the one on disk, to the intent in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fleet.errors import StaleVersion
from fleet.resources.translate import SpecCache, intent_of
from fleet.snapshot import IntentVersion
from regional.sync.held import HeldSnapshot
from regional.sync.keeper import SnapshotKeeper
from regional.sync.present import PresentIntent
from regional.sync.snapshot_file import CorruptSnapshot, SnapshotFile
from regional.sync.watch import Freshness

RETRY_SECONDS = 1.0


class IntentLoader:
    """Puts what is held into use, and sees to it that it gets to disk."""

    def __init__(
        self,
        held: HeldSnapshot,
        freshness: Freshness,
        present: PresentIntent,
        file: SnapshotFile | None,
        keeper: SnapshotKeeper | None,
        on_applied: Callable[[tuple[int, int], list[str]], None],
        on_corrupt: Callable[[str], None],
        on_failed: Callable[[tuple[int, int], Exception], None],
    ) -> None:
        """``on_applied(order, unread)`` is told each new intent and the parts of it that could not be read.

        ``on_failed(order, error)`` is told each try to use a version that failed: a fault of ours, tried again by :meth:`run`.
        """
        self._held = held
        self._freshness = freshness
        self._present = present
        self._file = file
        self._keeper = keeper
        self._on_applied = on_applied
        self._on_corrupt = on_corrupt
        self._on_failed = on_failed
        self._specs = SpecCache()
        self._one_at_a_time = asyncio.Lock()
        self._failed = asyncio.Event()
        self._applied = IntentVersion()

    @property
    def applied(self) -> IntentVersion:
        """What all parts of this router go by: the version held, or an older one while that cannot be used."""
        return self._applied

    async def restore(self) -> bool:
        """Start from the snapshot on disk, before any network. False when there is none that is good."""
        if self._file is None:
            return False
        try:
            loaded = await asyncio.to_thread(self._file.load)
            if loaded is None:
                return False
            stored, heard_wall = loaded
            self._held.restore(stored)
        except (CorruptSnapshot, StaleVersion, OSError) as error:
            self._on_corrupt(str(error))
            return False
        self._freshness.restored(heard_wall)
        return await self._use()

    async def changed(self) -> None:
        """What is held is another version now. Never raises: the watch goes on with what comes next."""
        if await self._use() and self._keeper is not None:
            self._keeper.changed()

    async def run(self) -> None:
        """Until cancelled: a version that could not be used is tried again, for nothing newer may ever come."""
        while True:
            await self._failed.wait()
            await asyncio.sleep(RETRY_SECONDS)
            if self._failed.is_set():
                await self.changed()

    async def _use(self) -> bool:
        """Bring what is held into use. False when that failed."""
        async with self._one_at_a_time:
            at = self._held.at
            try:
                objects = list(self._held.objects)
                self._specs.keep({obj.key for obj in objects})
                # Reading tens of thousands of specs takes a good part of a second; requests go on meanwhile.
                intent, unread = await asyncio.to_thread(intent_of, at, self._present().region, objects, self._specs)
                self._present.replace(intent)
            except Exception as error:  # noqa: BLE001  # any fault of ours: told with its traceback, and tried again
                self._failed.set()
                self._on_failed(at.order, error)
                return False
            self._failed.clear()
            self._applied = at
            self._on_applied(at.order, unread)
            return True
