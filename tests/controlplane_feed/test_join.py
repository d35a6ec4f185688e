"""Nodes join, come back, are re-installed and replaced; a token is consumed once."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from sqlalchemy import insert, select, update

from controlplane.api import audit
from controlplane.identity import REPEAT_SECONDS, Joined, JoinRefused, JoinRequest, Joins, Refusal
from controlplane.tables import Event, InventoryItem, JoinToken, Resource
from fleet.clock import ManualClock
from fleet.snapshot import SECRETS_KIND
from fleet.wire.identity import verify_identity
from tests.controlplane_feed.copies import Router, Store, copy, join, obj

WALL = 1_800_000_000.0
GPUS = tuple(f"GPU-{n}" for n in range(8))


class Desk:
    """Joins over a database, without a process around it."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.joins = Joins(store.database, store.feed, store.secrets, clock)
        self._tokens = 0

    async def token(self, **limits: object) -> str:
        self._tokens += 1
        token = f"join-token-number-{self._tokens}-for-tests"
        await self.store.join_token(token, **limits)  # type: ignore[arg-type]
        moment = datetime.fromtimestamp(self.clock.wall() + 3600, UTC)
        async with self.store.database.write() as session:
            await session.execute(update(JoinToken).values(expires_at=moment))
        return token

    async def join(self, name: str = "eu-9", **fields: object) -> Joined:
        values: dict[str, object] = {"region": "eu-west", "zone": "eu-west-a", "node_name": name, **fields}
        if "join_token" not in values and "identity" not in values:
            values["join_token"] = await self.token()
        return await self.joins.join(JoinRequest(**values))  # type: ignore[arg-type]

    async def refused(self, name: str = "eu-9", **fields: object) -> Refusal:
        with pytest.raises(JoinRefused) as caught:
            await self.join(name, **fields)
        return caught.value.why

    async def reports(
        self, joined: Joined, gpus: tuple[str, ...] = GPUS, state: str = "ready", ago: float = 0.0
    ) -> None:
        """What the inventory holds of a node that last reported ``ago`` seconds ago."""
        seen = datetime.fromtimestamp(self.clock.wall() - ago, UTC)
        who = joined.identity
        common = {
            "node_uid": who.node_uid, "zone": who.zone, "region": who.region, "incarnation": 1, "sequence": 1,
            "body": {}, "first_seen_at": seen, "last_seen_at": seen,
        }  # fmt: skip
        rows = [{"kind": "node", "uid": who.node_uid, "name": who.node_name, "state": state, **common}]
        rows += [{"kind": "gpu", "uid": g, "name": g, "state": "ok", **common} for g in gpus]
        async with self.store.database.write() as session:
            await session.execute(insert(InventoryItem), rows)

    async def nodes(self) -> dict[str, Resource]:
        async with self.store.database.read() as session:
            rows = await session.execute(select(Resource).where(Resource.kind == "node", Resource.deleted_at.is_(None)))
            return {r.name: r for r in rows.scalars()}

    async def inventory(self) -> set[tuple[str, str]]:
        async with self.store.database.read() as session:
            return {(k, u) for k, u in await session.execute(select(InventoryItem.kind, InventoryItem.node_uid))}


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store, ManualClock(wall=WALL))


async def test_a_node_gets_a_uid_and_an_identity_that_routers_can_verify(desk: Desk) -> None:
    before = await desk.store.feed.head()
    joined = await desk.join("eu-9")
    who = verify_identity(joined.token, desk.store.secrets.identity_keys(), WALL)
    assert (who.node_name, who.zone, who.region) == ("eu-9", "eu-west-a", "eu-west")
    assert who.expires_at - who.issued_at == 24 * 3600
    row = (await desk.nodes())["eu-9"]
    assert (row.uid, row.owner, row.spec) == (who.node_uid, "agent", {"zone": "eu-west-a"})
    changes = await desk.store.feed.changes_since(before)
    assert changes is not None
    assert [o.name for c in changes for o in c.upserts] == ["eu-9"]
    assert joined.token not in repr(joined)


async def test_one_token_used_a_hundred_times_at_once_lets_exactly_one_in(desk: Desk) -> None:
    token = await desk.token(uses=1)

    async def attempt(number: int) -> str:
        try:
            await desk.join(f"node-{number}", join_token=token)
        except JoinRefused as error:
            return error.why.value
        return "admitted"

    outcomes = await asyncio.gather(*(attempt(n) for n in range(100)))
    assert sorted(outcomes) == ["admitted"] + [Refusal.TOKEN.value] * 99
    assert len(await desk.nodes()) == 3  # two written down, one joined


@pytest.mark.parametrize(
    "case", ["unknown", "empty", "replayed", "expired", "zone", "node"], ids=lambda c: f"token-{c}"
)
async def test_a_token_that_does_not_fit_changes_nothing(desk: Desk, case: str) -> None:
    token = await desk.token(
        **{"zone": {"zone": "us-*"}, "node": {"node": "gpu-*"}, "replayed": {"uses": 1}}.get(case, {})
    )
    if case == "replayed":
        await desk.join("eu-8", join_token=token)
    if case == "expired":
        desk.clock.advance(3601)
    head, nodes = await desk.store.feed.head(), set(await desk.nodes())
    shown = {"unknown": "no such token", "empty": ""}.get(case, token)
    assert await desk.refused("eu-9", join_token=shown) is Refusal.TOKEN
    assert await desk.store.feed.head() == head
    assert set(await desk.nodes()) == nodes


async def test_a_join_whose_answer_was_lost_is_answered_again(desk: Desk) -> None:
    """The token is spent, the answer never came: the same try, at whichever control plane, gets what it was admitted as."""
    token, attempt = await desk.token(uses=1), "a number nobody else makes up"
    first = await desk.join("eu-9", join_token=token, attempt=attempt, gpu_uuids=GPUS)
    await desk.reports(first)
    head = await desk.store.feed.head()
    another = Joins(desk.store.database, desk.store.feed, desk.store.secrets, desk.clock)
    again = await another.join(
        JoinRequest("eu-west", "eu-west-a", "eu-9", join_token=token, attempt=attempt, gpu_uuids=GPUS)
    )
    assert again.identity.node_uid == first.identity.node_uid
    assert await desk.store.feed.head() == head
    for other in (
        {"attempt": "a number of somebody else"},
        {"attempt": ""},
        {"name": "eu-10"},
        {"join_token": await desk.token(uses=1, node="gpu-*")},
    ):
        assert await desk.refused(**{"name": "eu-9", "join_token": token, "attempt": attempt, **other}) is Refusal.TOKEN
    moved = {"join_token": token, "attempt": attempt, "region": "us-east", "zone": "us-east-a"}
    assert await desk.refused("eu-9", **moved) is Refusal.TOKEN
    desk.clock.advance(REPEAT_SECONDS + 1)
    assert await desk.refused("eu-9", join_token=token, attempt=attempt) is Refusal.TOKEN


async def test_an_attempt_that_says_nothing_repeats_nothing(desk: Desk) -> None:
    token = await desk.token(uses=1)
    await desk.join("eu-9", join_token=token, attempt="short")
    assert await desk.refused("eu-9", join_token=token, attempt="short") is Refusal.TOKEN


async def test_a_token_for_many_counts_each_join_once(desk: Desk) -> None:
    token = await desk.token(uses=2)
    for number in (8, 8, 9, 8, 9):
        await desk.join(f"eu-{number}", join_token=token, attempt=f"the number of node {number}")
    assert await desk.refused("eu-7", join_token=token, attempt="the number of node 7") is Refusal.TOKEN


async def test_a_use_is_not_spent_on_a_refusal(desk: Desk) -> None:
    token = await desk.token(uses=1)
    odd = [{"zone": "nul\x00"}, {"gpu_uuids": ("nul\x00",)}, {"gpu_uuids": ("",)}, {"name": "eu-9\n"}]
    for fields in ({"zone": "nowhere"}, {"zone": "us-east-a"}, {"name": "Not A Name"}, *odd):
        assert await desk.refused(join_token=token, **fields) is Refusal.INVALID
    await desk.join(join_token=token)


async def test_a_node_comes_back_as_itself(desk: Desk) -> None:
    first = await desk.join("eu-9", gpu_uuids=GPUS)
    await desk.reports(first)
    shown = {"identity": first.token, "join_token": await desk.token()}
    again = await desk.join("eu-9", gpu_uuids=GPUS, node_uid=first.identity.node_uid, **shown)
    assert again.identity.node_uid == first.identity.node_uid
    assert again.retired == ()
    assert len(await desk.nodes()) == 3


async def test_a_token_and_a_uid_are_not_the_node(desk: Desk) -> None:
    """Uids are no secrets: whoever has a join token must not get the identity of a node that is alive by naming its uid."""
    first, other = await desk.join("eu-9", gpu_uuids=GPUS), await desk.join("eu-10")
    await desk.reports(first)
    uid = first.identity.node_uid
    for identity in ("", other.token, first.token[:-8]):
        token = await desk.token()
        assert await desk.refused("eu-9", node_uid=uid, identity=identity, join_token=token) is Refusal.CONFLICT


async def test_a_node_that_is_written_down_gets_its_own_uid(desk: Desk) -> None:
    assert (await desk.join("eu-1")).identity.node_uid == "n-eu"
    assert await desk.refused("us-1") is Refusal.CONFLICT  # written down for another zone


async def test_case_g11_a_reinstalled_machine_is_the_same_node(desk: Desk) -> None:
    first = await desk.join("eu-9", gpu_uuids=GPUS)
    await desk.reports(first, ago=600)
    again = await desk.join("eu-9", gpu_uuids=GPUS)
    assert again.identity.node_uid == first.identity.node_uid
    assert len(await desk.nodes()) == 3


async def test_case_g11_a_machine_under_a_new_name_takes_the_place_of_the_silent_one(desk: Desk) -> None:
    first = await desk.join("eu-9", gpu_uuids=GPUS)
    await desk.reports(first, ago=600)
    uid = first.identity.node_uid
    await desk.store.write(
        [obj("hold", "h-1", f"node.{uid}", target_kind="node", target=uid, state="cordoned", reason="fan")]
    )
    before = await desk.store.feed.head()
    second = await desk.join("eu-10", gpu_uuids=GPUS)
    assert second.identity.node_uid != uid
    assert second.retired == ("eu-9",)
    assert set(await desk.nodes()) == {"eu-1", "us-1", "eu-10"}
    assert await desk.inventory() == set()  # the GPUs are counted once, when the new one reports
    changes = await desk.store.feed.changes_since(before)
    assert changes is not None
    [change] = changes
    assert change.removals == (("node", uid),)
    moved = {o.kind: o for o in change.upserts}
    assert moved["hold"].spec["target"] == second.identity.node_uid
    assert moved["hold"].name == f"node.{second.identity.node_uid}"


@pytest.mark.parametrize("name", ["eu-9", "eu-10"], ids=["same-name", "same-gpus"])
async def test_case_g11_while_the_old_one_is_alive_it_is_a_conflict(desk: Desk, name: str) -> None:
    first = await desk.join("eu-9", gpu_uuids=GPUS)
    await desk.reports(first)
    token = await desk.token()
    assert await desk.refused(name, gpu_uuids=GPUS, join_token=token) is Refusal.CONFLICT
    assert set(await desk.nodes()) == {"eu-1", "us-1", "eu-9"}
    assert len(await desk.inventory()) == 2
    desk.clock.advance(120)  # it falls silent: the token that was not spent lets the new one in
    await desk.join(name, gpu_uuids=GPUS, join_token=token)


async def test_one_gpu_that_moved_does_not_retire_the_machine_it_came_from(desk: Desk) -> None:
    first = await desk.join("eu-9", gpu_uuids=GPUS)
    await desk.reports(first, ago=600)
    second = await desk.join("eu-10", gpu_uuids=(GPUS[0], "GPU-x"))
    assert second.retired == ()
    assert {"eu-9", "eu-10"} <= set(await desk.nodes())


async def test_an_identity_is_renewed_without_a_token(desk: Desk) -> None:
    first = await desk.join("eu-9")
    desk.clock.advance(16 * 3600)
    renewed = await desk.join("eu-9", identity=first.token)
    assert renewed.identity.node_uid == first.identity.node_uid
    assert renewed.identity.expires_at == WALL + 40 * 3600
    desk.clock.advance(30 * 3600)  # expired while no control plane could be reached
    await desk.join("eu-9", identity=renewed.token)
    desk.clock.advance(9 * 24 * 3600)
    assert await desk.refused("eu-9", identity=renewed.token) is Refusal.IDENTITY


async def test_an_identity_of_a_removed_or_moved_node_is_not_renewed(desk: Desk) -> None:
    first = await desk.join("eu-9")
    assert await desk.refused("eu-9", identity=first.token, region="us-east", zone="us-east-a") is Refusal.IDENTITY
    assert await desk.refused("eu-9", identity=first.token[:-4] + "AAAA") is Refusal.IDENTITY
    await desk.store.write(removals=[("node", first.identity.node_uid)])
    assert await desk.refused("eu-9", identity=first.token) is Refusal.IDENTITY


async def test_joins_through_a_router_reach_the_snapshot_and_refusals_are_recorded(
    sqlite_store: Store, sqlite_url: str, tmp_path: Path
) -> None:
    router_token, join_token = await sqlite_store.router_token("eu-west"), "join-token-for-tests"
    await sqlite_store.join_token(join_token)
    node = {"node_name": "eu-9", "zone": "eu-west-a", "region": "eu-west", "join_token": join_token}
    async with copy(sqlite_url, tmp_path) as plane:
        channel = plane.channel()
        router = Router(channel, router_token, "eu-west")
        answer = await join(channel, router_token, **node)
        await router.until(lambda r: r.held is not None and ("node", answer.node_uid) in r.held.objects)
        assert router.held is not None
        [secrets] = [o for o in router.held.objects.values() if o.kind == SECRETS_KIND]
        keys = [base64.b64decode(k) for k in secrets.secrets["identity_keys"]]
        identity = verify_identity(answer.identity, keys, datetime.now(UTC).timestamp())
        assert identity.node_uid == answer.node_uid
        assert answer.expires_in_seconds == 24 * 3600
        for fields, status in [
            (node | {"node_name": "eu-10"}, grpc.StatusCode.UNAUTHENTICATED),
            (node | {"node_name": "eu-10"}, grpc.StatusCode.UNAUTHENTICATED),
            (node | {"zone": "us-east-a"}, grpc.StatusCode.INVALID_ARGUMENT),
            (node | {"region": "us-east"}, grpc.StatusCode.PERMISSION_DENIED),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await join(channel, router_token, **fields)
            assert caught.value.code() is status
            assert join_token not in (caught.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await join(channel, "not a router token", **node)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await router.close()
    async with sqlite_store.database.read() as session:
        events = (await session.execute(select(Event.reason, Event.name, Event.message))).all()
    assert ("NodeJoined", "eu-9") in {(e.reason, e.name) for e in events}
    assert [(e.reason, e.name) for e in events].count(("JoinRefused", "eu-10")) == 1, (
        "told once, however often it is tried"
    )
    assert not any(join_token in e.message for e in events)


async def test_joins_and_the_misuse_of_tokens_are_audited(desk: Desk) -> None:
    token = await desk.token(uses=1)
    await desk.join("eu-9", join_token=token)
    assert await desk.refused("eu-10", join_token=token) is Refusal.TOKEN
    assert await desk.refused("eu-10", join_token="no such token") is Refusal.TOKEN
    async with desk.store.database.read() as session:
        entries = [(e.action, e.name, e.outcome) async for e in audit.entries(session)]
        assert token not in str([e.detail async for e in audit.entries(session)])
    assert entries == [("join", "eu-9", 200), ("join", "eu-10", 401)]


async def test_expired_tokens_are_told_by_the_control_planes_clock(desk: Desk) -> None:
    token = await desk.token()
    async with desk.store.database.write() as session:
        moment = datetime.fromtimestamp(WALL, UTC) + timedelta(seconds=1)
        await session.execute(update(JoinToken).values(expires_at=moment))
    await desk.join("eu-8", join_token=token)
