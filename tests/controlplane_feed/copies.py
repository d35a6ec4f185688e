"""Control planes to test against: whole processes in this loop, and what a router needs to talk to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from sqlalchemy import delete

from controlplane.main import run
from controlplane.secrets import DeploymentSecrets
from controlplane.settings import ControlPlaneSettings
from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from controlplane.tables import AdminToken, JoinToken, Resource
from fleet.capacity import RegionDirective, RegionObserved, RegionReport
from fleet.delta import apply
from fleet.process.grpc_server import make_channel
from fleet.snapshot import IntentObject, IntentSnapshot, IntentVersion
from fleet.wire.headrace.v1 import region_pb2, region_pb2_grpc, snapshot_pb2, snapshot_pb2_grpc
from fleet.wire.regions import observed_from_wire, region_directive_from_wire, region_report_to_wire
from fleet.wire.snapshots import delta_from_wire, snapshot_from_chunks, version_from_wire, version_to_wire

SECRET_KEY = "a secret key for tests only, not for use"
ADMIN = "bootstrap-admin-token-for-tests"
TIMEOUT = 20.0


def obj(kind: str, uid: str, name: str | None = None, generation: int = 1, /, **spec: Any) -> IntentObject:
    return IntentObject(kind, uid, name or uid, generation, spec)


BASIC: tuple[IntentObject, ...] = (
    obj("region", "r-eu", "eu-west", latitude=53.35, longitude=-6.26, jurisdictions=["EU"]),
    obj("region", "r-us", "us-east", latitude=38.9, longitude=-77.4, jurisdictions=["US"]),
    obj("zone", "z-eu-a", "eu-west-a", region="eu-west", endpoint_ranges=["10.2.0.0/16"]),
    obj("zone", "z-us-a", "us-east-a", region="us-east", endpoint_ranges=["10.3.0.0/16"]),
    obj("node", "n-eu", "eu-1", zone="eu-west-a"),
    obj("node", "n-us", "us-1", zone="us-east-a"),
    obj("model", "m-1", "llama"),
    obj("tenant", "t-1", "acme"),
)


async def eventually(holds: Callable[[], bool], timeout: float = TIMEOUT) -> None:
    """Wait for something that no event tells of."""
    deadline = asyncio.get_running_loop().time() + timeout
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it did not come about"
        await asyncio.sleep(0.02)


class Store:
    """Writes intent and tokens as the REST API does, straight to the database."""

    def __init__(self, url: str, secret_key: str = SECRET_KEY) -> None:
        self.secrets = DeploymentSecrets.of([secret_key])
        self.database = Database(url)
        self.feed = IntentFeed(self.database, self.secrets)

    async def close(self) -> None:
        await self.feed.close()
        await self.database.close()

    async def write(
        self, upserts: Sequence[IntentObject] = (), removals: Sequence[tuple[str, str]] = ()
    ) -> IntentVersion:
        now = datetime.now(UTC)
        async with self.database.write() as session:
            await self.feed.lock(session)
            for kind, uid in removals:
                row = await session.get(Resource, uid)
                assert row is not None
                assert row.kind == kind
                row.deleted_at = now
            for item in upserts:
                row = await session.get(Resource, item.uid)
                if row is None:
                    row = Resource(uid=item.uid, kind=item.kind, owner="user", annotations={}, created_at=now)
                    session.add(row)
                row.name, row.spec, row.labels = item.name, dict(item.spec), dict(item.labels)
                row.generation, row.resource_version, row.updated_at = item.generation, "1", now
                if item.secrets:
                    row.sealed = self.secrets.seal(json.dumps(dict(item.secrets)), f"{item.kind}/{item.uid}")
            await session.flush()
            return await self.feed.record(session, upserts=upserts, removals=removals)

    async def router_token(self, region: str, token: str | None = None) -> str:
        token = token or f"router-token-of-{region}-for-tests"
        await self._admin(token, "router", region)
        return token

    async def viewer_token(self) -> str:
        token = "viewer-token-for-tests"
        await self._admin(token, "viewer", None)
        return token

    async def _admin(self, token: str, role: str, region: str | None) -> None:
        async with self.database.write() as session:
            session.add(
                AdminToken(
                    uid=f"u-{token[:50]}",
                    name=token[:50],
                    digest=self.secrets.digest_token(token),
                    role=role,
                    region=region,
                )
            )

    async def revoke(self, token: str) -> None:
        async with self.database.write() as session:
            await session.execute(delete(AdminToken).where(AdminToken.digest == self.secrets.digest_token(token)))

    async def join_token(
        self, token: str, *, zone: str = "*", node: str = "*", uses: int = 1, ttl: float = 3600
    ) -> str:
        async with self.database.write() as session:
            expires = datetime.fromtimestamp(datetime.now(UTC).timestamp() + ttl, UTC)
            session.add(
                JoinToken(
                    uid=f"j-{token[:50]}",
                    name=token[:50],
                    digest=self.secrets.digest_token(token),
                    zone=zone,
                    node=node,
                    uses=uses,
                    used=0,
                    expires_at=expires,
                )
            )
        return token


@dataclass
class Copy:
    """A running control plane process."""

    ports: dict[str, int]
    stop: asyncio.Event
    task: asyncio.Task[None]
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    def channel(self, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        channel = make_channel(f"127.0.0.1:{self.ports['grpc']}", options=options)
        self.channels.append(channel)
        return channel


@asynccontextmanager
async def copy(url: str, state_dir: Path, **changes: Any) -> AsyncIterator[Copy]:
    """A control plane over ``url``, ready; stopped and checked for errors at the end."""
    settings = ControlPlaneSettings.embedded(
        **{
            "database_url": url,
            "state_dir": str(state_dir),
            "secret_key": [SECRET_KEY],
            "bootstrap_admin_token": ADMIN,
            "feed_poll_seconds": 0.05,
            **changes,
        }
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    ports: dict[str, int] = {}
    task = asyncio.create_task(run(settings, stop=stop, ready=ready.set, on_bound=ports.__setitem__))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait((task, waiting), timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    assert ready.is_set(), "the control plane did not become ready"
    made = Copy(ports, stop, task)
    try:
        yield made
    finally:
        for channel in made.channels:
            await channel.close(None)
        stop.set()
        async with asyncio.timeout(TIMEOUT):
            await task


class Router:
    """The pulling side, as strict as the contract: what does not fit fails the test."""

    def __init__(self, channel: grpc.aio.Channel, token: str, region: str, have: IntentVersion | None = None) -> None:
        self.held: IntentSnapshot | None = None
        self.observed: dict[str, RegionObserved] = {}
        self.fulls = 0
        self.deltas = 0
        self.heads: list[IntentVersion] = []
        """Heads of heartbeats; version 0 for one without."""
        self.max_message = 0
        self._changed = asyncio.Condition()
        request = snapshot_pb2.WatchRequest(
            router_uid="router-1", router_incarnation=1, region=region, have=version_to_wire(have or IntentVersion())
        )
        stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)
        self.call = stub.Watch(request, metadata=(("authorization", f"Bearer {token}"),))
        self._task = asyncio.create_task(self._run())

    def hold(self, snapshot: IntentSnapshot) -> None:
        self.held = snapshot

    async def _run(self) -> None:
        chunks: list[snapshot_pb2.SnapshotChunk] = []
        try:
            while (update := await self.call.read()) is not grpc.aio.EOF:
                self.max_message = max(self.max_message, update.ByteSize())
                match update.WhichOneof("update"):
                    case "full":
                        chunks.append(update.full)
                        if update.full.last:
                            self.held = snapshot_from_chunks(chunks)
                            self.fulls += 1
                            chunks = []
                    case "delta":
                        assert not chunks, "something stands between the chunks of a snapshot"
                        delta = delta_from_wire(update.delta)
                        assert self.held is not None
                        assert delta.base == self.held.at, "a delta was skipped"
                        self.held = apply(self.held, delta)
                        self.deltas += 1
                    case "observed":
                        observed = observed_from_wire(update.observed)
                        self.observed[observed.region] = observed
                    case "heartbeat":
                        self.heads.append(version_from_wire(update.heartbeat.head))
                async with self._changed:
                    self._changed.notify_all()
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def until(self, reached: Callable[[Router], bool], timeout: float = TIMEOUT) -> None:
        """Wait for a state; an error of the stream, or the time running out, fails the test."""
        async with asyncio.timeout(timeout), self._changed:
            while not reached(self):
                if self._task.done():
                    self._task.result()
                    raise AssertionError(f"the watch ended: {await self.call.code()} {await self.call.details()}")
                await self._changed.wait()

    async def until_version(self, at: IntentVersion) -> IntentSnapshot:
        await self.until(lambda r: r.held is not None and r.held.at.order >= at.order)
        assert self.held is not None
        return self.held

    async def ended(self, timeout: float = TIMEOUT) -> grpc.StatusCode:
        """The status with which the other side ended the watch."""
        async with asyncio.timeout(timeout):
            try:
                await self._task
            except grpc.aio.AioRpcError as error:
                return error.code()
            return await self.call.code()

    async def close(self) -> None:
        self.call.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Reports:
    """One report stream."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._call = region_pb2_grpc.RegionServiceStub(channel).Report(metadata=(("authorization", f"Bearer {token}"),))

    async def send(self, report: RegionReport) -> RegionDirective:
        async with asyncio.timeout(TIMEOUT):
            await self._call.write(region_report_to_wire(report))
            answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise AssertionError(f"{await self._call.code()}: {await self._call.details()}")
        return region_directive_from_wire(answer)

    async def ended(self) -> grpc.StatusCode:
        async with asyncio.timeout(TIMEOUT):
            try:
                while await self._call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code()
            return await self._call.code()

    def close(self) -> None:
        self._call.cancel()


async def join(channel: grpc.aio.Channel, token: str, **fields: Any) -> region_pb2.NodeJoinResponse:
    """Raises AioRpcError when it is refused."""
    stub = region_pb2_grpc.RegionServiceStub(channel)
    answer: region_pb2.NodeJoinResponse = await stub.Join(
        region_pb2.NodeJoinRequest(**fields), metadata=(("authorization", f"Bearer {token}"),), timeout=TIMEOUT
    )
    return answer
