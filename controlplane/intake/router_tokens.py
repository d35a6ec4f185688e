"""Which routers may talk to us: tokens bound to a region, kept in memory so that a stream can be ended when its token is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass(eq=False, slots=True)
class Grant:
    """One stream's permission. ``revoked`` is set when its token is revoked, expires, or moves to another region."""

    digest: str
    token: RouterToken
    revoked: asyncio.Event = field(default_factory=asyncio.Event)

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
        async with self._database.read() as session:
            rows = (await session.execute(statement)).all()
        self._known = {
            row.digest: RouterToken(
                row.uid, row.name, row.region or "", row.expires_at.timestamp() if row.expires_at else None
            )
            for row in rows
        }
        for grant in self._grants:
            token = self._valid(grant.digest)
            if token is None or token.region != grant.region:
                grant.revoked.set()

    async def admit(self, metadata: Iterable[Any] | None, region: str) -> Grant:
        """Permission for a stream that speaks for ``region`` (empty: for whichever the token is bound to).

        Raises RouterRefused, or Unavailable when the token is not known and the database cannot be asked.
        """
        bearer = _bearer(metadata)
        token, digest = self._find(bearer)
        if token is None:
            try:
                await self.refresh()
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
        grant = Grant(digest, token)
        self._grants.add(grant)
        return grant

    def release(self, grant: Grant) -> None:
        """The stream has ended."""
        self._grants.discard(grant)

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


def _bearer(metadata: Iterable[Any] | None) -> str:
    for key, value in metadata or ():
        if key.lower() == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
    raise RouterRefused(grpc.StatusCode.UNAUTHENTICATED, "metadata `authorization: Bearer <router token>` is missing")
