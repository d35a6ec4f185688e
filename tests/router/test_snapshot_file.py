"""The last good snapshot on disk: survives restarts, refuses damage, keeps its secrets to itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion
from regional.sync.held import HeldSnapshot, StoredSnapshot
from regional.sync.snapshot_file import CorruptSnapshot, SnapshotFile, _decode, _encode


def some(version: int = 3, endpoints: int = 4) -> IntentSnapshot:
    objects = [
        IntentObject(
            "endpoint", f"e{n}", f"e{n}", 1, {"url": f"http://h:{n}", "x": [1, 2.5, None]}, {"a": "b"}, {"k": "s"}
        )
        for n in range(endpoints)
    ]
    return IntentSnapshot.of(IntentVersion(2, version, b"\x01\x02"), "eu", objects)


@pytest.fixture
def file(tmp_path: Path) -> SnapshotFile:
    return SnapshotFile(tmp_path / "deep" / "snapshot")


def test_what_was_saved_comes_back(file: SnapshotFile) -> None:
    assert file.load() is None
    stored = StoredSnapshot(some())
    file.save(stored)
    loaded = file.load()
    assert loaded is not None
    assert loaded[0] == stored


def test_only_its_owner_can_read_it(file: SnapshotFile, tmp_path: Path) -> None:
    file.save(StoredSnapshot(some()))
    file.save(StoredSnapshot(some(4)))
    path = tmp_path / "deep" / "snapshot"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["snapshot"], "nothing half-written is left about"


def test_sections_that_were_kept_are_kept_over_a_restart(file: SnapshotFile) -> None:
    held = HeldSnapshot("eu")
    held.offer_full(some(3, 20))
    held.offer_full(some(4, 2))
    stored = held.store()
    assert stored is not None
    assert len(stored.kept) == 18
    file.save(stored)
    loaded = file.load()
    assert loaded is not None
    again = HeldSnapshot("eu")
    again.restore(loaded[0])
    assert len(list(again.objects)) == 20
    assert again.at.version == 4


def test_damage_is_refused_and_put_aside(file: SnapshotFile, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "snapshot"
    file.save(StoredSnapshot(some()))
    whole = path.read_bytes()
    broken = (b"", b"rubbish", whole[: len(whole) // 2], whole + b"x", whole[:-5] + b"\x00" + whole[-4:], b"\n" + whole)
    for data in broken:
        path.write_bytes(data)
        with pytest.raises(CorruptSnapshot):
            file.load()
        assert not path.exists()
        assert file.aside.read_bytes() == data
        assert file.load() is None


@given(st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_no_single_changed_byte_goes_unnoticed(position: int, value: int) -> None:
    data = bytearray(_encode(StoredSnapshot(some(endpoints=1))))
    index = position % len(data)
    if data[index] == value:
        return
    data[index] = value
    try:
        decoded = _decode(bytes(data))
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    assert decoded == StoredSnapshot(some(endpoints=1)), "a changed byte may at most change how a number is written"


def test_the_time_last_heard_is_kept(file: SnapshotFile) -> None:
    file.save(StoredSnapshot(some()))
    file.touch(1_700_000_000.0)
    loaded = file.load()
    assert loaded is not None
    assert loaded[1] == 1_700_000_000.0


def test_a_disk_that_fails_leaves_the_old_file(
    file: SnapshotFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.save(StoredSnapshot(some(3)))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.save(StoredSnapshot(some(4)))
    loaded = file.load()
    assert loaded is not None
    assert loaded[0].published.at.version == 3
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["snapshot"]
