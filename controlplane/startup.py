"""What must be true of the database before a control plane serves from it."""

from __future__ import annotations

import asyncio

from sqlalchemy import exists, select
from sqlalchemy.exc import IntegrityError

from controlplane.secrets import DeploymentSecrets, SealBroken
from controlplane.store import migrate
from controlplane.store.database import Database, DatabaseUnavailable
from controlplane.tables import AdminToken, StoredSecret
from controlplane.tables.base import utc_now
from fleet.errors import FieldError, InvalidInput
from fleet.process.health import Readiness
from fleet.process.logs import get_logger

RETRY_SECONDS = 1.0
_CHECK = "secret-key-check"
_CONTEXT = f"secret/{_CHECK}"
_KNOWN = "headrace"

_log = get_logger("controlplane")


async def prepare(
    database: Database, url: str, secrets: DeploymentSecrets, readiness: Readiness, *, upgrade: bool
) -> None:
    """Wait for the database, bring its tables up to date, and see that it belongs to our SECRET_KEY.

    Never gives up on a database that is not there yet (case-W01). Raises SchemaNewer, and InvalidInput for a wrong SECRET_KEY:
    waiting would not mend those.
    """
    told = False
    while True:
        try:
            await asyncio.to_thread(_schema, url, upgrade)
            await check_secret_key(database, secrets)
        except DatabaseUnavailable as error:
            readiness.set("database", False, str(error))
            if not told:
                _log.warning("waiting_for_database", error=str(error))
                told = True
            await asyncio.sleep(RETRY_SECONDS)
        else:
            readiness.set("database", True)
            return


def _schema(url: str, upgrade: bool) -> None:
    """Raises DatabaseUnavailable while the tables are not there, when somebody else is to bring them up to date."""
    if upgrade:
        _log.info("schema_ready", revision=migrate.upgrade(url))
    elif (revision := migrate.current(url)) != migrate.head():
        raise DatabaseUnavailable(
            f"the schema is at {revision or 'nothing'}, not {migrate.head()}; run: headrace db upgrade"
        )


async def say_how_to_get_in(database: Database, bootstrap: bool) -> None:
    """A line in the log when no admin token is there and none was given for a start: nobody could use the API."""
    async with database.read() as session:
        if (
            not bootstrap
            and not (await session.execute(select(exists().where(AdminToken.role == "admin")))).scalar_one()
        ):
            hint = "give the first one in HEADRACE_BOOTSTRAP_ADMIN_TOKEN and start again: until then the API lets nobody in"
            _log.warning("no_admin_token", hint=hint)


async def check_secret_key(database: Database, secrets: DeploymentSecrets) -> None:
    """Raises InvalidInput when this database was used with a SECRET_KEY that is not on the list.

    Copies that come up with different keys would refuse each other's tenants, and nobody would see why.
    """
    try:
        async with database.write() as session:
            row = (
                await session.execute(select(StoredSecret).where(StoredSecret.name == _CHECK).with_for_update())
            ).scalar_one_or_none()
            if row is None:
                sealed = secrets.seal(_KNOWN, _CONTEXT)
                session.add(StoredSecret(name=_CHECK, sealed=sealed, updated_at=utc_now()))
                return
            secrets.unseal(row.sealed, _CONTEXT)
            if not secrets.sealed_by_newest(row.sealed, _CONTEXT):
                row.sealed, row.updated_at = secrets.seal(_KNOWN, _CONTEXT), utc_now()
    except SealBroken:
        raise InvalidInput(
            [
                FieldError(
                    "/secret_key",
                    "is not the one this database was used with; give every copy the same HEADRACE_SECRET_KEY, "
                    "and when changing it put the new key before the old one",
                )
            ]
        ) from None
    except IntegrityError:
        # Another copy wrote the row in the same moment; ours is compared with it.
        await check_secret_key(database, secrets)
