"""Counters and histograms for the relay's hot path, collected by prometheus_client like any other.

``prometheus_client``'s own take a lock and several calls per observation, which for the handful that every request makes comes to
4 us; these take a tenth. They belong to one event loop; a scrape from another thread reads numbers that may be one
observation apart, which no reader can tell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class TallyChild:
    """One label set of a :class:`Tally`."""

    __slots__ = ("_bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        """Observations per bucket, not cumulative; the last one is above every bound."""
        self.total = 0.0

    def observe(self, amount: float) -> None:
        self.buckets[bisect_left(self._bounds, amount)] += 1
        self.total += amount


class Tally(Collector):
    """A histogram."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labelnames)
        self._bounds = tuple(sorted(buckets))
        self._children: dict[tuple[str, ...], TallyChild] = {}
        if not labelnames:
            self.observe = self.labels().observe
        registry.register(self)

    def labels(self, *values: str) -> TallyChild:
        """The child of a label set; bind it once."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labelnames):
                raise ValueError(f"{self._name} has labels {self._labelnames}")
            child = self._children[values] = TallyChild(self._bounds)
        return child

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        names = [*(f"{bound}" for bound in self._bounds), "+Inf"]
        for values, child in list(self._children.items()):
            family.add_metric(values, list(zip(names, accumulate(child.buckets), strict=True)), child.total)
        return [family]


class CountChild:
    """One label set of a :class:`Count`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Count(Collector):
    """A counter; ``name`` without ``_total``, which the exposition adds."""

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labelnames)
        self._children: dict[tuple[str, ...], CountChild] = {}
        registry.register(self)

    def labels(self, *values: str) -> CountChild:
        """The child of a label set; bind it once."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labelnames):
                raise ValueError(f"{self._name} has labels {self._labelnames}")
            child = self._children[values] = CountChild()
        return child

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)]

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, child in list(self._children.items()):
            family.add_metric(values, child.value)
        return [family]
