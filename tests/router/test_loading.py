"""From what is held to the intent in use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import SystemClock
from fleet.resources.translate import SpecCache, intent_of
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion
from regional.sync import loading as loading_module
from regional.sync.held import HeldSnapshot
from regional.sync.keeper import SnapshotKeeper
from regional.sync.loading import IntentLoader
from regional.sync.present import PresentIntent
from regional.sync.snapshot_file import SnapshotFile
from regional.sync.watch import Freshness
from tests.router.waiting import until


def objects(*models: str, broken: bool = False) -> list[IntentObject]:
    listed = [IntentObject("region", "r", "eu", 1, {})]
    listed += [IntentObject("model", f"uid-{name}", name, 1, {"task": "chat"}) for name in models]
    if broken:
        listed.append(IntentObject("zone", "z", "eu-a", 1, {"region": 7}))
    return listed


def snapshot(version: int, listed: list[IntentObject], region: str = "eu") -> IntentSnapshot:
    return IntentSnapshot.of(IntentVersion(1, version, b"c"), region, listed)


class Loading:
    def __init__(self, path: Path | None) -> None:
        clock = SystemClock()
        self.held, self.present, self.freshness = HeldSnapshot("eu"), PresentIntent("eu"), Freshness(clock)
        file = SnapshotFile(path) if path is not None else None
        self.keeper = None if file is None else SnapshotKeeper(file, self.held, self.freshness, self.errors)
        self.applied: list[tuple[tuple[int, int], list[str]]] = []
        self.corrupt: list[str] = []
        self.failed: list[tuple[tuple[int, int], str]] = []
        self.loader = IntentLoader(
            self.held,
            self.freshness,
            self.present,
            file,
            self.keeper,
            lambda order, unread: self.applied.append((order, unread)),
            self.corrupt.append,
            lambda order, error: self.failed.append((order, repr(error))),
        )

    def errors(self, error: OSError) -> None:
        raise error


async def test_what_is_held_is_used_and_kept_for_the_next_start(tmp_path: Path) -> None:
    first = Loading(tmp_path / "snapshot")
    assert not await first.loader.restore()
    heard: list[int] = []
    first.present.subscribe(lambda intent: heard.append(intent.at.version))
    first.held.offer_full(snapshot(4, objects("a", broken=True)))
    await first.loader.changed()
    assert heard == [4]
    assert "a" in first.present().models
    assert first.applied == [((1, 4), ["zone eu-a: not valid"])], "one bad object does not hold up the rest"
    assert first.keeper is not None
    await first.keeper.flush()

    second = Loading(tmp_path / "snapshot")
    assert await second.loader.restore()
    assert second.present().at.version == 4
    assert second.freshness.age_seconds() is not None


@pytest.mark.parametrize("where", ["reading", "listener"])
async def test_a_version_that_cannot_be_used_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Held is not used: without another try it would stay out of force until something else changes, which may be never."""
    monkeypatch.setattr(loading_module, "RETRY_SECONDS", 0.01)
    loading, broken, heard = Loading(tmp_path / "snapshot"), [True], []

    def read(*args: Any) -> Any:
        if broken and where == "reading":
            raise KeyError("reading")
        return intent_of(*args)

    def first(_intent: object) -> None:
        if broken and where == "listener":
            raise KeyError("listener")

    monkeypatch.setattr(loading_module, "intent_of", read)
    loading.present.subscribe(first)
    loading.present.subscribe(lambda intent: heard.append(intent.at.version))
    trying = asyncio.create_task(loading.loader.run())
    loading.held.offer_full(snapshot(4, objects("a")))
    await loading.loader.changed()
    await until(lambda: len(loading.failed) > 2)
    assert all(order == (1, 4) and where in error for order, error in loading.failed)
    assert loading.loader.applied.version == 0
    assert loading.applied == []
    assert not (tmp_path / "snapshot").exists(), "the next start does not begin with it either"
    if where == "listener":
        assert set(heard) == {4}, "the parts after the one that failed have heard of it"
    broken.clear()
    await until(lambda: loading.applied == [((1, 4), [])])
    assert loading.loader.applied.version == 4
    assert heard[-1] == 4
    assert loading.keeper is not None
    await loading.keeper.flush()
    broken.append(True)
    later = Loading(tmp_path / "snapshot")
    later.present.subscribe(first)
    assert not await later.loader.restore(), "the router starts nevertheless"
    assert later.failed
    trying.cancel()


async def test_a_snapshot_of_another_region_is_not_used(tmp_path: Path) -> None:
    theirs = HeldSnapshot("us")
    theirs.offer_full(snapshot(4, objects("a"), "us"))
    stored = theirs.store()
    assert stored is not None
    SnapshotFile(tmp_path / "snapshot").save(stored)
    loading = Loading(tmp_path / "snapshot")
    assert not await loading.loader.restore()
    assert loading.corrupt
    assert loading.held.empty


def test_one_object_that_cannot_be_read_is_left_out_and_named() -> None:
    bad = [
        IntentObject("key", "k", "k", 1, {"tenant": "t"}, {}, {"secret_hmac": "not hex"}),
        IntentObject("secrets", "s", "s", 1, {}, {}, {"peppers": ["not base64!"]}),
        IntentObject("secrets", "s2", "s2", 1, {}, {}, {"peppers": 7}),
        IntentObject("hold", "h", "h", 1, {"state": "flying"}),
        IntentObject("endpoint", "e", "e", 1, {"node": "n", "url": "ftp://x", "models": ["m"]}),
        IntentObject("a kind of tomorrow", "x", "x", 1, {}),
    ]
    intent, unread = intent_of(IntentVersion(1, 1), "eu", [*bad, *objects("a")])
    assert list(intent.models) == ["a"]
    assert [line.partition(":")[0] for line in unread] == ["key k", "secrets s", "secrets s2", "hold h", "endpoint e"]


def test_a_cache_changes_nothing_but_the_time() -> None:
    cache = SpecCache()
    listed = objects("a", "b", broken=True)
    for models in (listed, [*listed, IntentObject("model", "uid-c", "c", 1, {})], listed[:2], objects("a", "b")):
        cache.keep({o.key for o in models})
        assert intent_of(IntentVersion(1, 1), "eu", models, cache) == intent_of(IntentVersion(1, 1), "eu", models)
    changed = [IntentObject(o.kind, o.uid, o.name, 2, {"task": "embedding"}) for o in listed if o.kind == "model"]
    intent, _ = intent_of(IntentVersion(1, 2), "eu", changed, cache)
    assert {m.task for m in intent.models.values()} == {"embedding"}
