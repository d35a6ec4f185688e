"""The router's side of ``SnapshotService.Watch``: pulls intent and observed aggregates, and says how fresh they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from fleet.capacity import RegionObserved
from fleet.clock import Clock
from fleet.errors import DigestMismatch, StaleVersion, Unavailable
from fleet.snapshot import IntentVersion
from fleet.wire.headrace.v1 import snapshot_pb2, snapshot_pb2_grpc
from fleet.wire.regions import observed_from_wire
from fleet.wire.snapshots import delta_from_wire, object_from_wire, version_from_wire, version_to_wire
from regional.sync.held import ChunkAssembler, HeldSnapshot

SILENCE_SECONDS = 4.0
"""The control plane says something at least every second; after this long the watch is dead."""
MAX_SNAPSHOT_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RouterIdentity:
    """Who this router is to the control plane."""

    uid: str
    incarnation: int
    region: str
    version: str


class Freshness:
    """How old the held intent may be. ``heard`` times are when the control plane last said that what we hold is current."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard_monotonic: float | None = None
        self._heard_wall: float | None = None
        self.connected = False

    def restored(self, heard_wall: float) -> None:
        """A snapshot from disk, last confirmed at ``heard_wall``."""
        age = max(0.0, self._clock.wall() - heard_wall)
        self._heard_monotonic = self._clock.monotonic() - age
        self._heard_wall = heard_wall

    def confirmed(self) -> None:
        self._heard_monotonic = self._clock.monotonic()
        self._heard_wall = self._clock.wall()

    @property
    def heard_wall(self) -> float | None:
        """Wall time of the last confirmation; None before the first."""
        return self._heard_wall

    def age_seconds(self) -> float | None:
        """Seconds since what is held was known to be current; None when nothing ever was."""
        if self._heard_monotonic is None:
            return None
        return max(0.0, self._clock.monotonic() - self._heard_monotonic)


class Watch:
    """Keeps ``held`` up to date over one session after another. ``session`` is handed to an :class:`Uplink`."""

    def __init__(
        self,
        who: RouterIdentity,
        held: HeldSnapshot,
        freshness: Freshness,
        token: Callable[[], str],
        on_change: Callable[[], Awaitable[None]],
        on_observed: Callable[[RegionObserved], None],
        on_refused: Callable[[str], None],
    ) -> None:
        """``on_change`` is awaited after ``held`` changed; ``on_refused(reason)`` counts what was offered and not taken."""
        self._who = who
        self._held = held
        self._freshness = freshness
        self._token = token
        self._on_change = on_change
        self._on_observed = on_observed
        self._on_refused = on_refused
        self._resync = False

    async def session(self, channel: grpc.aio.Channel) -> None:
        """One watch over ``channel`` until it breaks. Raises StaleVersion or DigestMismatch when what came does not fit."""
        have = IntentVersion() if self._resync else self._held.at
        request = snapshot_pb2.WatchRequest(
            router_uid=self._who.uid,
            router_incarnation=self._who.incarnation,
            region=self._who.region,
            have=version_to_wire(have),
            software_version=self._who.version,
        )
        stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Watch(request, metadata=(("authorization", f"Bearer {self._token()}"),))
        assembler = ChunkAssembler(MAX_SNAPSHOT_BYTES)
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    update = await call.read()
                if update is grpc.aio.EOF:  # type: ignore[attr-defined]
                    raise Unavailable("the control plane ended the watch")
                self._freshness.connected = True
                await self._take(update, assembler)
        except (StaleVersion, DigestMismatch) as error:
            self._resync = True
            self._on_refused("stale" if isinstance(error, StaleVersion) else "digest")
            raise
        finally:
            self._freshness.connected = False
            call.cancel()

    async def _take(self, update: snapshot_pb2.SnapshotUpdate, assembler: ChunkAssembler) -> None:
        match update.WhichOneof("update"):
            case "full":
                await self._take_chunk(update.full, assembler)
            case "delta":
                delta = delta_from_wire(update.delta)
                changed = self._held.offer_delta(delta, confirmed=update.delta.confirmed)
                self._resync = False
                if delta.at.order == self._held.at.order:
                    self._freshness.confirmed()
                if changed:
                    await self._changed()
            case "observed":
                self._on_observed(observed_from_wire(update.observed))
            case "heartbeat":
                if version_from_wire(update.heartbeat.head).order == self._held.at.order and not self._held.empty:
                    self._freshness.confirmed()
            case _:
                return  # a message of a newer release

    async def _take_chunk(self, chunk: snapshot_pb2.SnapshotChunk, assembler: ChunkAssembler) -> None:
        objects = [object_from_wire(o) for o in chunk.objects]
        assembler.add(version_from_wire(chunk.at), chunk.region, chunk.index, objects, chunk.ByteSize())
        if not chunk.last:
            return
        # Hashing tens of thousands of objects takes a good part of a second; requests go on meanwhile.
        snapshot = await asyncio.to_thread(assembler.finish, chunk.content)
        changed = self._held.offer_full(snapshot, confirmed=chunk.confirmed)
        self._resync = False
        self._freshness.confirmed()
        if changed:
            await self._changed()

    async def _changed(self) -> None:
        for rejection in self._held.new_rejections:
            self._on_refused(rejection.reason)
        await self._on_change()
