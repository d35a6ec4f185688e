"""Creating, replacing, patching and deleting resources: the steps that single calls and ``apply`` share."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from controlplane.api import holds, references, rules, secret_fields
from controlplane.api.kinds import API_KINDS, ApiKind
from controlplane.api.problems import Problem
from controlplane.api.schemas import Input
from controlplane.api.work import Transaction
from controlplane.tables import Resource
from fleet.errors import FieldError, InvalidInput
from fleet.resources.base import Spec
from fleet.snapshot import canonical_json


@dataclass(frozen=True, slots=True)
class Written:
    """What became of one resource."""

    row: Resource
    action: Literal["created", "changed", "unchanged"]
    shown: str | None = None
    """A secret that was made here, to be shown this once."""
    diff: list[dict[str, Any]] = field(default_factory=list)


def stored_spec(spec: Spec) -> dict[str, Any]:
    """As kept and published: what was written, in JSON, without secrets and without defaults."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=set(spec.secret_fields))


def full_spec(kind: ApiKind, stored: Mapping[str, Any]) -> dict[str, Any]:
    """As shown and compared: with defaults. A stored spec of another release that no longer validates is shown as it is."""
    try:
        spec = kind.spec.model_validate(stored)
    except ValueError:
        return dict(stored)
    return spec.model_dump(mode="json", by_alias=True, exclude=set(spec.secret_fields))


async def put(tx: Transaction, kind: ApiKind, given: Input, spec: Spec, existing: Resource | None) -> Written:
    """Write the resource as given; nothing happens when it is so already. :func:`check` comes after.

    Raises Problem (409) naming each field that may not change in place.
    """
    new_spec = stored_spec(spec)
    if existing is not None and existing.spec.get("revoked", False):
        new_spec = _still_revoked(existing, spec, new_spec)
    secret_field = kind.secret_field
    cleared = secret_field is not None and secret_field in spec.model_fields_set and getattr(spec, secret_field) is None
    row = existing or Resource(
        uid=str(uuid.uuid4()),
        kind=kind.name,
        name=given.name,
        owner="user",
        labels={},
        annotations={},
        spec={},
        generation=1,
        resource_version=tx.version,
        created_at=tx.now,
        updated_at=tx.now,
    )
    secret = await secret_fields.settle(tx, row, spec, creating=existing is None, cleared=cleared)
    if existing is None:
        row.labels, row.annotations, row.spec = dict(given.labels), dict(given.annotations), new_spec
        tx.world.add(row)
        tx.written("created", row, secret.secrets, secret.changed)
        return Written(row, "created", secret.shown)
    _unchangeable(kind, row, new_spec)
    diff = _diff(kind, row, given, new_spec)
    if secret.changed:
        diff.append({"pointer": f"/spec/{secret_field}", "from": "(secret)", "to": "(another secret)"})
    if not diff:
        return Written(row, "unchanged")
    if any(change["pointer"].startswith("/spec") for change in diff):
        row.generation += 1
    row.labels, row.annotations, row.spec = dict(given.labels), dict(given.annotations), new_spec
    row.resource_version, row.updated_at = tx.version, tx.now
    tx.written("changed", row, secret.secrets, secret.changed)
    return Written(row, "changed", secret.shown, diff)


async def check(tx: Transaction, rows: Sequence[tuple[str, Resource]]) -> None:
    """Raises InvalidInput with everything that is wrong with the rows; each comes with the pointer to its document."""
    errors = [
        FieldError(prefix + error.pointer, error.reason) for prefix, row in rows for error in await rules.check(tx, row)
    ]
    if errors:
        raise InvalidInput(errors)


async def republish(tx: Transaction, row: Resource) -> None:
    """A row was changed in place (its spec): raise its generation and publish it."""
    row.generation += 1
    row.resource_version, row.updated_at = tx.version, tx.now
    tx.written("changed", row, secret_fields.open_secrets(tx, row))


async def remove(tx: Transaction, row: Resource, *, cascade: bool) -> list[Resource]:
    """Delete a resource, and with ``cascade`` whatever names it. Raises Problem (409) listing the references. What was deleted."""
    doomed: list[Resource] = []
    await _collect(tx, row, doomed)
    if len(doomed) > 1 and not cascade:
        raise referenced(row, [r for r in doomed if r is not row])
    for gone in doomed:
        await bury(tx, gone)
    return doomed


async def _collect(tx: Transaction, row: Resource, doomed: list[Resource]) -> None:
    """``row`` and, before it, whatever names it, directly or not."""
    if row in doomed:
        return
    doomed.append(row)
    for other in await references.referrers(tx.world, row.kind, row.name):
        await _collect(tx, other, doomed)


def referenced(row: Resource, by: Sequence[Resource]) -> Problem:
    listed = [{"kind": r.kind, "name": r.name, "uid": r.uid} for r in by]
    names = ", ".join(f"{r.kind} {r.name}" for r in by[:5]) + (f" and {len(by) - 5} more" if len(by) > 5 else "")
    errors = [FieldError("", f"{r.kind} {r.name} refers to it") for r in by[:100]]
    return Problem(
        "referenced",
        f"{row.kind} {row.name} is referred to by {names}; delete those first, or use ?cascade=true",
        errors=errors,
        extra={"references": listed},
    )


async def bury(tx: Transaction, row: Resource) -> None:
    """Leave a tombstone in place of a resource, and take its tokens and holds with it."""
    await secret_fields.forget(tx, row)
    if API_KINDS[row.kind].holdable:
        await holds.release(tx, row.kind, row.uid)
    tx.world.bury(row, tx.now, tx.version)
    tx.removed(row)


def _still_revoked(row: Resource, spec: Spec, new_spec: dict[str, Any]) -> dict[str, Any]:
    """A file from before the revocation must not bring a key back: what says nothing keeps it, what says otherwise is refused."""
    if "revoked" in spec.model_fields_set and not getattr(spec, "revoked", True):
        raise Problem(
            "conflict",
            f"{row.kind} {row.name} is revoked for good; delete it, then create another",
            errors=[FieldError("/spec/revoked", "is true for good, not false")],
        )
    return new_spec | {"revoked": True}


def _unchangeable(kind: ApiKind, row: Resource, new_spec: Mapping[str, Any]) -> None:
    errors = []
    for name in sorted(kind.spec.immutable):
        default = kind.spec.model_fields[name].get_default(call_default_factory=True)
        old, new = row.spec.get(name, default), new_spec.get(name, default)
        if old != new:
            told = f"is {canonical_json(old).decode()} for good, not {canonical_json(new).decode()}"
            errors.append(FieldError(f"/spec/{name}", told))
    if errors:
        fields = ", ".join(error.pointer.removeprefix("/spec/") for error in errors)
        raise Problem(
            "conflict",
            f"{row.kind} {row.name} is one immutable version: {fields} cannot change in place; create another {row.kind} "
            f"and move aliases or routes to it",
            errors=errors,
        )


def _diff(kind: ApiKind, row: Resource, given: Input, new_spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every place where the resource would change, as (JSON pointer, from, to); absent is null."""
    old = {"labels": row.labels, "annotations": row.annotations, "spec": full_spec(kind, row.spec)}
    new = {"labels": given.labels, "annotations": given.annotations, "spec": full_spec(kind, new_spec)}
    changes: list[dict[str, Any]] = []
    _compare(old, new, "", changes)
    return changes


def _compare(old: Any, new: Any, pointer: str, changes: list[dict[str, Any]]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            escaped = key.replace("~", "~0").replace("/", "~1")
            _compare(old.get(key), new.get(key), f"{pointer}/{escaped}", changes)
    elif canonical_json(old) != canonical_json(new):
        changes.append({"pointer": pointer, "from": old, "to": new})
