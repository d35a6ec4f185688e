"""Our quick counters say exactly what prometheus_client's own say."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from regional.tally import Count, Tally


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry).decode()
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if not s.name.endswith("_created")
    }


def test_a_tally_is_a_histogram() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    buckets = (1e-05, 0.001, 0.5, 1.0, 30.0)
    quick = Tally("h_seconds", "A histogram.", ("model",), buckets=buckets, registry=ours)
    plain = Histogram("h_seconds", "A histogram.", ("model",), buckets=buckets, registry=theirs)
    rng = random.Random(7)
    for _ in range(500):
        model, amount = rng.choice(["a", 'b"\n']), rng.choice([*buckets, rng.expovariate(1.0), 0.0, 1e9])
        quick.labels(model).observe(amount)
        plain.labels(model).observe(amount)
    assert samples(ours) == samples(theirs)


def test_a_count_is_a_counter() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    quick = Count("things", "A counter.", ("kind", "other"), registry=ours)
    plain = Counter("things", "A counter.", ("kind", "other"), registry=theirs)
    for counter in (quick, plain):
        counter.labels("a", "x").inc()
        counter.labels("a", "x").inc(2.5)
        counter.labels("b", "x").inc()
    assert samples(ours) == samples(theirs)
    with pytest.raises(ValueError, match="labels"):
        quick.labels("a")
    with pytest.raises(ValueError, match="Duplicated"):
        Count("things", "Again.", registry=ours)


def test_without_labels() -> None:
    registry = CollectorRegistry()
    tally = Tally("plain_seconds", "No labels.", buckets=(1.0,), registry=registry)
    tally.observe(0.5)
    tally.observe(2.0)
    found = samples(registry)
    assert found["plain_seconds_bucket", (("le", "1.0"),)] == 1
    assert found["plain_seconds_count", ()] == 2
    assert found["plain_seconds_sum", ()] == 2.5
