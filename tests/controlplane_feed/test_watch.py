"""Snapshots go out: full, deltas, heartbeats, on both databases."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import psycopg
from psycopg import sql
from sqlalchemy import insert, select

from controlplane.store import migrate
from controlplane.tables import Event, Resource
from controlplane.tables.base import utc_now
from fleet.snapshot import SECRETS_KIND, IntentVersion
from tests.controlplane_feed.copies import ADMIN, BASIC, Router, Store, copy, obj

START = IntentVersion(0, 1)


async def test_a_watch_gets_the_whole_then_a_delta_for_each_change(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    token = await store.router_token("eu-west")
    async with copy(database_url, tmp_path) as plane:
        router = Router(plane.channel(), token, "eu-west")
        first = await router.until_version(START)
        assert {o.name for o in first.objects.values() if o.kind == "node"} == {"eu-1"}
        assert first.objects["region", "r-us"].name == "us-east"
        assert "endpoint_ranges" not in first.objects["zone", "z-us-a"].spec
        assert first.objects["zone", "z-eu-a"].spec["endpoint_ranges"] == ["10.2.0.0/16"]
        [secrets] = [o for o in first.objects.values() if o.kind == SECRETS_KIND]
        assert len(secrets.secrets["peppers"]) == 1

        at = await store.write([obj("node", "n-2", "eu-2", zone="eu-west-a")])
        second = await router.until_version(at)
        assert second.objects["node", "n-2"].name == "eu-2"
        at = await store.write(removals=[("node", "n-2")])
        third = await router.until_version(at)
        assert third.objects == first.objects
        assert third.content == first.content
        assert (router.fulls, router.deltas) == (1, 2)
        await router.until(lambda r: bool(r.heads) and r.heads[-1] == third.at)
        await router.close()


async def test_secrets_travel_with_their_object(store: Store, database_url: str, tmp_path: Path) -> None:
    token = await store.router_token("eu-west")
    key = obj("key", "k-1", "acme-1", tenant="acme")
    at = await store.write([type(key)(key.kind, key.uid, key.name, 1, key.spec, {}, {"secret_hmac": "ab" * 32})])
    async with copy(database_url, tmp_path) as plane:
        router = Router(plane.channel(), token, "eu-west")
        held = await router.until_version(at)
        assert held.objects["key", "k-1"].secrets == {"secret_hmac": "ab" * 32}
        await router.close()


async def test_case_x01_one_resync_after_a_gap_then_increments(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path) as plane:
        before = Router(plane.channel(), token, "eu-west")
        for number in range(5):
            head = await sqlite_store.write([obj("model", f"m-{number}")])
        await before.until_version(head)
        await before.close()
        router = Router(plane.channel(), token, "eu-west", have=IntentVersion(head.epoch, 3, b"made up"))
        await router.until_version(head)
        for number in (10, 11):
            await router.until_version(await sqlite_store.write([obj("model", f"m-{number}")]))
        assert (router.fulls, router.deltas) == (1, 2)
        await router.close()


async def test_a_router_continues_from_what_it_has(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path) as plane:
        first = Router(plane.channel(), token, "eu-west")
        held = await first.until_version(START)
        for number in range(4):
            at = await sqlite_store.write([obj("model", f"m-{number}"), obj("model", "m-same", generation=number)])
        await first.until_version(at)
        await first.close()
        again = Router(plane.channel(), token, "eu-west", have=held.at)
        again.hold(held)
        now = await again.until_version(at)
        assert (again.fulls, again.deltas) == (0, 1)
        assert ("model", "m-3") in now.objects
        await again.close()
        idle = Router(plane.channel(), token, "eu-west", have=now.at)
        idle.hold(now)
        await idle.until(lambda r: r.deltas == 1)
        assert idle.held == now
        await idle.close()


async def test_a_restarted_control_plane_goes_on_where_routers_stand(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path) as plane:
        router = Router(plane.channel(), token, "eu-west")
        held = await router.until_version(START)
        plane.stop.set()
        assert await router.ended() is grpc.StatusCode.UNAVAILABLE
    async with copy(sqlite_url, tmp_path) as plane:
        again = Router(plane.channel(), token, "eu-west", have=held.at)
        again.hold(held)
        await again.until(lambda r: r.deltas == 1)
        assert again.fulls == 0
        await again.until_version(await sqlite_store.write([obj("model", "m-new")]))
        await again.close()


async def test_a_claim_from_another_history_gets_everything_and_is_recorded(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    token = await sqlite_store.router_token("eu-west")
    head = await sqlite_store.feed.head()
    async with copy(sqlite_url, tmp_path) as plane:
        for ahead in (100, 0):
            claim = IntentVersion(head.epoch, head.version + ahead, b"another history")
            router = Router(plane.channel(), token, "eu-west", have=claim)
            await router.until(lambda r: r.fulls == 1)
            await router.close()
    async with sqlite_store.database.read() as session:
        found = {(e.reason, e.region) for e in await session.execute(select(Event.reason, Event.region))}
    assert {("SnapshotClaimAhead", "eu-west"), ("SnapshotHistoryUnknown", "eu-west")} <= found


async def test_a_new_epoch_makes_everybody_start_over(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path) as plane:
        router = Router(plane.channel(), token, "eu-west")
        held = await router.until_version(START)
        epoch = await asyncio.to_thread(migrate.restored, sqlite_url)
        assert await router.ended() is grpc.StatusCode.ABORTED
        again = Router(plane.channel(), token, "eu-west", have=held.at)
        await again.until(lambda r: r.fulls == 1)
        assert again.held is not None
        assert again.held.at.epoch == epoch > held.at.epoch
        await again.close()


async def test_a_revoked_tenant_key_reaches_a_watch_within_two_seconds(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    token = await store.router_token("eu-west")
    await store.write([obj("key", "k-1", "acme-1", tenant="acme", revoked=False)])
    async with copy(database_url, tmp_path, feed_poll_seconds=0.2) as plane:
        router = Router(plane.channel(), token, "eu-west")
        await router.until_version(await store.feed.head())
        started = time.monotonic()
        at = await store.write([obj("key", "k-1", "acme-1", 2, tenant="acme", revoked=True)])
        held = await router.until_version(at)
        assert held.objects["key", "k-1"].spec["revoked"] is True
        assert time.monotonic() - started < 2.0
        await router.close()


async def test_a_revoked_router_token_ends_its_streams(store: Store, database_url: str, tmp_path: Path) -> None:
    token, other = await store.router_token("eu-west"), await store.router_token("us-east")
    async with copy(database_url, tmp_path) as plane:
        router, kept = Router(plane.channel(), token, "eu-west"), Router(plane.channel(), other, "us-east")
        await router.until_version(START)
        await kept.until_version(START)
        await store.revoke(token)
        assert await router.ended() is grpc.StatusCode.UNAUTHENTICATED
        refused = Router(plane.channel(), token, "eu-west")
        assert await refused.ended() is grpc.StatusCode.UNAUTHENTICATED
        await kept.until_version(await store.write([obj("model", "m-new")]))
        await kept.close()


async def test_only_a_router_of_the_region_may_watch(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    own, viewer = await sqlite_store.router_token("eu-west"), await sqlite_store.viewer_token()
    async with copy(sqlite_url, tmp_path) as plane:
        for region, token, status in [
            ("us-east", own, grpc.StatusCode.PERMISSION_DENIED),
            ("eu-west", "wrong-token-wrong-token", grpc.StatusCode.UNAUTHENTICATED),
            ("eu-west", "", grpc.StatusCode.UNAUTHENTICATED),
            ("eu-west", viewer, grpc.StatusCode.UNAUTHENTICATED),
            ("eu-west", ADMIN, grpc.StatusCode.UNAUTHENTICATED),
        ]:
            router = Router(plane.channel(), token, region)
            assert await router.ended() is status
            assert router.held is None


async def test_case_x05_a_snapshot_above_the_message_limit(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    """2000 nodes x 8 GPUs x 3 deployments, to a client with gRPC's default limit of 4 MB."""
    limit = [("grpc.max_receive_message_length", 4 * 1024 * 1024)]
    token = await sqlite_store.router_token("eu-west")
    fleet = [
        obj("node", f"n-{n}", zone="eu-west-a", gpus=[{"product": "h100-sxm-80", "count": 8, "memory_gib": 80}])
        for n in range(2000)
    ]
    fleet += [
        obj(
            "endpoint",
            f"e-{n}-{d}",
            f"endpoint-of-deployment-{d}-on-node-{n}",
            node=f"n-{n}",
            url=f"http://10.2.{n // 250}.{n % 250}:{9000 + d}",
            engine="vllm",
            models=[{"name": "llama", "served_as": "meta-llama/Llama-3.1-8B-Instruct"}],
            gpus=[f"GPU-{n:08d}-0000-0000-0000-{g:012d}" for g in range(8)],
            max_inflight=64,
            kv_tokens=319_000,
        )
        for n in range(2000)
        for d in range(3)
    ]
    async with copy(sqlite_url, tmp_path) as plane:
        router = Router(plane.channel(limit), token, "eu-west")
        held = await router.until_version(START)
        now = utc_now()
        rows = [
            {
                "uid": o.uid, "kind": o.kind, "name": o.name, "owner": "user", "labels": {}, "annotations": {},
                "spec": dict(o.spec), "generation": 1, "resource_version": "1", "created_at": now, "updated_at": now,
            }
            for o in fleet
        ]  # fmt: skip
        async with sqlite_store.database.write() as session:
            await sqlite_store.feed.lock(session)
            await session.execute(insert(Resource), rows)
            at = await sqlite_store.feed.record(session, upserts=fleet)
        # One message could not carry it: the watch ends with a word for it, and the next one gets chunks.
        assert await router.ended() is grpc.StatusCode.ABORTED
        again = Router(plane.channel(limit), token, "eu-west", have=held.at)
        again.hold(held)
        whole = await again.until_version(at)
        assert len(whole.objects) == len(held.objects) + 8000
        assert again.fulls == 1
        assert again.max_message <= 1_000_000
        await again.until_version(await sqlite_store.write([obj("model", "m-small")]))
        assert again.deltas == 1
        await again.close()


async def test_two_copies_over_one_postgres_serve_the_same_intent(postgres_url: str, tmp_path: Path) -> None:
    store = Store(postgres_url)
    await store.write(BASIC)
    token = await store.router_token("eu-west")
    async with copy(postgres_url, tmp_path / "a") as one, copy(postgres_url, tmp_path / "b") as two:
        first, second = Router(one.channel(), token, "eu-west"), Router(two.channel(), token, "eu-west")
        for number in range(5):
            at = await store.write([obj("model", f"m-{number}")])
        assert await first.until_version(at) == await second.until_version(at)
        held = first.held
        assert held is not None
        await first.close()
        moved = Router(two.channel(), token, "eu-west", have=held.at)
        moved.hold(held)
        await moved.until_version(await store.write([obj("model", "m-last")]))
        assert moved.fulls == 0
        await moved.close()
        await second.close()
    await store.close()


async def test_case_x07_a_database_that_is_away_empties_nothing(postgres_url: str, tmp_path: Path) -> None:
    """The watch stays open, says that it cannot vouch for anything, and goes on by deltas when the database is back."""
    store = Store(postgres_url)
    await store.write(BASIC)
    token = await store.router_token("eu-west")
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    admin_url = postgres_url.replace(name, "postgres")

    def allow(connections: bool) -> None:
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(
                sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(sql.Identifier(name), sql.Literal(connections))
            )
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))

    async with copy(postgres_url, tmp_path) as plane:
        router = Router(plane.channel(), token, "eu-west")
        held = await router.until_version(START)
        await asyncio.to_thread(allow, False)
        try:
            await router.until(lambda r: bool(r.heads) and r.heads[-1].version == 0)
            assert router.held == held
            newcomer = Router(plane.channel(), token, "eu-west")  # better an old snapshot than none
            assert (await newcomer.until_version(START)).objects == held.objects
            await newcomer.close()
        finally:
            await asyncio.to_thread(allow, True)
        await router.until(lambda r: r.heads[-1] == held.at)
        store_again = Store(postgres_url)
        await router.until_version(await store_again.write([obj("model", "m-after")]))
        assert (router.fulls, router.deltas) == (1, 1)
        await router.close()
        await store_again.close()
    await store.close()
