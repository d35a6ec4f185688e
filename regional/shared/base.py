"""What sibling routers tell one another, and the one operation that tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

TTL_SECONDS = 1.0
"""A router's word about its load counts for this long after it was given."""
MAX_ENDPOINTS = 20_000
MAX_MOVED = 1_000
"""Moved sessions taken from, or given to, one exchange."""


@dataclass(frozen=True, slots=True)
class RouterLoad:
    """One router's word: who it is, where it is reached, and its outstanding work."""

    router_uid: str
    incarnation: int
    sequence: int
    grpc_addresses: tuple[str, ...] = ()
    http_addresses: tuple[str, ...] = ()
    outstanding: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """In-flight requests and prompt tokens still to be read, by endpoint uid."""
    bans: Mapping[str, float] = field(default_factory=dict)
    """Seconds that it keeps off endpoints that asked for a pause (case-R09)."""

    @property
    def order(self) -> tuple[int, int]:
        return (self.incarnation, self.sequence)


@dataclass(frozen=True, slots=True)
class MovedSession:
    """A session that lives elsewhere than its hash says."""

    session: str
    """The HMAC of tenant and session id; never the id itself."""
    model: str
    endpoint_uid: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the siblings said. This router's own word is never in it."""

    siblings: tuple[RouterLoad, ...] = ()
    moved: tuple[MovedSession, ...] = ()
    """Moves made known since the last exchange, oldest first."""


class SharedState(Protocol):
    """State shared by a region's routers.

    Implementations raise Unavailable when they cannot do it in their time budget, and recover by themselves at a later call.
    Used by one task of one router.
    """

    async def exchange(self, own: RouterLoad, moved: Sequence[MovedSession]) -> Exchange:
        """Make ``own`` and ``moved`` known, and learn what the siblings made known within ``TTL_SECONDS``."""
        ...

    async def withdraw(self, router_uid: str) -> None:
        """Take this router's word back at once: it is stopping."""
        ...

    async def close(self) -> None:
        """Release connections. Never raises."""
        ...
