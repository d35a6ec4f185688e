"""Nodes join and renew: a join token is consumed once, a node keeps its uid, and what it gets is signed for 24 hours.

A node that comes back is the same node: by the uid it kept, else by its name (a re-installed machine, case-G11). A machine that
comes under another name with the GPUs of a node that has fallen silent takes its place, and the old one is retired. While the
former holder still reports it is a conflict, and nothing changes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import uuid4

from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.api.audit import AuditDraft, append
from controlplane.api.auth import Principal, Role
from controlplane.api.holds import hold_name
from controlplane.intake.told import valid_uid
from controlplane.secrets import DeploymentSecrets
from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from controlplane.store.resources import resource_version
from controlplane.tables import InventoryItem, JoinAnswer, JoinToken, Resource, Status
from fleet.clock import Clock
from fleet.errors import HeadraceError
from fleet.resources.base import NAME_PATTERN
from fleet.resources.translate import HOLD_KIND
from fleet.snapshot import IntentObject, IntentVersion
from fleet.tenancy import matches
from fleet.wire.identity import LIFETIME_SECONDS, InvalidIdentity, NodeIdentity, sign_identity, verify_identity

RENEWABLE_SECONDS = 7 * 24 * 3600.0
"""An identity that expired while no control plane could be reached may still be renewed for this long."""
ALIVE_SECONDS = 60.0
REPEAT_SECONDS = 600.0
"""A join whose answer was lost on the way is answered again for this long."""
_ATTEMPT = range(16, 129)
"""Lengths of what counts as a number that nobody else makes up."""
_ALIVE_STATES = frozenset({"ready", "draining"})
_MAX_GPUS = 1024
_NAME = re.compile(NAME_PATTERN)


class Refusal(StrEnum):
    """Why a join is refused; the shell maps it to a status code."""

    TOKEN = "token"  # noqa: S105  # a word, not a secret
    """Not known, used up, expired, or not for this node or zone. The caller is not told which."""
    IDENTITY = "identity"
    INVALID = "invalid"
    """A name or zone that cannot be."""
    CONFLICT = "conflict"
    """The name or a GPU belongs to a node that is alive."""


class JoinRefused(HeadraceError):
    def __init__(self, why: Refusal, text: str, token: tuple[str, str] | None = None) -> None:
        """``token``: uid and name of the token that was shown, when there is such a token."""
        super().__init__(text)
        self.why = why
        self.token = token


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What an agent asks, as its router forwards it. ``region`` is the router's own, by its token."""

    region: str
    zone: str
    node_name: str
    join_token: str = ""
    identity: str = ""
    """Alone: to be renewed. Beside a join token: proof of who it was, which it need not be good enough for renewing for."""
    gpu_uuids: tuple[str, ...] = ()
    attempt: str = ""
    """The same for every try of one join; empty when the agent does not say."""
    node_uid: str = ""
    """What it says it was. Anybody can say so."""

    def __repr__(self) -> str:
        return f"JoinRequest(region={self.region!r}, zone={self.zone!r}, node_name={self.node_name!r})"


@dataclass(frozen=True, slots=True)
class Joined:
    identity: NodeIdentity
    token: str
    """The signed identity."""
    retired: tuple[str, ...] = ()
    """Names of nodes whose place it took."""
    renewed: bool = False

    def __repr__(self) -> str:
        return f"Joined({self.identity.node_name!r}, retired={self.retired!r}, renewed={self.renewed!r})"


class Joins:
    """Admits nodes. Safe to call from many streams and copies at once: the writers' lock of the feed orders them."""

    def __init__(self, database: Database, feed: IntentFeed, secrets: DeploymentSecrets, clock: Clock) -> None:
        self._database = database
        self._feed = feed
        self._secrets = secrets
        self._clock = clock
        self._turn = asyncio.Lock()
        """Writers take turns in the database anyway; queueing here leaves its connections to others."""

    async def join(self, request: JoinRequest) -> Joined:
        """Raises JoinRefused (nothing has changed then), or Unavailable."""
        if not _NAME.fullmatch(request.node_name):
            raise JoinRefused(Refusal.INVALID, "the node's name is not a valid resource name: a-z, 0-9, - and . only")
        if not _NAME.fullmatch(request.zone):
            raise JoinRefused(Refusal.INVALID, "the zone's name is not a valid resource name; mend ZONE")
        if len(request.gpu_uuids) > _MAX_GPUS:
            raise JoinRefused(Refusal.INVALID, f"a node has at most {_MAX_GPUS} GPUs")
        if not all(valid_uid(uuid) for uuid in request.gpu_uuids):
            raise JoinRefused(Refusal.INVALID, "a GPU's UUID is missing, too long or not text")
        if request.identity and not request.join_token:
            return await self._renew(request)
        async with self._turn:
            return await self._join(request)

    async def _join(self, request: JoinRequest) -> Joined:
        try:
            async with self._database.write() as session:
                head = await self._feed.lock(session)
                await self._check_zone(session, request)
                answered = await self._answered(session, request)
                if answered is not None:
                    return self._signed(answered, request, (), renewed=True)
                token = await self._usable_token(session, request)
                known = await self._find(session, request)
                retired = await self._clear_place(session, request, known)
                await self._consume(session, token)
                version = resource_version(IntentVersion(head.epoch, head.version + 1))
                node = await self._admit(session, request, known, retired, version)
                await self._remember(session, request, token, node)
                names = [r.name for r in retired]
                await self._audit(session, request, token.uid, token.name, {"retired": names}, 200)
        except JoinRefused as error:
            if error.token is not None:
                # A guess is not worth an entry; the misuse of a token that exists is.
                async with self._database.write() as session:
                    await self._feed.lock(session)
                    await self._audit(session, request, *error.token, {"refused": str(error)}, 401)
            raise
        return self._signed(node, request, tuple(names))

    async def _audit(
        self, session: AsyncSession, request: JoinRequest, uid: str, name: str, detail: dict[str, object], outcome: int
    ) -> None:
        who = Principal(uid, name, Role.ROUTER, request.region)
        place = {"zone": request.zone[:256], "region": request.region}
        draft = AuditDraft(
            self._now(), who, "join", "node", request.node_name, outcome, uuid4().hex, {**place, **detail}
        )
        await append(session, draft)

    def _held(self, request: JoinRequest) -> NodeIdentity:
        """The identity it holds. Raises InvalidIdentity."""
        now = self._clock.wall()
        return verify_identity(request.identity, self._secrets.identity_keys(), now, now - RENEWABLE_SECONDS)

    def _proven_uid(self, request: JoinRequest) -> str:
        """Which node it has been, by its identity; empty when it cannot show one."""
        try:
            return self._held(request).node_uid
        except InvalidIdentity:
            return ""

    async def _renew(self, request: JoinRequest) -> Joined:
        try:
            held = self._held(request)
        except InvalidIdentity as error:
            raise JoinRefused(Refusal.IDENTITY, str(error)) from None
        async with self._database.read() as session:
            node = await _live(session, Resource.uid == held.node_uid)
        if node is None:
            raise JoinRefused(Refusal.IDENTITY, f"node {held.node_name} has been removed; it needs a new join token")
        if held.region != request.region or node.spec.get("zone") != held.zone:
            raise JoinRefused(
                Refusal.IDENTITY, f"node {held.node_name} has moved to another zone; it has to join again"
            )
        return self._signed(node, request, (), renewed=True)

    def _signed(
        self, node: Resource, request: JoinRequest, retired: tuple[str, ...], *, renewed: bool = False
    ) -> Joined:
        now = self._clock.wall()
        zone = str(node.spec["zone"])
        identity = NodeIdentity(node.uid, node.name, zone, request.region, now, now + LIFETIME_SECONDS)
        return Joined(identity, sign_identity(identity, self._secrets.identity_private_key()), retired, renewed)

    async def _check_zone(self, session: AsyncSession, request: JoinRequest) -> None:
        zone = await _live(session, Resource.kind == "zone", Resource.name == request.zone)
        if zone is None or zone.spec.get("region") != request.region:
            raise JoinRefused(
                Refusal.INVALID,
                f"zone {request.zone[:80]} does not exist in region {request.region}; create it, or mend ZONE",
            )

    async def _usable_token(self, session: AsyncSession, request: JoinRequest) -> JoinToken:
        digests = self._secrets.token_digests(request.join_token)
        statement = select(JoinToken).where(JoinToken.digest.in_(digests)).with_for_update()
        token = (await session.execute(statement)).scalars().first() if request.join_token else None
        good = (
            token is not None
            and token.used < token.uses
            and token.expires_at > self._now()
            and matches((token.zone,), request.zone)
            and matches((token.node,), request.node_name)
        )
        if token is None or not good:
            raise JoinRefused(
                Refusal.TOKEN,
                "the join token is not known, used up, expired, or not for this node and zone",
                None if token is None else (token.uid, token.name),
            )
        return token

    async def _answered(self, session: AsyncSession, request: JoinRequest) -> Resource | None:
        """The node that this very join was admitted as a moment ago, when its answer did not arrive."""
        if not request.join_token or len(request.attempt) not in _ATTEMPT:
            return None
        found = (
            select(JoinAnswer.node_uid)
            .join(JoinToken, JoinToken.uid == JoinAnswer.token_uid)
            .where(
                JoinToken.digest.in_(self._secrets.token_digests(request.join_token)),
                JoinAnswer.attempt.in_(self._secrets.token_digests(request.attempt)),
                JoinAnswer.region == request.region,
                JoinAnswer.answered_at > self._now() - timedelta(seconds=REPEAT_SECONDS),
            )
        )
        uid = (await session.execute(found)).scalars().first()
        node = None if uid is None else await _live(session, Resource.kind == "node", Resource.uid == uid)
        if node is None or node.name != request.node_name or node.spec.get("zone") != request.zone:
            return None
        return node

    async def _remember(self, session: AsyncSession, request: JoinRequest, token: JoinToken, node: Resource) -> None:
        if len(request.attempt) in _ATTEMPT:
            attempt = self._secrets.digest_token(request.attempt)
            answer = JoinAnswer(token_uid=token.uid, attempt=attempt, node_uid=node.uid, region=request.region)
            answer.answered_at = self._now()
            await session.merge(answer)

    async def _consume(self, session: AsyncSession, token: JoinToken) -> None:
        """The one place where a use is counted; the condition holds whatever happened since the token was read."""
        statement = (
            update(JoinToken)
            .where(JoinToken.uid == token.uid, JoinToken.used < JoinToken.uses, JoinToken.expires_at > self._now())
            .values(used=JoinToken.used + 1)
            .returning(JoinToken.uid)
        )
        if (await session.execute(statement)).one_or_none() is None:
            raise JoinRefused(Refusal.TOKEN, "the join token has been used up")

    async def _find(self, session: AsyncSession, request: JoinRequest) -> Resource | None:
        """The node that is coming back, or that somebody has written down; None for a new one."""
        return await _live(session, Resource.kind == "node", Resource.name == request.node_name)

    async def _clear_place(self, session: AsyncSession, request: JoinRequest, node: Resource | None) -> list[Resource]:
        """Nodes that this one replaces. Raises JoinRefused when one of them, or the holder of its name, is alive."""
        claims: list[ColumnElement[bool]] = [InventoryItem.uid.in_(request.gpu_uuids)]
        if node is not None:
            claims.append((InventoryItem.kind == "node") & (InventoryItem.uid == node.uid))
        held = (await session.execute(select(InventoryItem.node_uid).where(or_(*claims)))).scalars().all()
        rows = (
            await session.execute(select(InventoryItem).where(InventoryItem.node_uid.in_(sorted(set(held)))))
        ).scalars()
        items: dict[str, list[InventoryItem]] = {}
        for row in rows:
            items.setdefault(row.node_uid, []).append(row)
        replaced = []
        itself = self._proven_uid(request)
        for uid, members in items.items():
            if uid == itself and node is not None and uid == node.uid:
                continue  # it kept its state
            if _alive(members, self._now()):
                name = next((m.name for m in members if m.kind == "node"), uid)
                what = (
                    f"the name {name} is that of" if node is not None and uid == node.uid else f"GPUs of {name} are in"
                )
                raise JoinRefused(
                    Refusal.CONFLICT,
                    f"{what} a node that still reports; stop its agent, or give this node another name",
                )
            gpus = {m.uid for m in members if m.kind == "gpu"}
            if node is not None and uid == node.uid:
                continue
            if gpus and gpus <= set(request.gpu_uuids):
                old = await _live(session, Resource.kind == "node", Resource.uid == uid)
                if old is not None and old.owner == "agent":
                    replaced.append(old)
        return replaced

    async def _admit(
        self,
        session: AsyncSession,
        request: JoinRequest,
        node: Resource | None,
        retired: Sequence[Resource],
        version: str,
    ) -> Resource:
        """Write the node down, retire those it replaces, and publish the change (if there is any)."""
        now = self._now()
        upserts: list[IntentObject] = []
        if node is None:
            node = Resource(
                uid=str(uuid4()),
                kind="node",
                name=request.node_name,
                owner="agent",
                labels={},
                annotations={},
                spec={"zone": request.zone},
                generation=1,
                resource_version=version,
                created_at=now,
                updated_at=now,
            )
            session.add(node)
            upserts.append(_published(node))
        elif node.spec.get("zone") != request.zone:
            if node.owner != "agent":
                raise JoinRefused(
                    Refusal.CONFLICT,
                    f"node {node.name} is written down for zone {node.spec.get('zone')}, not {request.zone}",
                )
            node.spec = {**node.spec, "zone": request.zone}
            node.generation += 1
            node.resource_version, node.updated_at = version, now
            upserts.append(_published(node))
        removals = [(old.kind, old.uid) for old in retired]
        for old in retired:
            old.deleted_at = old.updated_at = now
            old.resource_version = version
            upserts.extend(await _move_holds(session, old.uid, node.uid, now, version))
        gone = [old.uid for old in retired]
        if gone:
            keys = (await session.execute(select(InventoryItem.uid).where(InventoryItem.node_uid.in_(gone)))).scalars()
            await session.execute(delete(Status).where(Status.uid.in_(list(keys))))
            await session.execute(delete(InventoryItem).where(InventoryItem.node_uid.in_(gone)))
        await session.flush()
        if upserts or removals:
            await self._feed.record(session, upserts=upserts, removals=removals)
        return node

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)


async def _live(session: AsyncSession, *conditions: ColumnElement[bool]) -> Resource | None:
    statement = select(Resource).where(Resource.deleted_at.is_(None), *conditions)
    return (await session.execute(statement)).scalars().first()


async def _move_holds(session: AsyncSession, old: str, new: str, now: datetime, version: str) -> list[IntentObject]:
    """An operator's cordon or drain stays on the machine, whatever uid it has."""
    hold = await _live(session, Resource.kind == HOLD_KIND, Resource.name == hold_name("node", old))
    if hold is None:
        return []
    hold.name, hold.spec = hold_name("node", new), {**hold.spec, "target": new}
    hold.generation += 1
    hold.resource_version, hold.updated_at = version, now
    return [_published(hold)]


def _published(row: Resource) -> IntentObject:
    """A node or hold as routers get it; neither has secrets."""
    return IntentObject(row.kind, row.uid, row.name, row.generation, dict(row.spec), dict(row.labels))


def _alive(members: Iterable[InventoryItem], now: datetime) -> bool:
    return any(
        m.kind == "node" and m.state in _ALIVE_STATES and now - m.last_seen_at < timedelta(seconds=ALIVE_SECONDS)
        for m in members
    )
