"""Secrets of resources: where each kind's is kept, in what form, and what may be shown of it.

A tenant key and a token are known only by a keyed digest; an engine's key must be sent to the engine, so it is sealed. All are
write-only: left out of a write they stay as they are.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select

from controlplane.api.kinds import AdminTokenSpec, JoinTokenSpec
from controlplane.api.problems import Problem, invalid
from controlplane.api.work import Transaction
from controlplane.store.intent import seal_context
from controlplane.tables import AdminToken, JoinToken, Resource
from fleet.resources.base import Spec
from fleet.resources.keys import hint, key_digest, make_key, plausible
from fleet.resources.serving import EndpointSpec
from fleet.resources.tenants import KeySpec
from fleet.snapshot import canonical_json


@dataclass(frozen=True, slots=True)
class SecretOutcome:
    secrets: Mapping[str, Any]
    """In clear, as published."""
    changed: bool = False
    shown: str | None = None
    """One that was made here, to be shown this once."""


async def settle(tx: Transaction, row: Resource, spec: Spec, *, creating: bool, cleared: bool) -> SecretOutcome:
    """Put the secret that ``spec`` carries (or one made here) onto ``row``. ``cleared``: it was expressly set to null."""
    match spec:
        case KeySpec():
            return await _key(tx, row, spec, creating)
        case EndpointSpec():
            return _endpoint(tx, row, spec, cleared)
        case AdminTokenSpec() | JoinTokenSpec():
            return await _token(tx, row, spec, creating)
        case _:
            return SecretOutcome({})


async def _key(tx: Transaction, row: Resource, spec: KeySpec, creating: bool) -> SecretOutcome:
    secret = spec.secret
    made = creating and secret is None and spec.secret_hmac is None
    if made:
        secret = make_key(os.urandom(20))
    if secret is not None:
        if not plausible(secret):
            raise invalid(
                "/spec/secret", "looks like a headrace key, but its checksum is wrong; was it copied in full?"
            )
        digests = [key_digest(pepper, secret).hex() for pepper in tx.context.secrets.peppers()]
        shown_hint = hint(secret)
    elif spec.secret_hmac is not None:
        digests, shown_hint = [spec.secret_hmac], "…"
    else:
        return SecretOutcome({"secret_hmac": row.secret_digest})
    if row.secret_digest in digests:
        return SecretOutcome({"secret_hmac": row.secret_digest})
    if await tx.world.key_owner(digests) not in (None, row.uid):
        raise Problem("conflict", "this secret is in use already; every key needs its own")
    old = row.secret_digest
    row.secret_digest, row.secret_hint = digests[0], shown_hint
    tx.world.key_digest_changed(row, old)
    secrets = {"secret_hmac": digests[0]}
    row.sealed = tx.context.secrets.seal(canonical_json(secrets).decode(), seal_context(row.kind, row.uid))
    return SecretOutcome(secrets, True, secret if made else None)


def _endpoint(tx: Transaction, row: Resource, spec: EndpointSpec, cleared: bool) -> SecretOutcome:
    if spec.api_key is None:
        if not cleared or row.sealed is None:
            return SecretOutcome(open_secrets(tx, row))
        row.sealed = row.secret_digest = row.secret_hint = None
        return SecretOutcome({}, True)
    secrets = {"api_key": spec.api_key}
    digests = [key_digest(pepper, spec.api_key).hex() for pepper in tx.context.secrets.peppers()]
    if row.secret_digest is not None and any(hmac.compare_digest(row.secret_digest, d) for d in digests):
        return SecretOutcome(secrets)
    row.secret_digest, row.secret_hint = digests[0], hint(spec.api_key)
    row.sealed = tx.context.secrets.seal(canonical_json(secrets).decode(), seal_context(row.kind, row.uid))
    return SecretOutcome(secrets, True)


async def _token(tx: Transaction, row: Resource, spec: AdminTokenSpec | JoinTokenSpec, creating: bool) -> SecretOutcome:
    """The description is a resource; what is checked is a row of its own, written here with it."""
    secret = spec.secret
    made = creating and secret is None
    if made:
        secret = make_key(os.urandom(20))
    digests = tx.context.secrets.token_digests(secret) if secret is not None else ()
    table = AdminToken if isinstance(spec, AdminTokenSpec) else JoinToken
    changed = secret is not None and row.secret_digest not in digests
    if changed:
        assert secret is not None
        with tx.session.no_autoflush:
            taken = (await tx.session.execute(select(table.uid).where(table.digest.in_(digests)).limit(1))).first()
        if taken is not None:
            raise Problem("conflict", "this secret is in use already; every token needs its own")
        row.secret_digest, row.secret_hint = digests[0], hint(secret)
    assert row.secret_digest is not None
    values: dict[str, Any] = {"uid": row.uid, "name": row.name, "digest": row.secret_digest}
    if isinstance(spec, AdminTokenSpec):
        await tx.session.merge(AdminToken(**values, role=spec.role, region=spec.region, expires_at=spec.expires_at))
    else:
        lapse = expiry(row.created_at, spec)
        await tx.session.merge(JoinToken(**values, zone=spec.zone, node=spec.node, uses=spec.uses, expires_at=lapse))
    return SecretOutcome({}, changed, secret if made else None)


def expiry(created_at: datetime, spec: JoinTokenSpec) -> datetime:
    return created_at + timedelta(seconds=spec.ttl_seconds)


async def forget(tx: Transaction, row: Resource) -> None:
    """A resource goes: what is checked of it goes with it."""
    for kind, table in (("admin-token", AdminToken), ("join-token", JoinToken)):
        if row.kind == kind:
            await tx.session.execute(delete(table).where(table.uid == row.uid))


def open_secrets(tx: Transaction, row: Resource) -> Mapping[str, Any]:
    """A row's secrets in clear, to be published again with it."""
    return tx.context.feed.open_secrets({"kind": row.kind, "uid": row.uid, "name": row.name, "sealed": row.sealed})
