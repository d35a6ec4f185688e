"""Who is asking: bearer keys against the current intent, and what their holder may do.

A verified key costs one dictionary look-up: what was worked out for it is kept until the intent changes. A key in our own format
with a wrong checksum is refused before any hash is computed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from fleet.intent import Intent
from fleet.locality import Origin, nearest_regions
from fleet.resources.keys import key_digest, plausible
from fleet.tenancy import Residency, SlaClass, Tenant, TenantKey

KEPT_KEYS = 10_000
NOWHERE = frozenset({"\x00nowhere"})
"""A set of jurisdictions that no place has. An empty ``allow`` would mean anywhere."""
_STANDARD = SlaClass("", "standard", 300)


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant's key with everything a request needs of it, worked out once per intent."""

    tenant_uid: str
    tenant_name: str
    key_uid: str
    sla: SlaClass
    residency: Residency
    models: tuple[str, ...]
    regions: tuple[str, ...]
    gpu_classes: tuple[str, ...]
    policy: str
    expires_at: float | None
    enters_here: bool
    """False when the tenant's residency forbids this router to take the request's body."""


class Authenticator:
    """Turns an Authorization header into a Principal. Used by one task."""

    def __init__(self, intent: Callable[[], Intent], *, anonymous: bool) -> None:
        """``anonymous`` serves requests without a key while the intent holds no tenants (standalone on loopback)."""
        self._intent = intent
        self._anonymous = anonymous
        self._of: Intent | None = None
        self._kept: dict[bytes, Principal] = {}
        self._nobody: Principal | None = None
        self._tenants: dict[str, Tenant] | None = None
        self._keys: dict[str, TenantKey] | None = None
        """By uid, for hops; made when the first one of an intent comes."""

    def principal(self, authorization: bytes | None, wall: float) -> Principal | None:
        """The holder of the key, or None when there is none, it is unknown, expired or revoked."""
        if self._intent() is not self._of:
            self._renew()
        if self._nobody is not None:
            return self._nobody
        if authorization is None:
            return None
        found = self._kept.get(authorization)
        if found is None:
            found = self._verify(authorization)
            if found is None:
                return None
            if len(self._kept) >= KEPT_KEYS:
                del self._kept[next(iter(self._kept))]
            self._kept[authorization] = found
        if found.expires_at is not None and wall >= found.expires_at:
            return None
        return found

    def of_hop(self, tenant_uid: str, key_uid: str, residency: Residency) -> Principal | None:
        """For a request that a peer router vouches for: the same tenant as this router's own intent has it.

        Residency is what both say: the signed one and ours. None when this router does not (yet, or any more) know the tenant.
        """
        if self._intent() is not self._of:
            self._renew()
        intent = self._intent()
        if not tenant_uid:
            return self._nobody
        if self._tenants is None or self._keys is None:
            self._tenants = {t.uid: t for t in intent.tenants.values()}
            self._keys = {k.uid: k for k in intent.keys_by_digest.values()}
        tenant = self._tenants.get(tenant_uid)
        if tenant is None:
            return None
        key = self._keys.get(key_uid)
        if key is not None and key.revoked:
            return None
        return _principal(intent, tenant, key, residency)

    def right_region(self, principal: Principal, origin: Origin) -> str:
        """Public address of the nearest region that may take this tenant's requests; empty when none is known."""
        intent = self._intent()
        allowed = [r for r in intent.regions.values() if r.public_url and principal.residency.permits(r.jurisdictions)]
        ranked = nearest_regions(origin, allowed)
        if ranked:
            return ranked[0][0].public_url
        return min(allowed, key=lambda r: r.name).public_url if allowed else ""

    def _renew(self) -> None:
        intent = self._intent()
        self._of = intent
        self._kept = {}
        self._tenants = self._keys = None
        nobody = self._anonymous and not intent.tenants and not intent.keys_by_digest
        self._nobody = _anybody(intent) if nobody else None

    def _verify(self, authorization: bytes) -> Principal | None:
        scheme, _, secret = authorization.partition(b" ")
        secret = secret.strip()
        if scheme.lower() != b"bearer" or not secret.isascii():
            return None
        text = secret.decode("ascii")
        if not plausible(text):
            return None
        intent = self._intent()
        key: TenantKey | None = None
        for pepper in intent.secrets.peppers:
            digest = key_digest(pepper, text)
            candidate = intent.keys_by_digest.get(digest)
            if candidate is not None and hmac.compare_digest(candidate.digest, digest):
                key = candidate
        if key is None or key.revoked:
            return None
        tenant = intent.tenants.get(key.tenant)
        return None if tenant is None else _principal(intent, tenant, key, None)


def _anybody(intent: Intent) -> Principal:
    sla = intent.sla_classes.get("standard", _STANDARD)
    return Principal("", "", "", sla, Residency(), ("*",), ("*",), ("*",), "", None, True)


def _principal(intent: Intent, tenant: Tenant, key: TenantKey | None, signed: Residency | None) -> Principal:
    residency = tenant.residency
    for further in (key.residency if key else None, signed):
        if further is not None:
            residency = _both(residency, further)
    own = intent.regions.get(intent.region)
    here = residency.permits(own.jurisdictions if own else frozenset())
    return Principal(
        tenant.uid,
        tenant.name,
        key.uid if key else "",
        intent.sla_classes.get(tenant.sla_class, _STANDARD),
        residency,
        common_patterns(tenant.models, key.models if key else ("*",)),
        tenant.regions,
        tenant.gpu_classes,
        tenant.policy,
        key.expires_at if key else None,
        here or (residency.relay_ingress and signed is None),  # what came by hop has no further to go
    )


def _both(first: Residency, second: Residency) -> Residency:
    """What both allow. The first that says anything about places decides about relaying."""
    if not first.allow:
        return second
    if not second.allow:
        return first
    return Residency(first.allow & second.allow or NOWHERE, first.relay_ingress)


def common_patterns(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns (a trailing ``*`` is the only wildcard) that match exactly what both lists match; empty when nothing does."""
    found: dict[str, None] = {}
    for a in first:
        for b in second:
            if a == b or (b.endswith("*") and a.startswith(b[:-1])):
                found[a] = None
            elif a.endswith("*") and b.startswith(a[:-1]):
                found[b] = None
    return tuple(found)
