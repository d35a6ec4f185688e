"""rel-R7 at the level of words: whatever arrives, an invalid or older snapshot is never applied and the old one is kept."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.delta import IntentDelta, apply, compose, diff
from fleet.errors import DigestMismatch, StaleVersion
from fleet.snapshot import EMPTY_DIGEST, IntentObject, IntentSnapshot, IntentVersion, content_digest, digest_after
from fleet.wire.headrace.v1 import snapshot_pb2
from fleet.wire.snapshots import delta_from_wire, delta_to_wire, snapshot_from_chunks, snapshot_to_chunks
from tests.wire import strategies as words

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _deltas(history: list[IntentSnapshot]) -> list[IntentDelta]:
    return [diff(a, b) for a, b in itertools.pairwise(history)]


@many
@given(words.histories())
def test_deltas_in_order_lead_to_the_same_content(history: list[IntentSnapshot]) -> None:
    held = history[0]
    for delta, wanted in zip(_deltas(history), history[1:], strict=True):
        held = apply(held, delta_from_wire(delta_to_wire(delta)))
        assert held == wanted


@many
@given(words.histories())
def test_one_delta_can_stand_for_many(history: list[IntentSnapshot]) -> None:
    together = compose(_deltas(history))
    assert apply(history[0], together) == history[-1]
    assert {o.key for o in together.upserts}.isdisjoint(together.removals)


def test_deltas_with_a_gap_are_not_put_together() -> None:
    a, b, c = (IntentVersion(1, n, bytes([n])) for n in (1, 2, 3))
    with pytest.raises(StaleVersion):
        compose([IntentDelta(a, b, (), (), EMPTY_DIGEST), IntentDelta(a, c, (), (), EMPTY_DIGEST)])
    with pytest.raises(StaleVersion):
        compose([])


@many
@given(words.histories(), st.randoms(use_true_random=False))
def test_case_x03_duplicates_and_wrong_order(history: list[IntentSnapshot], rng: random.Random) -> None:
    """Replay, doubling, reordering, gaps: the held snapshot is at every moment one that was published, and never goes back."""
    deltas = _deltas(history)
    stream = [d for d in deltas for _ in range(rng.randint(0, 3))]
    rng.shuffle(stream)
    held = history[0]
    for delta in stream:
        try:
            after = apply(held, delta)
        except StaleVersion:
            continue
        assert after.at.order >= held.at.order
        held = after
        assert held in history
    for delta in deltas:  # in order, whatever was applied before
        held = apply(held, delta)
    assert held == history[-1]


@many
@given(words.histories(), st.data())
def test_a_delta_of_another_history_is_not_applied(history: list[IntentSnapshot], data: st.DataObject) -> None:
    delta = data.draw(st.sampled_from(_deltas(history)))
    held = next(s for s in history if s.at == delta.base)
    other_chain = replace(held, at=replace(held.at, chain=held.at.chain + b"x"))
    older_epoch = replace(held, at=replace(held.at, epoch=held.at.epoch + 1))
    for foreign in (other_chain, older_epoch):
        with pytest.raises(StaleVersion):
            apply(foreign, delta)


@many
@given(words.histories(), st.data())
def test_a_delta_that_lost_or_changed_something_is_not_applied(
    history: list[IntentSnapshot], data: st.DataObject
) -> None:
    delta = data.draw(st.sampled_from(_deltas(history)))
    held = next(s for s in history if s.at == delta.base)
    extra = IntentObject("model", "extra", "extra", 1, {})
    damaged = [replace(delta, content=bytes(32)), replace(delta, upserts=(*delta.upserts, extra))]
    if delta.upserts:
        damaged.append(replace(delta, upserts=delta.upserts[1:]))
    if any(key in held.objects for key in delta.removals):
        damaged.append(replace(delta, removals=()))
    for bad in damaged:
        if bad.content == delta.content and bad == delta:
            continue
        if apply_or_none(held, bad) is not None:
            assert content_digest(apply(held, bad).objects.values()) == bad.content  # the same set after all


def apply_or_none(held: IntentSnapshot, delta: IntentDelta) -> IntentSnapshot | None:
    try:
        return apply(held, delta)
    except DigestMismatch:
        return None


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(words.snapshots(), st.data())
def test_bit_flips_and_truncation_never_give_another_snapshot(snapshot: IntentSnapshot, data: st.DataObject) -> None:
    """Either it is refused, or what comes out is exactly what went in (a flip in what the digest does not cover: at, region)."""
    chunks = [c.SerializeToString() for c in snapshot_to_chunks(snapshot)]
    which = data.draw(st.integers(0, len(chunks) - 1))
    raw = bytearray(chunks[which])
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, len(raw) * 8 - 1))
        raw[bit // 8] ^= 1 << (bit % 8)
    else:
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    chunks[which] = bytes(raw)
    try:
        result = snapshot_from_chunks(snapshot_pb2.SnapshotChunk.FromString(c) for c in chunks)
    except (DecodeError, StaleVersion, DigestMismatch):
        return
    assert content_digest(result.objects.values()) == result.content
    assert result.objects == snapshot.objects


def _large() -> IntentSnapshot:
    objects = [IntentObject("node", str(i), f"n{i}", 1, {"pad": "x" * 100_000}) for i in range(30)]
    return IntentSnapshot.of(IntentVersion(1, 1, b"c"), "eu", objects)


def test_chunks_are_bounded_and_only_a_complete_sequence_counts() -> None:
    snapshot = _large()
    chunks = list(snapshot_to_chunks(snapshot))
    assert len(chunks) > 3
    assert all(c.ByteSize() <= 1_000_000 for c in chunks)
    assert snapshot_from_chunks(chunks) == snapshot
    other = list(snapshot_to_chunks(replace(snapshot, at=IntentVersion(1, 2, b"d"))))
    broken = [
        chunks[:-1],  # truncated
        chunks[:1] + chunks[2:],  # a gap
        [chunks[1], chunks[0], *chunks[2:]],  # reordered
        [chunks[0], chunks[0], *chunks[1:]],  # doubled
        [chunks[0], *other[1:]],  # two versions mixed
        [*chunks, chunks[-1]],  # goes on after the last
        [],
    ]
    for sequence in broken:
        with pytest.raises(StaleVersion):
            snapshot_from_chunks(sequence)


def test_a_snapshot_with_a_wrong_digest_is_refused() -> None:
    chunks = list(snapshot_to_chunks(_large()))
    chunks[-1].content = bytes(32)
    with pytest.raises(DigestMismatch):
        snapshot_from_chunks(chunks)


def test_broken_json_is_a_digest_mismatch_not_a_crash() -> None:
    for spec in (b"{", b"[]", b"\xff", b"nul"):
        chunk = snapshot_pb2.SnapshotChunk(last=True, objects=[snapshot_pb2.IntentObject(kind="k", spec_json=spec)])
        with pytest.raises(DigestMismatch):
            snapshot_from_chunks([chunk])


@many
@given(st.lists(words.objects, max_size=8, unique_by=lambda o: o.key), st.data())
def test_the_digest_of_a_set_does_not_depend_on_how_it_came_about(
    objects: list[IntentObject], data: st.DataObject
) -> None:
    digest = content_digest(objects)
    assert content_digest(reversed(objects)) == digest
    cut = data.draw(st.integers(0, len(objects)))
    assert digest_after(content_digest(objects[:cut]), (), objects[cut:]) == digest
    assert digest_after(digest, objects[cut:], ()) == content_digest(objects[:cut])


def test_no_delta_leads_back_or_across_epochs() -> None:
    old = IntentSnapshot.of(IntentVersion(1, 5, b"a"), "eu", [])
    for at in (IntentVersion(1, 4, b"b"), IntentVersion(2, 6, b"c")):
        with pytest.raises(StaleVersion):
            diff(old, IntentSnapshot.of(at, "eu", []))
