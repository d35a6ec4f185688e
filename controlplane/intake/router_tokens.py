"""Which routers may talk to us: tokens bound to a region, kept in memory so that a stream can be ended when its token is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import grpc
from sqlalchemy import select

from controlplane.secrets import DeploymentSecrets
from controlplane.store.database import Database, DatabaseUnavailable
from controlplane.tables import AdminToken
from fleet.clock import Clock
from fleet.errors import HeadraceError, Unavailable
from fleet.process.logs import get_logger

REFRESH_SECONDS = 1.0
ASK_SECONDS = 0.2
"""Tokens that are not known have the table read at most this often, however many are shown (rel-S14)."""
ROUTER_ROLE = "router"

_log = get_logger("intake")


class RouterRefused(HeadraceError):
    """A caller that is not a router of ours, or not of the region it speaks for. ``status`` says which."""

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class RouterToken:
    uid: str
    name: str
    region: str
    expires_at: float | None
    """Unix seconds."""


class Ended(StrEnum):
    """Why a stream has to end."""

    REVOKED = "revoked"
    """Its token was revoked, has expired, or belongs to another region now."""
    STOPPING = "stopping"
    """This process ends."""


@dataclass(eq=False, slots=True)
class Grant:
    """One stream's permission."""

    digest: str
    token: RouterToken
    ended: asyncio.Future[Ended]
    """Done when the stream has to end."""

    @property
    def region(self) -> str:
        return self.token.region


class RouterTokens:
    """All router tokens by digest, read again every second."""

    def __init__(self, database: Database, secrets: DeploymentSecrets, clock: Clock) -> None:
        self._database = database
        self._secrets = secrets
        self._clock = clock
        self._known: dict[str, RouterToken] = {}
        self._grants: set[Grant] = set()
        self._begun = self._applied = 0
        """Numbers of the last reading that was begun, and of the one that is in force."""
        self._begun_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._stopping = False

    async def run(self) -> None:
        """Keep up with the database until cancelled. While it is away, what was known last counts."""
        while True:
            try:
                await self.refresh()
            except DatabaseUnavailable as error:
                _log.warning("router_tokens_not_read", error=str(error))
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read the tokens, and revoke the grants whose token is not there any more."""
        statement = select(
            AdminToken.digest, AdminToken.uid, AdminToken.name, AdminToken.region, AdminToken.expires_at
        ).where(AdminToken.role == ROUTER_ROLE)
        self._begun += 1
        number, self._begun_at = self._begun, asyncio.get_running_loop().time()
        async with self._database.read() as session:
            rows = (await session.execute(statement)).all()
        if number < self._applied:
            return  # one that began later has overtaken it
        self._applied = number
        self._known = {
            row.digest: RouterToken(
                row.uid, row.name, row.region or "", row.expires_at.timestamp() if row.expires_at else None
            )
            for row in rows
        }
        for grant in self._grants:
            token = self._valid(grant.digest)
            if token is None or token.region != grant.region:
                _end(grant, Ended.REVOKED)

    async def admit(self, metadata: Iterable[Any] | None, region: str) -> Grant:
        """Permission for a stream that speaks for ``region`` (empty: for whichever the token is bound to).

        Raises RouterRefused; Unavailable while stopping, and when the token is not known and the database cannot be asked.
        """
        if self._stopping:
            raise Unavailable("this control plane is stopping")
        bearer = _bearer(metadata)
        token, digest = self._find(bearer)
        if token is None:
            try:
                await self._ask()
            except DatabaseUnavailable as error:
                raise Unavailable("the token cannot be checked now: " + str(error)) from None
            token, digest = self._find(bearer)
        if token is None:
            raise RouterRefused(grpc.StatusCode.UNAUTHENTICATED, "the router token is not known, revoked or expired")
        if region and region != token.region:
            raise RouterRefused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the router token is bound to region {token.region}, not {region[:64]}",
            )
        grant = Grant(digest, token, asyncio.get_running_loop().create_future())
        self._grants.add(grant)
        return grant

    async def _ask(self) -> None:
        """Return when the table has been read at a moment after now: one reading for all who ask meanwhile.

        Raises DatabaseUnavailable.
        """
        before = self._begun
        while self._applied <= before:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._refresh_in_turn())
                self._asking.add_done_callback(_heard)  # whoever asked may have gone
            await asyncio.shield(self._asking)

    async def _refresh_in_turn(self) -> None:
        await asyncio.sleep(self._begun_at + ASK_SECONDS - asyncio.get_running_loop().time())
        await self.refresh()

    def release(self, grant: Grant) -> None:
        """The stream has ended."""
        self._grants.discard(grant)

    def stop(self) -> None:
        """End all streams and take no more: another copy serves."""
        self._stopping = True
        for grant in self._grants:
            _end(grant, Ended.STOPPING)

    def _find(self, bearer: str) -> tuple[RouterToken | None, str]:
        for digest in self._secrets.token_digests(bearer):
            token = self._valid(digest)
            if token is not None:
                return token, digest
        return None, ""

    def _valid(self, digest: str) -> RouterToken | None:
        token = self._known.get(digest)
        if token is None or (token.expires_at is not None and token.expires_at <= self._clock.wall()):
            return None
        return token


def _heard(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _end(grant: Grant, why: Ended) -> None:
    if not grant.ended.done():
        grant.ended.set_result(why)


def _bearer(metadata: Iterable[Any] | None) -> str:
    for key, value in metadata or ():
        if key.lower() == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
    raise RouterRefused(grpc.StatusCode.UNAUTHENTICATED, "metadata `authorization: Bearer <router token>` is missing")
