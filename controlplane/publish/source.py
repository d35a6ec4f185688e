"""The store's intent feed, in the form in which the publisher reads it."""

from __future__ import annotations

from controlplane.registry.catalogue import ObjectChange
from controlplane.store.intent import IntentFeed
from fleet.errors import StaleVersion
from fleet.snapshot import IntentObject, IntentVersion


class StoreFeed:
    """Implements ``publisher.Feed``. Raises Unavailable while the database cannot be read."""

    def __init__(self, feed: IntentFeed) -> None:
        self._feed = feed
        self._last_seen: IntentVersion | None = None

    async def load(self) -> tuple[IntentVersion, list[IntentObject]]:
        return await self._feed.load_objects()

    async def changes_since(self, at: IntentVersion) -> list[tuple[IntentVersion, list[ObjectChange]]]:
        changes = await self._feed.changes_since(at)
        if changes is None:
            raise StaleVersion(f"version {at.order} is not in the database's history")
        return [
            (
                change.at,
                [ObjectChange(key, None) for key in change.removals]
                + [ObjectChange(obj.key, obj) for obj in change.upserts],
            )
            for change in changes
        ]

    async def head(self) -> IntentVersion:
        return await self._feed.head()

    async def wait(self, at: IntentVersion, timeout_seconds: float) -> bool:
        # What the feed saw last may be behind what has been read since; waiting for that to change never spins.
        self._last_seen = await self._feed.wait(self._last_seen or at, timeout_seconds)
        if self._last_seen != at:
            return True
        # The feed waits through outages in silence; asking shows that "nothing new" is what the database says.
        return await self._feed.head() != at
