"""From the held snapshot, or the one on disk, to the intent in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fleet.errors import StaleVersion
from fleet.resources.translate import SpecCache, intent_of
from regional.sync.held import HeldSnapshot
from regional.sync.keeper import SnapshotKeeper
from regional.sync.present import PresentIntent
from regional.sync.snapshot_file import CorruptSnapshot, SnapshotFile
from regional.sync.watch import Freshness


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
    ) -> None:
        """``on_applied(order, unread)`` is told each new intent and the parts of it that could not be read."""
        self._held = held
        self._freshness = freshness
        self._present = present
        self._file = file
        self._keeper = keeper
        self._on_applied = on_applied
        self._on_corrupt = on_corrupt
        self._specs = SpecCache()

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
        await self._use()
        return True

    async def changed(self) -> None:
        """What is held is another version now."""
        await self._use()
        if self._keeper is not None:
            self._keeper.changed()

    async def _use(self) -> None:
        at = self._held.at
        objects = list(self._held.objects)
        self._specs.keep({obj.key for obj in objects})
        # Reading tens of thousands of specs takes a good part of a second; requests go on meanwhile.
        intent, unread = await asyncio.to_thread(intent_of, at, self._present().region, objects, self._specs)
        self._on_applied(at.order, unread)
        self._present.replace(intent)
