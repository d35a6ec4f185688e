"""Messages of a watch as bytes: encoded once, sent to many."""

from __future__ import annotations

from fleet.capacity import RegionObserved
from fleet.delta import IntentDelta
from fleet.snapshot import IntentSnapshot, IntentVersion
from fleet.wire.headrace.v1 import snapshot_pb2
from fleet.wire.regions import observed_to_wire
from fleet.wire.snapshots import delta_to_wire, snapshot_to_chunks, version_to_wire


def full_frames(snapshot: IntentSnapshot) -> tuple[bytes, ...]:
    """The whole snapshot in messages of at most about 1 MB."""
    return tuple(snapshot_pb2.SnapshotUpdate(full=c).SerializeToString() for c in snapshot_to_chunks(snapshot))


def delta_frame(delta: IntentDelta) -> bytes:
    return snapshot_pb2.SnapshotUpdate(delta=delta_to_wire(delta)).SerializeToString()


def observed_frame(observed: RegionObserved) -> bytes:
    return snapshot_pb2.SnapshotUpdate(observed=observed_to_wire(observed)).SerializeToString()


def heartbeat_frame(head: IntentVersion | None) -> bytes:
    """``head`` None: this copy is alive but cannot say what is current."""
    beat = snapshot_pb2.Heartbeat() if head is None else snapshot_pb2.Heartbeat(head=version_to_wire(head))
    return snapshot_pb2.SnapshotUpdate(heartbeat=beat).SerializeToString()
