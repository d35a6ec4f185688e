"""What the database need not keep: old tombstones, stored answers, events. Done by one copy at a time, under a lease."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.store.database import Database, DatabaseUnavailable
from controlplane.store.leadership import Fenced, Leadership, check_fence
from controlplane.store.resources import purge_tombstones
from controlplane.tables import Event, IdempotentCall, JoinAnswer, JoinToken
from fleet.clock import Clock
from fleet.process.logs import get_logger

PLACE = "housekeeping"
EVENT_DAYS = 30
EXPIRED_JOIN_TOKEN_DAYS = 7
JOIN_ANSWER_DAYS = 1

log = get_logger("controlplane.store.housekeeping")


async def tidy(session: AsyncSession, now: datetime) -> dict[str, int]:
    """Remove what has lapsed; how much of each."""
    gone = {"tombstones": await purge_tombstones(session, now)}
    for name, statement in {
        "answers": delete(IdempotentCall).where(IdempotentCall.expires_at < now).returning(IdempotentCall.owner),
        "events": delete(Event).where(Event.occurred_at < now - timedelta(days=EVENT_DAYS)).returning(Event.id),
        "join_answers": delete(JoinAnswer)
        .where(JoinAnswer.answered_at < now - timedelta(days=JOIN_ANSWER_DAYS))
        .returning(JoinAnswer.token_uid),
        "join_tokens": delete(JoinToken)
        .where(JoinToken.expires_at < now - timedelta(days=EXPIRED_JOIN_TOKEN_DAYS))
        .returning(JoinToken.uid),
    }.items():
        gone[name] = len((await session.execute(statement)).all())
    return gone


async def keep_house(database: Database, holder: str, clock: Clock, *, every_seconds: float = 3600.0) -> None:
    """Tidy regularly until cancelled. ``holder`` is unique per process start."""
    leadership = Leadership(database, PLACE, holder, ttl_seconds=every_seconds, clock=clock)
    while True:
        try:
            fence = await leadership.hold()
            if fence is not None:
                async with database.write() as session:
                    await check_fence(session, fence)
                    gone = await tidy(session, datetime.fromtimestamp(clock.wall(), UTC))
                if any(gone.values()):
                    log.info("tidied", **gone)
        except (DatabaseUnavailable, Fenced) as error:
            log.warning("not_tidied", error=str(error))
        await asyncio.sleep(every_seconds)
