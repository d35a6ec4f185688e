"""From what is held to the intent in use."""

from __future__ import annotations

from pathlib import Path

from fleet.clock import SystemClock
from fleet.resources.translate import SpecCache, intent_of
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion
from regional.sync.held import HeldSnapshot
from regional.sync.keeper import SnapshotKeeper
from regional.sync.loading import IntentLoader
from regional.sync.present import PresentIntent
from regional.sync.snapshot_file import SnapshotFile
from regional.sync.watch import Freshness


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
        self.loader = IntentLoader(
            self.held,
            self.freshness,
            self.present,
            file,
            self.keeper,
            lambda order, unread: self.applied.append((order, unread)),
            self.corrupt.append,
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
