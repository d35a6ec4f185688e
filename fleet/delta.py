"""Deltas between snapshots: a plain function each way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import DigestMismatch, StaleVersion
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion, digest_after


@dataclass(frozen=True, slots=True)
class IntentDelta:
    """What to change and remove to get from ``base`` to ``at``. An object named in neither is unchanged."""

    base: IntentVersion
    at: IntentVersion
    upserts: tuple[IntentObject, ...]
    removals: tuple[tuple[str, str], ...]
    """(kind, uid)"""
    content: bytes
    """Digest of the whole set after applying."""

    @property
    def empty(self) -> bool:
        return not self.upserts and not self.removals


def diff(old: IntentSnapshot, new: IntentSnapshot) -> IntentDelta:
    """The delta from ``old`` to ``new``. Raises StaleVersion when ``new`` is of another epoch or older."""
    if new.at.epoch != old.at.epoch or new.at.version < old.at.version:
        raise StaleVersion(f"no delta from {old.at.order} to {new.at.order}")
    upserts = tuple(o for key, o in new.objects.items() if old.objects.get(key) != o)
    removals = tuple(key for key in old.objects if key not in new.objects)
    return IntentDelta(old.at, new.at, upserts, removals, new.content)


def compose(deltas: Sequence[IntentDelta]) -> IntentDelta:
    """One delta with the effect of all of ``deltas`` in order. Raises StaleVersion when they do not follow one another."""
    if not deltas:
        raise StaleVersion("there is nothing to put together")
    upserts: dict[tuple[str, str], IntentObject] = {}
    removals: dict[tuple[str, str], None] = {}
    for before, delta in zip((None, *deltas), deltas, strict=False):
        if before is not None and before.at != delta.base:
            raise StaleVersion(f"a delta to {before.at.order} is not followed by one from {delta.base.order}")
        for key in delta.removals:
            upserts.pop(key, None)
            removals[key] = None
        for obj in delta.upserts:
            removals.pop(obj.key, None)
            upserts[obj.key] = obj
    return IntentDelta(deltas[0].base, deltas[-1].at, tuple(upserts.values()), tuple(removals), deltas[-1].content)


def apply(snapshot: IntentSnapshot, delta: IntentDelta) -> IntentSnapshot:
    """The snapshot after ``delta``.

    Applying a delta twice, or one that is already contained, returns the snapshot as it is (duplicates are harmless).
    Raises StaleVersion when the delta does not start where the snapshot stands, and DigestMismatch when the result does not
    hash to what the sender says; in both cases the caller keeps what it has and asks for a full snapshot.
    """
    if delta.at.epoch == snapshot.at.epoch and delta.at.version <= snapshot.at.version:
        return snapshot
    if delta.base.order != snapshot.at.order or delta.base.chain != snapshot.at.chain:
        raise StaleVersion(f"delta starts at {delta.base.order}, held is {snapshot.at.order}")
    objects = dict(snapshot.objects)
    removed: list[IntentObject] = []
    for key in delta.removals:
        old = objects.pop(key, None)
        if old is not None:
            removed.append(old)
    for obj in delta.upserts:
        old = objects.get(obj.key)
        if old is not None:
            removed.append(old)
        objects[obj.key] = obj
    content = digest_after(snapshot.content, removed, delta.upserts)
    if content != delta.content:
        raise DigestMismatch(f"delta to {delta.at.order} does not give the content it announces")
    return IntentSnapshot(delta.at, snapshot.region, objects, content)
