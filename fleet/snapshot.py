"""The intent snapshot: an immutable, self-consistent picture of what users want, at one (epoch, version).

An intent object carries its spec in the very form of the REST API and the fleet file (JSON, ``fleet.resources``), so there
is one definition of a resource, and a neighbour one release older can skip fields it does not know. Secrets travel apart
from the spec, so that a snapshot can be shown without them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SECRETS_KIND = "secrets"
"""The one object that holds peppers and keys: ``secrets`` = {peppers, hop_keys, identity_keys}. Never in `/snapshot`."""

_DIGEST_BYTES = 32
_MODULUS = 1 << (8 * _DIGEST_BYTES)
EMPTY_DIGEST = bytes(_DIGEST_BYTES)


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@dataclass(frozen=True, slots=True)
class IntentObject:
    """One resource as published. ``spec`` and ``secrets`` are JSON objects and must not be changed."""

    kind: str
    uid: str
    name: str
    generation: int
    spec: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> tuple[str, str]:
        return (self.kind, self.uid)

    def digest(self) -> int:
        """Hash of the content as an integer, to be added up (see :func:`content_digest`)."""
        body = canonical_json([self.kind, self.uid, self.name, self.generation, self.spec, self.labels, self.secrets])
        return int.from_bytes(hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest(), "big")


@dataclass(frozen=True, slots=True)
class IntentVersion:
    """A point in the history of intent. Ordered by (epoch, version); ``chain`` tells two histories apart."""

    epoch: int = 0
    version: int = 0
    chain: bytes = b""
    """The publisher's digest over all changes up to this version; a receiver only stores it and sends it back."""

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.version)


def content_digest(objects: Iterable[IntentObject]) -> bytes:
    """Order-free digest of a set of objects: the sum of their hashes mod 2^256, so a delta updates it in its own size.

    An integrity check between parties that trust each other, not a commitment against an adversary.
    """
    return sum_digests(o.digest() for o in objects)


def sum_digests(digests: Iterable[int]) -> bytes:
    """:func:`content_digest` of objects whose :meth:`IntentObject.digest` is known already."""
    return (sum(digests) % _MODULUS).to_bytes(_DIGEST_BYTES, "big")


def digest_after(digest: bytes, removed: Iterable[IntentObject], added: Iterable[IntentObject]) -> bytes:
    """Digest of a set after taking ``removed`` out and putting ``added`` in."""
    total = int.from_bytes(digest, "big") - sum(o.digest() for o in removed) + sum(o.digest() for o in added)
    return (total % _MODULUS).to_bytes(_DIGEST_BYTES, "big")


@dataclass(frozen=True, slots=True)
class IntentSnapshot:
    """Everything one region is told, at one version. Never changed; a new one replaces it whole."""

    at: IntentVersion
    region: str
    objects: Mapping[tuple[str, str], IntentObject]
    content: bytes = EMPTY_DIGEST
    """:func:`content_digest` of ``objects``."""

    @classmethod
    def of(cls, at: IntentVersion, region: str, objects: Iterable[IntentObject]) -> IntentSnapshot:
        table = {o.key: o for o in objects}
        return cls(at, region, table, content_digest(table.values()))
