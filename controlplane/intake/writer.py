"""What is kept of reports, in the database. Each function is one step of a writing transaction and may be repeated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, insert, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.intake.rows import report_body
from controlplane.registry.inventory import KEEP_SECONDS, Item, items_of
from controlplane.registry.reports import LIVE_SECONDS
from controlplane.registry.status import (
    Condition,
    as_seen,
    endpoint_conditions,
    gpu_conditions,
    merged,
    node_conditions,
)
from controlplane.tables import Event, InventoryItem, RegionReportRow, Status
from fleet.capacity import FleetEvent, InventoryNode, RegionReport

CONFLICT_SECONDS = 60.0
"""A device that two nodes claim belongs to the one that had it, unless that one has been silent for this long (case-G11)."""
ROW_KEEP_SECONDS = 3600.0
"""Reports stay in the table for a while after they stop counting, so that an old one cannot come back as news."""

_Key = tuple[str, str]
_BATCH = 5000
_INVENTORY_LOCK = 0x696E7674  # "invt": the advisory lock's number


def moment(wall: float) -> datetime:
    return datetime.fromtimestamp(wall, UTC)


def rfc3339(wall: float) -> str:
    return moment(wall).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _upsert(session: AsyncSession, table: Any) -> Any:
    """An INSERT that can name a conflict; both dialects spell it alike."""
    name = session.get_bind().dialect.name
    return postgresql.insert(table) if name == "postgresql" else sqlite.insert(table)


async def write_reports(session: AsyncSession, reports: Iterable[RegionReport], wall: float) -> None:
    """One row per router, only ever replaced by a newer (incarnation, sequence).

    A router that moved to another region may say so once its former self has fallen silent; until then another's uid is taken.
    """
    silent = RegionReportRow.received_at < moment(wall - LIVE_SECONDS)
    for report in reports:
        values = {
            "region": report.region,
            "incarnation": report.incarnation,
            "sequence": report.sequence,
            "inventory_digest": report.inventory_digest,
            "body": report_body(report),
            "received_at": moment(wall),
        }
        held = RegionReportRow
        newer = and_(
            or_(
                held.incarnation < report.incarnation,
                and_(held.incarnation == report.incarnation, held.sequence < report.sequence),
            ),
            or_(held.region == report.region, silent),
        )
        statement = _upsert(session, held).values(router_uid=report.router_uid, **values)
        await session.execute(statement.on_conflict_do_update(index_elements=["router_uid"], set_=values, where=newer))


async def write_events(session: AsyncSession, events: Iterable[FleetEvent], wall: float) -> None:
    """Each uid is stored once, however often it is sent."""
    for event in events:
        values = {
            "uid": _fit(event.uid, 64),
            "reason": _fit(event.reason, 64),
            "message": _fit(event.message, 4096),
            "kind": _fit(event.kind, 64),
            "name": _fit(event.name, 256),
            "region": _fit(event.region, 256),
            "severity": _fit(event.severity, 64) or "info",
            "occurred_at": moment(event.wall or wall),
            "recorded_at": moment(wall),
        }
        await session.execute(_upsert(session, Event).values(values).on_conflict_do_nothing(index_elements=["uid"]))


def _fit(text: str, length: int) -> str:
    """As much of a text as the column takes; PostgreSQL knows no NUL."""
    return text.replace("\x00", "")[:length]


@dataclass(frozen=True, slots=True)
class NodeNews:
    """A node to write down, as told by a router of ``region``."""

    region: str
    node: InventoryNode


@dataclass(frozen=True, slots=True)
class Conflict:
    """A device that ``claimant`` says it has and ``holder`` was seen with a moment ago."""

    uid: str
    claimant: str
    holder: str


async def write_nodes(
    session: AsyncSession, news: Sequence[NodeNews], declared: Mapping[str, str], wall: float
) -> list[Conflict]:
    """Replace the rows of each node, unless newer ones are there. ``declared`` names endpoints that are resources."""
    now = moment(wall)
    wanted = {n.node.node_uid: (n, {i.key: i for i in items_of(n.node, declared)}) for n in news}
    uids = {uid for _, items in wanted.values() for _, uid in items}
    await _one_at_a_time(session)
    row = InventoryItem
    columns = (
        row.kind,
        row.uid,
        row.node_uid,
        row.region,
        row.incarnation,
        row.sequence,
        row.first_seen_at,
        row.last_seen_at,
    )
    known = or_(row.node_uid.in_(sorted(wanted)), row.uid.in_(sorted(uids)))
    held = {(r.kind, r.uid): r for r in await session.execute(select(*columns).where(known))}
    recently = now - timedelta(seconds=CONFLICT_SECONDS)
    orders: dict[str, tuple[int, int]] = {}
    elsewhere: set[str] = set()
    for one in held.values():
        if one.node_uid in wanted and one.region != wanted[one.node_uid][0].region and one.last_seen_at > recently:
            elsewhere.add(one.node_uid)  # its own region tells of it: no other may
        orders[one.node_uid] = max(orders.get(one.node_uid, (0, -1)), (one.incarnation, one.sequence))

    conflicts: list[Conflict] = []
    fresh: dict[_Key, tuple[NodeNews, Item]] = {}
    replaced: set[str] = set()
    for node_uid, (told, items) in wanted.items():
        if node_uid in elsewhere or (told.node.incarnation, told.node.sequence) < orders.get(node_uid, (0, -1)):
            continue
        replaced.add(node_uid)
        for key, item in items.items():
            other = held.get(key)
            foreign = other is not None and other.node_uid != node_uid and other.node_uid not in replaced
            if other is not None and foreign and other.last_seen_at > recently:
                conflicts.append(Conflict(item.uid, told.node.node_name, other.node_uid))
                continue
            fresh[key] = (told, item)

    gone = [k for k, one in held.items() if one.node_uid in replaced or k in fresh]
    before = await _statuses(session, {*gone, *fresh})
    await _delete(session, InventoryItem, gone)
    await _delete(session, Status, [k for k in before if k in fresh or k in gone])
    if not fresh:
        return conflicts
    conditions = {key: c for told in (t for t, _ in wanted.values()) for key, c in _conditions(told.node)}
    inventory, statuses = [], []
    for key, (told, item) in fresh.items():
        old = held.get(key)
        inventory.append(
            {
                "kind": item.kind,
                "uid": item.uid,
                "name": item.name,
                "node_uid": told.node.node_uid,
                "zone": told.node.zone,
                "region": told.region,
                "incarnation": told.node.incarnation,
                "sequence": told.node.sequence,
                "state": item.state,
                "body": dict(item.body),
                "first_seen_at": now if old is None else old.first_seen_at,
                "last_seen_at": now,
            }
        )
        statuses.append(
            {
                "kind": item.kind,
                "uid": item.uid,
                "conditions": merged(before.get(key, ()), conditions[key], rfc3339(wall)),
                "observed": {},
                "updated_at": now,
            }
        )
    await session.execute(insert(InventoryItem), inventory)
    await session.execute(insert(Status), statuses)
    return conflicts


def _conditions(node: InventoryNode) -> list[tuple[_Key, list[Condition]]]:
    return [
        (("node", node.node_uid), node_conditions(node)),
        *((("gpu", g.uuid), gpu_conditions(g)) for g in node.gpus),
        *((("endpoint", e.uid), endpoint_conditions(e, node.state)) for e in node.endpoints),
    ]


async def _one_at_a_time(session: AsyncSession) -> None:
    """Copies that are told of the same node by different routers must not replace its rows at the same time, nor must a copy
    that takes its region for silent: whoever replaces rows of the inventory or their status waits here first."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _INVENTORY_LOCK})


async def remove_nodes(session: AsyncSession, told: Iterable[NodeNews]) -> None:
    """Forget nodes that a router of their region took back, unless another has told of a newer state since."""
    await _one_at_a_time(session)
    row = InventoryItem
    for news in told:
        node = news.node
        known = and_(
            row.node_uid == node.node_uid,
            row.region == news.region,
            or_(
                row.incarnation < node.incarnation,
                and_(row.incarnation == node.incarnation, row.sequence <= node.sequence),
            ),
        )
        keys = [(k, u) for k, u in await session.execute(select(row.kind, row.uid).where(known))]
        await _delete(session, InventoryItem, keys)
        await _delete(session, Status, keys)


async def purge(session: AsyncSession, wall: float) -> None:
    """Drop what nobody has reported for too long."""
    await _one_at_a_time(session)
    silent = InventoryItem.last_seen_at < moment(wall - KEEP_SECONDS)
    keys = [(k, u) for k, u in await session.execute(select(InventoryItem.kind, InventoryItem.uid).where(silent))]
    await _delete(session, InventoryItem, keys)
    await _delete(session, Status, keys)
    await session.execute(delete(RegionReportRow).where(RegionReportRow.received_at < moment(wall - ROW_KEEP_SECONDS)))


async def write_status(
    session: AsyncSession, kind: str, uid: str, conditions: list[Condition], wall: float
) -> list[Condition]:
    """Set a resource's conditions; returns those whose status changed (all of them the first time)."""
    row = (
        await session.execute(select(Status).where(Status.kind == kind, Status.uid == uid).with_for_update())
    ).scalar_one_or_none()
    before: dict[str, Any] = {c["type"]: c["status"] for c in row.conditions} if row is not None else {}
    new = merged(row.conditions if row is not None else (), conditions, rfc3339(wall))
    if row is None:
        values = {"kind": kind, "uid": uid, "conditions": new, "observed": {}, "updated_at": moment(wall)}
        await session.execute(_upsert(session, Status).values(values).on_conflict_do_nothing())
    else:
        row.conditions, row.updated_at = new, moment(wall)
    return [c for c in new if before.get(c["type"]) != c["status"]]


async def write_unknown(session: AsyncSession, region: str, wall: float) -> None:
    """Nobody reports on ``region`` any more: what was last seen there may or may not still be so."""
    await _one_at_a_time(session)
    there = select(InventoryItem.kind, InventoryItem.uid).where(InventoryItem.region == region)
    keys = {(k, u) for k, u in await session.execute(there)}
    known = await _statuses(session, keys)
    await _delete(session, Status, known)
    rows = [
        {
            "kind": kind,
            "uid": uid,
            "conditions": merged(conditions, as_seen(conditions, False), rfc3339(wall)),
            "observed": {},
            "updated_at": moment(wall),
        }
        for (kind, uid), conditions in known.items()
    ]
    if rows:
        await session.execute(insert(Status), rows)


async def _statuses(session: AsyncSession, keys: Collection[_Key]) -> dict[_Key, list[Any]]:
    found: dict[_Key, list[Any]] = {}
    for uids in _batches(sorted({uid for _, uid in keys})):
        rows = await session.execute(select(Status.kind, Status.uid, Status.conditions).where(Status.uid.in_(uids)))
        found.update({(r.kind, r.uid): r.conditions for r in rows if (r.kind, r.uid) in keys})
    return found


def _batches(uids: list[str]) -> Iterable[list[str]]:
    """A statement takes a bounded number of values."""
    return (uids[start : start + _BATCH] for start in range(0, len(uids), _BATCH))


async def _delete(session: AsyncSession, table: type[InventoryItem | Status], keys: Iterable[_Key]) -> None:
    by_kind: dict[str, list[str]] = {}
    for kind, uid in keys:
        by_kind.setdefault(kind, []).append(uid)
    for kind, uids in by_kind.items():
        for batch in _batches(uids):
            statement = delete(table).where(table.kind == kind, table.uid.in_(batch))
            await session.execute(statement.execution_options(synchronize_session=False))
