"""Keeps the present intent in memory, follows the feed, and hands each region's changes to all who watch it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from controlplane.publish.frames import delta_frame, full_frames, heartbeat_frame, observed_frame
from controlplane.publish.subscription import QUEUE_BYTES, Closed, Subscription
from controlplane.registry.catalogue import Catalogue, ObjectChange
from controlplane.registry.history import RegionHistory, Start
from fleet.capacity import RegionObserved
from fleet.clock import Clock
from fleet.errors import HeadraceError, StaleVersion, Unavailable
from fleet.process.logs import get_logger
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion

MAX_DELTA_BYTES = 3 * 1024 * 1024
"""A change that does not fit one message under gRPC's default limit travels as a full snapshot, in chunks (case-X05)."""
HEARTBEAT_SECONDS = 1.0
STALE_FEED_SECONDS = 3.0
"""After this long without the database nobody is told any more that what they have is current."""
CATCH_UP_SECONDS = 3.0
_RETRY_SECONDS = 1.0

_log = get_logger("publish")


class Feed(Protocol):
    """The intent feed as the publisher reads it. Every method may raise Unavailable."""

    async def load(self) -> tuple[IntentVersion, list[IntentObject]]:
        """All objects at one version."""
        ...

    async def changes_since(self, at: IntentVersion) -> list[tuple[IntentVersion, list[ObjectChange]]]:
        """The versions after ``at``, in order, each with what it changed. Raises StaleVersion when ``at`` is not in history."""
        ...

    async def head(self) -> IntentVersion:
        """The newest version there is."""
        ...

    async def wait(self, at: IntentVersion, timeout_seconds: float) -> bool:
        """Return True as soon as the head is not ``at`` any more, False after ``timeout_seconds``."""
        ...


@dataclass(slots=True)
class _Channel:
    """One region: its history, who watches, and its full snapshot as bytes (made once, when somebody wants it)."""

    history: RegionHistory
    watchers: set[Subscription] = field(default_factory=set)
    full: tuple[IntentVersion, asyncio.Task[tuple[bytes, ...]]] | None = None


Opening = tuple[Subscription, Start, Awaitable[tuple[bytes, ...]]]
"""A watch that has begun: its outbox, how it starts, and the messages that come before those of the outbox."""


class Publisher:
    """One per process. All state belongs to the event loop it runs on."""

    def __init__(
        self,
        feed: Feed,
        secrets: IntentObject,
        clock: Clock,
        *,
        on_health: Callable[[bool, str], None] = lambda ok, why: None,
        poll_seconds: float = 1.0,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """``on_health(ok, why)`` is told whether intent can be read. ``queue_bytes`` may wait for a reader; more ends its watch."""
        self._feed = feed
        self._secrets = secrets
        self._clock = clock
        self._on_health = on_health
        self._poll_seconds = poll_seconds
        self._queue_bytes = queue_bytes
        self._catalogue: Catalogue | None = None
        self._channels: dict[str, _Channel] = {}
        self._observed: dict[str, bytes] = {}
        self._read_at = float("-inf")
        self._stopping = False
        self._moved = asyncio.Condition()

    @property
    def head(self) -> IntentVersion:
        """The feed's version in memory; version 0 before the first load."""
        return self._catalogue.at if self._catalogue else IntentVersion()

    @property
    def catalogue(self) -> Catalogue | None:
        """Present intent, to read from; None before the first load."""
        return self._catalogue

    @property
    def watchers(self) -> int:
        return sum(len(c.watchers) for c in list(self._channels.values()))

    def feed_age_seconds(self) -> float:
        """How long ago the feed was last read; infinite before the first time."""
        return self._clock.monotonic() - self._read_at

    def snapshot(self, region: str) -> IntentSnapshot:
        """What ``region`` is told now. Raises Unavailable before the first load."""
        return self._channel(region).history.snapshot

    async def run(self) -> None:
        """Follow the feed and beat the heart, until cancelled; ends every watch on the way out. May be run again after a fault."""
        self._stopping = False
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._beat())
        except Exception:
            # Where it broke off nobody knows: what is in memory is read anew, and routers start over with it.
            self._forget()
            self._on_health(False, "intent is read anew after a fault")
            raise
        finally:
            self._stopping = True
            self._close_all(Closed.STOPPING)

    async def catch_up(self, have: IntentVersion) -> None:
        """Before serving a router that holds more than this copy: it may come from another copy that was quicker to read.

        Raises Unavailable when the database cannot say so; what the router has is then better than what we have.
        """
        if have.version == 0 or have.order <= self.head.order:
            return
        newest = await self._feed.head()
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS), self._moved:
                while self.head.order < newest.order:
                    await self._moved.wait()
        except TimeoutError:
            raise Unavailable("this copy is behind the database") from None

    def open(self, region: str, have: IntentVersion) -> Opening:
        """Begin a watch. Raises Unavailable before the first load and while stopping. :meth:`release` must follow."""
        if self._stopping:
            raise Unavailable("this control plane is stopping")
        channel = self._channel(region)
        subscription = Subscription(region, max_bytes=self._queue_bytes)
        start, delta = channel.history.start(have)
        # Chosen and subscribed in one step of the loop, so that no version falls between the two.
        first: Awaitable[tuple[bytes, ...]]
        if delta is not None and delta.empty and not self._feed_read_lately():
            first = _given(())  # an empty delta would say that what it has is current, which nobody knows now
        elif delta is not None and len(frame := delta_frame(delta)) <= MAX_DELTA_BYTES:
            first = _given((frame,))
        else:
            start = Start.FULL if start is Start.DELTA else start
            first = self._full(channel)
        channel.watchers.add(subscription)
        for name, observed in self._observed.items():
            if name != region:
                subscription.offer_observed(name, observed)
        return subscription, start, first

    def release(self, subscription: Subscription) -> None:
        """The watch has ended, whoever ended it."""
        channel = self._channels.get(subscription.region)
        if channel is not None:
            channel.watchers.discard(subscription)

    def publish_observed(self, observed: Iterable[RegionObserved]) -> None:
        """News of regions, for the watchers of all others."""
        for item in observed:
            frame = observed_frame(item)
            self._observed[item.region] = frame
            for region, channel in self._channels.items():
                if region != item.region:
                    for watcher in channel.watchers:
                        watcher.offer_observed(item.region, frame)

    async def _follow(self) -> None:
        while True:
            try:
                if self._catalogue is None:
                    await self._load()
                else:
                    await self._advance(self._catalogue)
                self._read_at = self._clock.monotonic()
                self._on_health(True, "")
            except StaleVersion as error:
                # History in the database is not what this process knew: start over, and have the routers start over.
                _log.warning("intent_history_lost", reason=str(error))
                self._forget()
            except HeadraceError as error:
                self._on_health(False, str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _load(self) -> None:
        at, objects = await self._feed.load()
        catalogue = await asyncio.to_thread(Catalogue, at, objects, self._secrets)
        self._catalogue = catalogue
        await self._tell_moved()
        _log.info("intent_loaded", epoch=at.epoch, version=at.version, objects=len(objects))

    async def _advance(self, catalogue: Catalogue) -> None:
        if not await self._feed.wait(catalogue.at, self._poll_seconds):
            return
        for at, changes in await self._feed.changes_since(catalogue.at):
            keys = catalogue.advance(at, changes)
            for channel in self._channels.values():
                snapshot, delta = catalogue.next_snapshot(channel.history.snapshot, keys)
                channel.history.advance(snapshot, delta)
                channel.full = None
                frame = delta_frame(delta)
                for watcher in list(channel.watchers):
                    if len(frame) > MAX_DELTA_BYTES:
                        watcher.close(Closed.RESYNC)
                    else:
                        watcher.offer_delta(frame)
            await self._tell_moved()
            await asyncio.sleep(0)  # many versions at once must not keep others waiting

    async def _tell_moved(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _beat(self) -> None:
        while True:
            current = self._feed_read_lately()
            for channel in self._channels.values():
                frame = heartbeat_frame(channel.history.snapshot.at if current else None)
                for watcher in channel.watchers:
                    watcher.offer_heartbeat(frame)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _feed_read_lately(self) -> bool:
        return self.feed_age_seconds() <= STALE_FEED_SECONDS

    def _channel(self, region: str) -> _Channel:
        if self._catalogue is None:
            raise Unavailable("the control plane has not read its intent yet")
        channel = self._channels.get(region)
        if channel is None:
            channel = self._channels[region] = _Channel(RegionHistory(self._catalogue.snapshot(region)))
        return channel

    def _full(self, channel: _Channel) -> Awaitable[tuple[bytes, ...]]:
        """Shared by all who want the same version; waiting for it can be given up without ending it for the others."""
        snapshot = channel.history.snapshot
        if channel.full is None or channel.full[0] != snapshot.at or _failed(channel.full[1]):
            channel.full = (snapshot.at, asyncio.create_task(asyncio.to_thread(full_frames, snapshot)))
        return asyncio.shield(channel.full[1])

    def _forget(self) -> None:
        self._close_all(Closed.RESYNC)
        self._catalogue = None
        self._channels.clear()

    def _close_all(self, why: Closed) -> None:
        for channel in self._channels.values():
            for watcher in channel.watchers:
                watcher.close(why)


def _failed(task: asyncio.Task[tuple[bytes, ...]]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _given(frames: tuple[bytes, ...]) -> Awaitable[tuple[bytes, ...]]:
    future: asyncio.Future[tuple[bytes, ...]] = asyncio.get_running_loop().create_future()
    future.set_result(frames)
    return future
