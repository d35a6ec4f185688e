"""The snapshot a router holds, and the rules by which it is replaced. No sockets and no clock: the watch drives it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet.delta import IntentDelta, apply
from fleet.errors import DigestMismatch, StaleVersion
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion
from regional.sync.plausibility import Objects, Rejection, sift


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """What is kept on disk: the publisher's snapshot as it came, and what is used instead of its implausible sections."""

    published: IntentSnapshot
    kept: tuple[IntentObject, ...] = ()
    """Objects in use that the publisher no longer lists."""
    left_out: frozenset[tuple[str, str]] = frozenset()
    """Keys the publisher lists that are not in use."""


class HeldSnapshot:
    """The publisher's snapshot (for versions, digests and deltas) and the objects in use (after the plausibility check)."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._published: IntentSnapshot | None = None
        self._used: Objects = {}
        self._rejections: tuple[Rejection, ...] = ()
        self._new_rejections: tuple[Rejection, ...] = ()

    @property
    def at(self) -> IntentVersion:
        """What is held; version 0 when nothing is."""
        return self._published.at if self._published else IntentVersion()

    @property
    def empty(self) -> bool:
        return self._published is None

    @property
    def objects(self) -> Iterable[IntentObject]:
        """The objects in use."""
        return self._used.values()

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Sections of the held version that are not believed, so not in use."""
        return self._rejections

    @property
    def new_rejections(self) -> tuple[Rejection, ...]:
        """Those of them that the version before did not have."""
        return self._new_rejections

    def offer_full(self, offered: IntentSnapshot, *, confirmed: bool = False) -> bool:
        """Take a complete snapshot. True when something changed.

        Raises StaleVersion when it is older than what is held, or is another region's; what is held then stays.
        """
        if offered.region != self._region:
            raise StaleVersion(f"a snapshot of region {offered.region!r} was sent to a router of {self._region!r}")
        held = self._published
        if held is not None:
            if offered.at.order < held.at.order:
                raise StaleVersion(f"a snapshot at {offered.at.order} was offered, held is {held.at.order}")
            if offered.at == held.at and offered.content == held.content and not confirmed:
                return False
        self._take(offered, confirmed)
        return True

    def offer_delta(self, delta: IntentDelta, *, confirmed: bool = False) -> bool:
        """Apply a delta. True when something changed; a duplicate changes nothing.

        Raises StaleVersion or DigestMismatch when it does not fit; what is held stays and a full snapshot is wanted.
        """
        if self._published is None:
            raise StaleVersion("a delta was sent to a router that holds nothing")
        after = apply(self._published, delta)
        if after is self._published:
            return False
        self._take(after, confirmed)
        return True

    def store(self) -> StoredSnapshot | None:
        """What to put on disk; None when nothing is held."""
        if self._published is None:
            return None
        published = self._published.objects
        if self._used is published:
            return StoredSnapshot(self._published)
        kept = tuple(obj for key, obj in self._used.items() if key not in published)
        return StoredSnapshot(self._published, kept, frozenset(published.keys() - self._used.keys()))

    def restore(self, stored: StoredSnapshot) -> None:
        """Start from what was on disk. Raises StaleVersion when it is another region's."""
        if stored.published.region != self._region:
            raise StaleVersion(f"the snapshot on disk is of region {stored.published.region!r}")
        self._published = stored.published
        used = stored.published.objects
        if stored.kept or stored.left_out:
            used = {key: obj for key, obj in used.items() if key not in stored.left_out}
            used.update((obj.key, obj) for obj in stored.kept)
        self._used = used

    def _take(self, offered: IntentSnapshot, confirmed: bool) -> None:
        used, rejections = sift(self._used, offered.objects, confirmed=confirmed)
        before = {(r.kind, r.reason) for r in self._rejections}
        self._published = offered
        self._used = used
        self._rejections = rejections
        self._new_rejections = tuple(r for r in rejections if (r.kind, r.reason) not in before)


class ChunkAssembler:
    """Collects the chunks of one full snapshot; bounded, so that a broken sender cannot fill the memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._objects: list[IntentObject] = []
        self._head: tuple[IntentVersion, str] | None = None
        self._next = 0

    @property
    def under_way(self) -> bool:
        return self._next > 0

    def add(
        self,
        at: IntentVersion,
        region: str,
        index: int,
        objects: Iterable[IntentObject],
        size_bytes: int,
    ) -> None:
        """Raises StaleVersion for a gap, mixed versions, or a snapshot larger than the limit."""
        if index == 0:
            self._objects, self._bytes, self._head, self._next = [], 0, (at, region), 0
        if index != self._next or self._head != (at, region):
            raise StaleVersion("chunks of a snapshot are out of order or of different versions")
        self._bytes += size_bytes
        if self._bytes > self._max_bytes:
            raise StaleVersion(f"a snapshot of more than {self._max_bytes} bytes is refused")
        self._objects.extend(objects)
        self._next += 1

    def finish(self, content: bytes) -> IntentSnapshot:
        """The whole, after its last chunk. Raises DigestMismatch when it does not hash to ``content``."""
        assert self._head is not None
        at, region = self._head
        snapshot = IntentSnapshot.of(at, region, self._objects)
        doubled = len(snapshot.objects) != len(self._objects)
        self._objects, self._bytes, self._head, self._next = [], 0, None, 0
        if doubled:
            raise DigestMismatch("a snapshot names an object twice")
        if snapshot.content != content:
            raise DigestMismatch("a snapshot does not hash to what its sender says")
        return replace(snapshot, content=content)
