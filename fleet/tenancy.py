"""Tenants, their keys and their service classes, as decisions need them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Residency:
    """Where a tenant's data may be processed. ``allow`` is a set of jurisdictions; empty means anywhere."""

    allow: frozenset[str] = frozenset()
    relay_ingress: bool = False
    """True lets a router outside the residency relay the bytes (spec ``ingress: relay``)."""

    def permits(self, jurisdictions: frozenset[str]) -> bool:
        """True when a place with these jurisdictions may process the data. A place with none is refused: fail closed."""
        return not self.allow or bool(self.allow & jurisdictions)


@dataclass(frozen=True, slots=True)
class SlaClass:
    uid: str
    name: str
    priority: int
    """0 to 1000, higher first."""
    first_byte_deadline_seconds: float = 60.0
    total_seconds: float = 600.0
    sheddable: bool = False
    preemptible: bool = False
    spill: bool = True


@dataclass(frozen=True, slots=True)
class Tenant:
    uid: str
    name: str
    sla_class: str
    weight: float = 1.0
    models: tuple[str, ...] = ("*",)
    regions: tuple[str, ...] = ("*",)
    gpu_classes: tuple[str, ...] = ("*",)
    residency: Residency = Residency()
    policy: str = ""


@dataclass(frozen=True, slots=True)
class TenantKey:
    """A key is known by the HMAC of its secret (see ``fleet.resources.keys``); the secret itself is nowhere."""

    uid: str
    name: str
    tenant: str
    digest: bytes
    """HMAC-SHA256, 32 bytes."""
    expires_at: float | None = None
    """Unix seconds; None never expires."""
    revoked: bool = False
    models: tuple[str, ...] = ("*",)
    residency: Residency | None = None


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """True when ``name`` is listed, or matches a pattern whose only wildcard is one trailing ``*``."""
    return any(p == name or (p.endswith("*") and name.startswith(p[:-1])) for p in patterns)
