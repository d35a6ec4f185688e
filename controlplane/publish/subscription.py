"""What waits to be sent on one watch. Bounded: a reader that does not read is given up, never waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum

QUEUE_MESSAGES = 1024
QUEUE_BYTES = 16 * 1024 * 1024


class Closed(StrEnum):
    """Why a watch ends from our side."""

    SLOW = "slow"
    """It does not read."""
    RESYNC = "resync"
    """What comes next cannot be told as a delta; the router calls again and gets the whole."""
    REVOKED = "revoked"
    """Its token is no longer valid."""
    STOPPING = "stopping"
    """This process ends; another copy or the next process serves."""


class Subscription:
    """One watch's outbox. Deltas keep their order and are never dropped; observed and heartbeat hold only the latest.

    Used from one event loop: the publisher offers, one task takes.
    """

    def __init__(self, region: str, *, max_messages: int = QUEUE_MESSAGES, max_bytes: int = QUEUE_BYTES) -> None:
        self.region = region
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._deltas: deque[bytes] = deque()
        self._bytes = 0
        self._observed: dict[str, bytes] = {}
        self._heartbeat: bytes | None = None
        self._wake = asyncio.Event()
        self.closed: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()

    def offer_delta(self, frame: bytes) -> None:
        if self.closed.done():
            return
        if len(self._deltas) >= self._max_messages or self._bytes + len(frame) > self._max_bytes:
            self.close(Closed.SLOW)
            return
        self._deltas.append(frame)
        self._bytes += len(frame)
        self._wake.set()

    def offer_observed(self, region: str, frame: bytes) -> None:
        self._observed[region] = frame
        self._wake.set()

    def offer_heartbeat(self, frame: bytes) -> None:
        self._heartbeat = frame
        self._wake.set()

    def close(self, why: Closed) -> None:
        """End the watch; what is queued is not sent any more. The first reason stands."""
        if not self.closed.done():
            self.closed.set_result(why)
        self._deltas.clear()
        self._wake.set()

    async def next(self) -> bytes | None:
        """The next message: deltas first, then the heartbeat (which names a head that has been sent), then observed.

        None when the watch is to end.
        """
        while not self.closed.done():
            if self._deltas:
                frame = self._deltas.popleft()
                self._bytes -= len(frame)
                return frame
            if self._heartbeat is not None:
                frame, self._heartbeat = self._heartbeat, None
                return frame
            if self._observed:
                return self._observed.pop(next(iter(self._observed)))
            self._wake.clear()
            await self._wake.wait()
        return None
