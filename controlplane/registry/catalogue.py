"""All intent objects at one version, and the snapshots of regions made from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.registry.projection import PLACED_KINDS, Key, Placement, project, seen_from
from fleet.delta import IntentDelta
from fleet.resources.translate import HOLD_KIND
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion, canonical_json, digest_after, sum_digests

FORM = 1
"""Raised when this software publishes the same intent in another form, so that nobody continues from the old one."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One object after a change; None says it is gone."""

    key: Key
    obj: IntentObject | None


class Catalogue:
    """Intent as last read from the database. Changed only by :meth:`advance`; objects themselves are never changed.

    Building one hashes every object, which takes a good part of a second for tens of thousands; what follows is quick.

    The chain digest of a published version covers, beside the feed's own chain, all else that decides what a region is sent:
    its name, the secrets object and the form. Copies that would publish anything different therefore never agree by accident.
    """

    def __init__(self, at: IntentVersion, objects: Iterable[IntentObject], secrets: IntentObject) -> None:
        self._at = at
        self._objects: dict[Key, IntentObject] = {o.key: o for o in objects}
        self._secrets = secrets
        self._salt = canonical_json([FORM, format(secrets.digest(), "x")])
        self._placement = Placement.of(self._objects.values())
        self._digests: dict[Key, tuple[IntentObject, int]] = {}
        self._names: dict[str, dict[str, str]] = {}
        for obj in self._objects.values():
            self._names.setdefault(obj.kind, {})[obj.uid] = obj.name
            self._digest(obj)

    @property
    def at(self) -> IntentVersion:
        """The feed's own version, with the feed's chain."""
        return self._at

    @property
    def objects(self) -> Mapping[Key, IntentObject]:
        return self._objects

    @property
    def placement(self) -> Placement:
        return self._placement

    def names(self, kind: str) -> Mapping[str, str]:
        """uid to name of all objects of a kind. Live: it changes with :meth:`advance`."""
        return self._names.setdefault(kind, {})

    def published(self, region: str) -> IntentVersion:
        """The version as ``region`` sees it."""
        return published_version(self._at, region, self._salt)

    def snapshot(self, region: str) -> IntentSnapshot:
        """Everything ``region`` is told now."""
        seen = {o.key: o for o in project(self._objects.values(), region, self._placement)}
        seen[self._secrets.key] = self._secrets
        return IntentSnapshot(self.published(region), region, seen, sum_digests(self._digest(o) for o in seen.values()))

    def advance(self, at: IntentVersion, changes: Iterable[ObjectChange]) -> frozenset[Key] | None:
        """Take in changes up to ``at``. Returns the keys that changed, or None when any object may have changed region."""
        keys: set[Key] = set()
        for change in changes:
            if change.obj is None:
                self._objects.pop(change.key, None)
                self._digests.pop(change.key, None)
                self._names.get(change.key[0], {}).pop(change.key[1], None)
            else:
                self._objects[change.key] = change.obj
                self._names.setdefault(change.key[0], {})[change.key[1]] = change.obj.name
            keys.add(change.key)
        self._at = at
        kinds = {kind for kind, _ in keys}
        if kinds & PLACED_KINDS or "endpoint" in kinds:
            self._placement = Placement.of(self._objects.values())
        if kinds & PLACED_KINDS:
            return None
        if "endpoint" in kinds:  # who is told of a hold depends on where its target is
            keys.update(k for k in self._objects if k[0] == HOLD_KIND)
        return frozenset(keys)

    def next_snapshot(self, old: IntentSnapshot, keys: frozenset[Key] | None) -> tuple[IntentSnapshot, IntentDelta]:
        """The region's snapshot after :meth:`advance` returned ``keys``, and the delta to it (perhaps empty)."""
        if keys is None:
            fresh = {o.key: o for o in project(self._objects.values(), old.region, self._placement)}
            fresh[self._secrets.key] = self._secrets
            touched = [k for k in fresh.keys() | old.objects.keys() if fresh.get(k) != old.objects.get(k)]
        else:
            touched = [k for k in keys if self._seen(k, old.region) != old.objects.get(k)]
            fresh = dict(old.objects)
            for key in touched:
                seen = self._seen(key, old.region)
                if seen is None:
                    del fresh[key]
                else:
                    fresh[key] = seen
        touched.sort()
        upserts = tuple(fresh[k] for k in touched if k in fresh)
        removals = tuple(k for k in touched if k not in fresh)
        content = digest_after(old.content, (old.objects[k] for k in touched if k in old.objects), upserts)
        new = IntentSnapshot(self.published(old.region), old.region, fresh, content)
        return new, IntentDelta(old.at, new.at, upserts, removals, content)

    def _seen(self, key: Key, region: str) -> IntentObject | None:
        obj = self._objects.get(key)
        return None if obj is None else seen_from(obj, region, self._placement)

    def _digest(self, obj: IntentObject) -> int:
        """Hashed once for all regions that are told the same object."""
        known = self._digests.get(obj.key)
        if known is not None and known[0] is obj:
            return known[1]
        digest = obj.digest()
        if self._objects.get(obj.key) is obj:
            self._digests[obj.key] = (obj, digest)
        return digest


def published_version(at: IntentVersion, region: str, salt: bytes) -> IntentVersion:
    chain = hashlib.blake2b(canonical_json([at.chain.hex(), region]) + salt, digest_size=16).digest()
    return IntentVersion(at.epoch, at.version, chain)
