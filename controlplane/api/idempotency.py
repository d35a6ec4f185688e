"""Idempotency-Key: the same call twice changes things once, and both get the first answer.

The answer is stored in the transaction of the change it answers for. A call that fails stores nothing, so it can be tried again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.api.auth import Principal
from controlplane.api.context import ApiContext
from controlplane.api.problems import Problem, invalid
from controlplane.tables import IdempotentCall

HEADER = "Idempotency-Key"
KEPT = timedelta(hours=24)
ABANDONED = timedelta(minutes=1)
"""A call that has run for so long without an answer has died with its process."""
_KEY = re.compile(r"^[\x21-\x7e]{1,255}$")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a call once. ``owner`` is lost to another attempt after ABANDONED."""

    actor_uid: str
    key_digest: str
    owner: str

    @property
    def seal_context(self) -> str:
        return f"idempotency/{self.actor_uid}/{self.key_digest}"


class Idempotency:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def begin(self, who: Principal, key: str, method: str, target: str, body: bytes) -> Claim | Answer:
        """The claim to run the call, or the stored answer. Raises Problem: 409 while it runs, 422 for another request."""
        if not _KEY.match(key):
            raise invalid(f"/header/{HEADER}", "must be 1 to 255 printable ASCII characters without spaces")
        claim = Claim(who.uid, hashlib.sha256(key.encode()).hexdigest(), uuid.uuid4().hex)
        # Keyed, as the body may hold a secret.
        pepper = self._context.secrets.peppers()[0]
        request = hashlib.blake2b(f"{method} {target}\0".encode() + body, key=pepper, digest_size=32).digest()
        now = self._context.now()
        try:
            async with self._context.database.write() as session:
                await self._context.feed.lock(session)
                found = await self._find(session, claim)
                if found is not None and found.expires_at <= now:
                    await session.delete(found)
                    await session.flush()
                    found = None
                if found is None:
                    values = {
                        "actor_uid": claim.actor_uid,
                        "key_digest": claim.key_digest,
                        "request_digest": request,
                        "owner": claim.owner,
                        "answer": None,
                        "started_at": now,
                        "expires_at": now + KEPT,
                    }
                    await session.execute(insert(IdempotentCall).values(values))
                    return claim
                if found.request_digest != request:
                    raise Problem("idempotency-mismatch", "use a new Idempotency-Key for another request")
                if found.answer is not None:
                    return self._open(claim, found.answer)
                if found.started_at > now - ABANDONED:
                    raise Problem("idempotency-running", "ask again in a moment", headers={"Retry-After": "1"})
                found.owner, found.started_at = claim.owner, now
                return claim
        except IntegrityError:
            raise Problem("idempotency-running", "ask again in a moment", headers={"Retry-After": "1"}) from None

    async def finish(self, session: AsyncSession, claim: Claim, answer: Answer) -> None:
        """Store the answer, inside the transaction of the change. Raises Problem (409) when another attempt has taken over."""
        packed = json.dumps([answer.status, answer.headers, base64.b64encode(answer.body).decode()])
        mine = self._mine(claim)
        sealed = self._context.secrets.seal(packed, claim.seal_context)
        done = await session.execute(
            update(IdempotentCall).where(*mine).values(answer=sealed).returning(IdempotentCall.owner)
        )
        if done.one_or_none() is None:
            raise Problem(
                "idempotency-running", "another attempt with this key has taken over", headers={"Retry-After": "1"}
            )

    async def abandon(self, claim: Claim) -> None:
        """The call failed and changed nothing: forget it."""
        async with self._context.database.write() as session:
            await session.execute(delete(IdempotentCall).where(*self._mine(claim), IdempotentCall.answer.is_(None)))

    async def _find(self, session: AsyncSession, claim: Claim) -> IdempotentCall | None:
        found = select(IdempotentCall).where(
            IdempotentCall.actor_uid == claim.actor_uid, IdempotentCall.key_digest == claim.key_digest
        )
        return (await session.scalars(found)).one_or_none()

    def _mine(self, claim: Claim) -> tuple[ColumnElement[bool], ...]:
        return (
            IdempotentCall.actor_uid == claim.actor_uid,
            IdempotentCall.key_digest == claim.key_digest,
            IdempotentCall.owner == claim.owner,
        )

    def _open(self, claim: Claim, sealed: str) -> Answer:
        status, headers, body = json.loads(self._context.secrets.unseal(sealed, claim.seal_context))
        return Answer(status, headers | {"Idempotency-Replayed": "true"}, base64.b64decode(body))
