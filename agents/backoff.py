"""How long to wait before trying again: exponential, with full jitter, and never less than the other side asked for."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

BASE_SECONDS = 0.2
RETRY_AFTER = "retry-after-ms"
MAX_RETRY_AFTER_SECONDS = 300.0


class Uniform(Protocol):
    def uniform(self, a: float, b: float) -> float: ...


class Backoff:
    """Delays of one thing that is tried again and again."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._failures = 0

    def next_delay(self, rng: Uniform, at_least_seconds: float = 0.0) -> float:
        """Seconds to wait after one more failure. ``at_least_seconds`` is what a server asked for; jitter comes on top of it."""
        ceiling = min(self._max_seconds, BASE_SECONDS * 2**self._failures)
        self._failures = min(self._failures + 1, 32)
        if at_least_seconds > 0:
            return at_least_seconds + rng.uniform(0.0, max(ceiling, at_least_seconds / 2))
        return rng.uniform(0.0, ceiling)

    def reset(self) -> None:
        self._failures = 0


def retry_after_seconds(error: grpc.aio.AioRpcError) -> float:
    """What the server asked to wait in its trailing metadata; 0 when it asked nothing sensible."""
    metadata: Any = error.trailing_metadata()
    for key, value in metadata or ():
        if key == RETRY_AFTER:
            try:
                return min(max(0.0, int(value) / 1000), MAX_RETRY_AFTER_SECONDS)
            except ValueError:
                return 0.0
    return 0.0
