"""The last good snapshot on disk: what a router starts from when nothing else answers.

One line of ASCII (format, SHA-256, length), then JSON. Replaced atomically, mode 0600 because it holds the deployment's
secrets. Its modification time says when the control plane was last heard.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from fleet.errors import HeadraceError
from fleet.process.incarnation import write_atomically
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion
from regional.sync.held import StoredSnapshot

_MAGIC = b"headrace-snapshot-1"
_MAX_BYTES = 1 << 30


class CorruptSnapshot(HeadraceError):
    """The file is damaged or not ours. It was put aside, and the router goes on as if there were none."""


class SnapshotFile:
    """Reads and writes the file at ``path``. All methods block; call them from a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def aside(self) -> Path:
        """Where a damaged file is put; a newer one replaces it."""
        return self._path.with_suffix(".corrupt")

    def load(self) -> tuple[StoredSnapshot, float] | None:
        """The snapshot and the wall time at which the control plane was last heard; None when there is no file.

        Raises CorruptSnapshot (after putting the file aside), OSError when it cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                heard = os.fstat(file.fileno()).st_mtime
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        try:
            return _decode(data), heard
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._path.replace(self.aside)
            raise CorruptSnapshot(
                f"{self._path} is damaged ({error or type(error).__name__}) and was put aside as {self.aside.name}"
            ) from None

    def save(self, stored: StoredSnapshot) -> None:
        """Replace the file. Raises OSError; the old file then stays."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, _encode(stored), mode=0o600)

    def touch(self, wall: float) -> None:
        """Note that the control plane was heard at ``wall`` and had nothing newer. Raises OSError."""
        if self._path.exists():
            os.utime(self._path, (wall, wall))


def _object_json(obj: IntentObject) -> list[Any]:
    return [obj.kind, obj.uid, obj.name, obj.generation, obj.spec, obj.labels, obj.secrets]


def _object(value: Any) -> IntentObject:
    kind, uid, name, generation, spec, labels, secrets = value
    if not (isinstance(spec, dict) and isinstance(labels, dict) and isinstance(secrets, dict)):
        raise ValueError("an object is not in the expected form")
    return IntentObject(str(kind), str(uid), str(name), int(generation), spec, labels, secrets)


def _encode(stored: StoredSnapshot) -> bytes:
    published = stored.published
    body = orjson.dumps(
        {
            "at": [published.at.epoch, published.at.version, published.at.chain.hex()],
            "region": published.region,
            "content": published.content.hex(),
            "objects": [_object_json(o) for o in published.objects.values()],
            "kept": [_object_json(o) for o in stored.kept],
            "left_out": sorted(stored.left_out),
        }
    )
    return b"%s %s %d\n" % (_MAGIC, hashlib.sha256(body).hexdigest().encode(), len(body)) + body


def _decode(data: bytes) -> StoredSnapshot:
    head, newline, body = data.partition(b"\n")
    magic, digest, length = head.split(b" ") if newline and head.count(b" ") == 2 else (b"", b"", b"")
    if magic != _MAGIC:
        raise ValueError("not a snapshot of this release")
    if len(body) != int(length):
        raise ValueError("its length is wrong")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("its checksum is wrong")
    value = orjson.loads(body)
    epoch, version, chain = value["at"]
    snapshot = IntentSnapshot.of(
        IntentVersion(int(epoch), int(version), bytes.fromhex(chain)),
        str(value["region"]),
        [_object(o) for o in value["objects"]],
    )
    if snapshot.content != bytes.fromhex(value["content"]):
        raise ValueError("its content digest is wrong")
    return StoredSnapshot(
        snapshot,
        tuple(_object(o) for o in value["kept"]),
        frozenset((str(kind), str(uid)) for kind, uid in value["left_out"]),
    )
