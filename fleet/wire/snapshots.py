"""Snapshots and deltas, to and from protobuf; a full snapshot travels in chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from fleet.delta import IntentDelta
from fleet.errors import DigestMismatch, StaleVersion
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion, canonical_json
from fleet.wire.headrace.v1 import common_pb2, snapshot_pb2

CHUNK_BYTES = 900_000
"""Objects of a chunk, so that the message stays below 1 MB (and far below gRPC's 4 MB)."""


def version_to_wire(v: IntentVersion) -> common_pb2.IntentVersion:
    return common_pb2.IntentVersion(epoch=v.epoch, version=v.version, chain=v.chain)


def version_from_wire(m: common_pb2.IntentVersion) -> IntentVersion:
    return IntentVersion(m.epoch, m.version, m.chain)


def object_to_wire(o: IntentObject) -> snapshot_pb2.IntentObject:
    return snapshot_pb2.IntentObject(
        kind=o.kind,
        uid=o.uid,
        name=o.name,
        generation=o.generation,
        spec_json=canonical_json(o.spec),
        labels=dict(o.labels),
        secrets_json=canonical_json(o.secrets) if o.secrets else b"",
    )


def _json_object(data: bytes) -> dict[str, Any]:
    value = json.loads(data) if data else {}
    if not isinstance(value, dict):
        raise DigestMismatch("an intent object's spec is not a JSON object")
    return value


def object_from_wire(m: snapshot_pb2.IntentObject) -> IntentObject:
    """Raises DigestMismatch when the JSON in it is broken."""
    try:
        return IntentObject(
            m.kind, m.uid, m.name, m.generation, _json_object(m.spec_json), dict(m.labels), _json_object(m.secrets_json)
        )
    except (ValueError, RecursionError) as error:
        raise DigestMismatch(f"{m.kind} {m.name}: {error}") from None


def delta_to_wire(d: IntentDelta) -> snapshot_pb2.SnapshotDelta:
    return snapshot_pb2.SnapshotDelta(
        base=version_to_wire(d.base),
        at=version_to_wire(d.at),
        upserts=[object_to_wire(o) for o in d.upserts],
        removals=[snapshot_pb2.ObjectKey(kind=k, uid=u) for k, u in d.removals],
        content=d.content,
    )


def delta_from_wire(m: snapshot_pb2.SnapshotDelta) -> IntentDelta:
    return IntentDelta(
        version_from_wire(m.base),
        version_from_wire(m.at),
        tuple(object_from_wire(o) for o in m.upserts),
        tuple((r.kind, r.uid) for r in m.removals),
        m.content,
    )


def snapshot_to_chunks(s: IntentSnapshot, *, confirmed: bool = False) -> Iterator[snapshot_pb2.SnapshotChunk]:
    """The whole snapshot in messages of bounded size, at least one, the last one marked.

    ``confirmed``: an operator has confirmed a content that receivers would find implausible.
    """
    index, size = 0, 0
    batch: list[snapshot_pb2.IntentObject] = []
    for obj in s.objects.values():
        wire = object_to_wire(obj)
        length = wire.ByteSize()
        if batch and size + length > CHUNK_BYTES:
            yield snapshot_pb2.SnapshotChunk(at=version_to_wire(s.at), region=s.region, index=index, objects=batch)
            index, size, batch = index + 1, 0, []
        batch.append(wire)
        size += length
    yield snapshot_pb2.SnapshotChunk(
        at=version_to_wire(s.at),
        region=s.region,
        index=index,
        last=True,
        objects=batch,
        content=s.content,
        confirmed=confirmed,
    )


def snapshot_from_chunks(chunks: Iterable[snapshot_pb2.SnapshotChunk]) -> IntentSnapshot:
    """Puts a complete sequence of chunks together.

    Raises StaleVersion for a gap or mixed versions, DigestMismatch for wrong content.
    """
    objects: list[IntentObject] = []
    first: snapshot_pb2.SnapshotChunk | None = None
    last: snapshot_pb2.SnapshotChunk | None = None
    for expected, chunk in enumerate(chunks):
        first = first or chunk
        if last is not None or chunk.index != expected or chunk.at != first.at or chunk.region != first.region:
            raise StaleVersion("chunks of a snapshot are out of order or of different versions")
        objects.extend(object_from_wire(o) for o in chunk.objects)
        last = chunk if chunk.last else None
    if first is None or last is None:
        raise StaleVersion("a snapshot ended before its last chunk")
    snapshot = IntentSnapshot.of(version_from_wire(first.at), first.region, objects)
    if snapshot.content != last.content:
        raise DigestMismatch("a snapshot does not hash to what its sender says")
    return snapshot
