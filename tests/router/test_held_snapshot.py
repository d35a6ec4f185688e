"""What a router takes of what it is offered: rel-R7, cases X01, X03 and X07."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.delta import IntentDelta, diff
from fleet.errors import DigestMismatch, StaleVersion
from fleet.snapshot import SECRETS_KIND, IntentObject, IntentSnapshot, IntentVersion
from regional.sync.held import ChunkAssembler, HeldSnapshot
from regional.sync.plausibility import MAX_MEMBERS, Rejection, sift

REGION = "eu"


def obj(kind: str, n: int, generation: int = 1) -> IntentObject:
    return IntentObject(kind, f"{kind}-{n}", f"{kind}-{n}", generation, {"n": n, "g": generation})


def snapshot(version: int, objects: Iterable[IntentObject], epoch: int = 1, chain: bytes = b"") -> IntentSnapshot:
    return IntentSnapshot.of(IntentVersion(epoch, version, chain or bytes([version % 256])), REGION, objects)


def fleet(endpoints: int = 12, keys: int = 5) -> list[IntentObject]:
    secrets = IntentObject(SECRETS_KIND, "s", "s", 1, {}, {}, {"peppers": ["cA=="]})
    return [secrets, *(obj("endpoint", n) for n in range(endpoints)), *(obj("key", n) for n in range(keys))]


def holding(first: IntentSnapshot) -> HeldSnapshot:
    held = HeldSnapshot(REGION)
    assert held.offer_full(first)
    return held


def names(held: HeldSnapshot, kind: str) -> set[str]:
    return {o.name for o in held.objects if o.kind == kind}


def test_deltas_follow_one_another() -> None:
    one, two = snapshot(1, fleet()), snapshot(2, [*fleet(), obj("endpoint", 99)])
    held = holding(one)
    assert held.offer_delta(diff(one, two))
    assert held.at == two.at
    assert "endpoint-99" in names(held, "endpoint")


def test_case_x03_duplicates_and_old_snapshots_change_nothing() -> None:
    history = [snapshot(v, fleet(10 + v)) for v in range(6, 9)]
    held = holding(history[0])
    first, second = diff(history[0], history[1]), diff(history[1], history[2])
    assert held.offer_delta(first)
    assert not held.offer_delta(first), "a duplicate is harmless"
    assert held.offer_delta(second)
    assert not held.offer_delta(second)
    with pytest.raises(StaleVersion):
        held.offer_full(history[0])
    assert held.at == history[2].at
    assert len(names(held, "endpoint")) == 18


def test_a_gap_is_refused_and_what_is_held_stays() -> None:
    history = [snapshot(v, fleet(10 + v)) for v in range(1, 5)]
    held = holding(history[0])
    with pytest.raises(StaleVersion):
        held.offer_delta(diff(history[1], history[2]))
    assert held.at == history[0].at


def test_a_delta_of_another_history_is_refused() -> None:
    held = holding(snapshot(1, fleet(), chain=b"ours"))
    theirs = snapshot(1, fleet(), chain=b"theirs")
    with pytest.raises(StaleVersion):
        held.offer_delta(diff(theirs, snapshot(2, fleet(13), chain=b"theirs2")))


def test_a_wrong_digest_is_refused() -> None:
    one, two = snapshot(1, fleet()), snapshot(2, fleet(13))
    held = holding(one)
    with pytest.raises(DigestMismatch):
        held.offer_delta(replace(diff(one, two), content=bytes(32)))
    assert held.at == one.at
    assert len(names(held, "endpoint")) == 12


def test_a_lower_version_is_taken_only_under_a_higher_epoch() -> None:
    held = holding(snapshot(7, fleet(), epoch=2))
    for older in (snapshot(6, fleet(), epoch=2), snapshot(9, fleet(), epoch=1)):
        with pytest.raises(StaleVersion):
            held.offer_full(older)
    assert held.offer_full(snapshot(3, fleet(13), epoch=3))
    assert held.at.order == (3, 3)


def test_another_regions_snapshot_is_refused() -> None:
    held = HeldSnapshot("us")
    with pytest.raises(StaleVersion, match="eu"):
        held.offer_full(snapshot(1, fleet()))


# Plausibility


def test_case_x07_an_empty_endpoint_section_keeps_the_old_one_and_keys_apply() -> None:
    held = holding(snapshot(1, fleet(endpoints=4, keys=5)))
    held.offer_full(snapshot(2, fleet(endpoints=0, keys=1)))
    assert len(names(held, "endpoint")) == 4
    assert names(held, "key") == {"key-0"}, "revoked keys must be gone whatever else is wrong"
    assert held.rejections == (Rejection("endpoint", "empty", 4, 0),)
    assert held.at.version == 2, "the version is taken: deltas go on from it"


def test_a_far_smaller_section_is_kept_until_it_is_confirmed() -> None:
    one = snapshot(1, fleet(20))
    held = holding(one)
    small = snapshot(2, fleet(8))
    held.offer_delta(diff(one, small))
    assert len(names(held, "endpoint")) == 20
    assert [r.reason for r in held.new_rejections] == ["smaller"]
    third = snapshot(3, [*fleet(8), obj("tenant", 1)])
    held.offer_delta(diff(small, third))
    assert held.new_rejections == (), "what was counted once is not counted again"
    assert [r.reason for r in held.rejections] == ["smaller"]
    assert len(names(held, "endpoint")) == 20, "it stays implausible"
    assert names(held, "tenant") == {"tenant-1"}
    fourth = snapshot(4, [*fleet(8), obj("tenant", 2)])
    held.offer_delta(diff(third, fourth), confirmed=True)
    assert len(names(held, "endpoint")) == 8
    assert held.rejections == ()


def test_a_kept_section_is_still_brought_up_to_date() -> None:
    """A zone whose jurisdiction changes must obey it although the zone list as a whole is not believed."""
    before = [obj("zone", n) for n in range(20)]
    held = holding(snapshot(1, before))
    held.offer_full(snapshot(2, [obj("zone", 0, generation=2), obj("zone", 1)]))
    by_name = {o.name: o for o in held.objects}
    assert len(by_name) == 20
    assert by_name["zone-0"].generation == 2


def test_taking_objects_away_one_by_one_is_believed() -> None:
    now = snapshot(1, fleet(3))
    held = holding(now)
    for left in (2, 1, 0):
        following = snapshot(now.at.version + 1, fleet(left))
        held.offer_delta(diff(now, following))
        now = following
        assert len(names(held, "endpoint")) == left
        assert held.rejections == ()


def test_losing_all_secrets_is_never_believed() -> None:
    held = holding(snapshot(1, fleet()))
    held.offer_full(snapshot(2, [o for o in fleet() if o.kind != SECRETS_KIND]), confirmed=True)
    assert any(o.kind == SECRETS_KIND for o in held.objects)


def test_a_hundredfold_section_is_not_taken() -> None:
    old = {o.key: o for o in (obj("endpoint", n) for n in range(30))}
    new = {o.key: o for o in (obj("endpoint", n) for n in range(3000))}
    used, rejections = sift(old, new)
    assert used.keys() == old.keys()
    assert [r.reason for r in rejections] == ["oversized"]
    assert sift(old, new, confirmed=True)[0] is new


def test_first_growth_of_a_small_fleet_is_believed() -> None:
    old = {o.key: o for o in (obj("endpoint", n) for n in range(2))}
    new = {o.key: o for o in (obj("endpoint", n) for n in range(400))}
    assert sift(old, new)[0] is new
    assert MAX_MEMBERS > 10_000


# Chunks


def test_chunks_out_of_order_or_mixed_are_refused() -> None:
    at = IntentVersion(1, 1, b"c")
    assembler = ChunkAssembler(1_000_000)
    assembler.add(at, REGION, 0, [obj("endpoint", 1)], 10)
    with pytest.raises(StaleVersion):
        assembler.add(at, REGION, 2, [obj("endpoint", 2)], 10)
    with pytest.raises(StaleVersion):
        assembler.add(IntentVersion(1, 2, b"d"), REGION, 1, [obj("endpoint", 2)], 10)


def test_a_doubled_or_endless_snapshot_is_refused() -> None:
    at = IntentVersion(1, 1, b"c")
    assembler = ChunkAssembler(100)
    one = snapshot(1, [obj("endpoint", 1)])
    assembler.add(at, REGION, 0, [obj("endpoint", 1), obj("endpoint", 1)], 10)
    with pytest.raises(DigestMismatch, match="twice"):
        assembler.finish(one.content)
    assembler.add(at, REGION, 0, [obj("endpoint", 1)], 60)
    with pytest.raises(StaleVersion, match="bytes"):
        assembler.add(at, REGION, 1, [obj("endpoint", 2)], 60)


# Anything at all: rel-R7


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[IntentSnapshot], list[int], int]:
    seed = draw(st.integers(0, 2**32))
    steps = draw(st.integers(2, 6))
    order = draw(st.lists(st.integers(0, steps - 1), min_size=1, max_size=12))
    return _history(seed, steps), order, seed


def _history(seed: int, steps: int) -> list[IntentSnapshot]:
    rng = random.Random(seed)
    objects = {o.key: o for o in fleet(rng.randint(1, 6), rng.randint(1, 4))}
    out = [snapshot(1, objects.values())]
    for version in range(2, steps + 1):
        if rng.random() < 0.5:
            added = obj("endpoint", rng.randint(0, 30), version)
            objects[added.key] = added
        else:
            objects.pop(rng.choice(list(objects)), None)
        out.append(snapshot(version, objects.values()))
    return out


@given(histories())
@settings(max_examples=300, deadline=None)
def test_what_is_held_is_always_a_published_version_and_never_goes_back(
    case: tuple[list[IntentSnapshot], list[int], int],
) -> None:
    history, order, seed = case
    rng = random.Random(seed)
    held = holding(history[0])
    published = {s.at.version: s for s in history}
    for target in order:
        before = held.at.order
        base = rng.choice(history)
        new = history[target]
        try:
            if rng.random() < 0.3:
                held.offer_full(new)
            elif base.at.version <= new.at.version:
                delta = diff(base, new)
                held.offer_delta(_damaged(delta, rng))
        except (StaleVersion, DigestMismatch):
            assert held.at.order == before
        assert held.at.order >= before
        stored = held.store()
        assert stored is not None
        assert stored.published.objects == published[held.at.version].objects


def _damaged(delta: IntentDelta, rng: random.Random) -> IntentDelta:
    kind = rng.randrange(6)
    if kind == 0:
        return replace(delta, content=rng.randbytes(32))
    if kind == 1 and delta.upserts:
        return replace(delta, upserts=delta.upserts[1:])
    if kind == 2 and delta.upserts:
        return replace(delta, upserts=delta.upserts * 2)
    if kind == 3:
        return replace(delta, base=replace(delta.base, chain=b"other"))
    return delta
