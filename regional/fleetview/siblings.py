"""The last word of each sibling router about its own load, while it counts."""

from __future__ import annotations

from collections.abc import Mapping

from regional.fleetview.loads import SiblingWord

MAX_INFLIGHT = 1_000_000
MAX_TOKENS = 1e12


class Siblings:
    def __init__(self, ttl_seconds: float) -> None:
        self._ttl = ttl_seconds
        self._said: dict[str, tuple[float, Mapping[str, tuple[int, float]]]] = {}

    def said(self, router_uid: str, load: Mapping[str, tuple[int, float]], now: float) -> set[str]:
        """Take a word; returns the endpoints it touches."""
        _, before = self._said.get(router_uid, (0.0, {}))
        self._said[router_uid] = (now, dict(load))
        return {*before, *load}

    def lapse(self, now: float) -> set[str]:
        """Drop words that no longer count; returns the endpoints they spoke of."""
        touched: set[str] = set()
        for router_uid, (at, load) in list(self._said.items()):
            if now - at > self._ttl:
                del self._said[router_uid]
                touched.update(load)
        return touched

    def words(self, endpoint_uid: str, now: float) -> list[SiblingWord]:
        found: list[SiblingWord] = []
        if not self._said:
            return found
        for at, load in self._said.values():
            word = load.get(endpoint_uid)
            if word is not None and now - at <= self._ttl:
                inflight, tokens = word
                found.append(SiblingWord(min(max(0, inflight), MAX_INFLIGHT), min(max(0.0, tokens), MAX_TOKENS), at))
        return found
