"""Intent in the words decisions use. Built from a snapshot or a fleet file by ``fleet.resources.translate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.endpoint import EngineKind, ServedModel
from fleet.locality import Link, Region, Zone
from fleet.snapshot import IntentVersion
from fleet.tenancy import SlaClass, Tenant, TenantKey


@dataclass(frozen=True, slots=True)
class DeclaredGpus:
    product: str
    count: int
    memory_gib: float | None = None


@dataclass(frozen=True, slots=True)
class NodeIntent:
    """A node that is written down or has joined."""

    uid: str
    name: str
    zone: str
    gpus: tuple[DeclaredGpus, ...] = ()


@dataclass(frozen=True, slots=True)
class EndpointIntent:
    """An engine without an agent; the router watches it itself (embedded agent)."""

    uid: str
    name: str
    node: str
    url: str
    engine: EngineKind
    models: tuple[ServedModel, ...]
    gpus: tuple[str, ...] = ()
    tensor_parallel: int = 1
    max_inflight: int | None = None
    kv_tokens: int | None = None
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Model:
    """One immutable version of a model."""

    uid: str
    name: str
    task: str
    aliases: tuple[str, ...] = ()
    version: str = "1"
    context_tokens: int | None = None
    weights_gib: float | None = None
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Split:
    model: str
    weight: float


@dataclass(frozen=True, slots=True)
class Route:
    """Rewrites a model name into versions by weight. Beats an alias, which beats a name."""

    uid: str
    name: str
    model: str
    split: tuple[Split, ...]
    tenants: tuple[str, ...] = ("*",)
    headers: Mapping[str, str] = field(default_factory=dict)
    sticky: bool = False
    fallback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyIntent:
    """Which algorithm the endpoint step uses, where."""

    uid: str
    name: str
    algorithm: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    models: tuple[str, ...] = ("*",)
    regions: tuple[str, ...] = ("*",)
    classes: tuple[str, ...] = ("*",)


class HoldState(StrEnum):
    CORDONED = "cordoned"
    """No new work or sessions; what runs goes on, and sessions that live there may stay."""
    DRAINING = "draining"
    """Cordoned, and sessions leave too; done when nothing runs."""


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's cordon or drain of a gpu, endpoint, node, zone or region. It survives reboots and re-joins."""

    uid: str
    target_kind: str
    target: str
    """uid of the target; a GPU's UUID for kind ``gpu``."""
    state: HoldState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Deployment secrets that routers need. Newest first; a verifier accepts any, a signer uses the first."""

    peppers: tuple[bytes, ...] = field(default=(), repr=False)
    hop_keys: tuple[bytes, ...] = field(default=(), repr=False)
    identity_keys: tuple[bytes, ...] = ()
    """Raw Ed25519 public keys (32 bytes) that verify node identities."""


@dataclass(frozen=True, slots=True)
class Intent:
    """All of it, indexed the way decisions look things up. Immutable; a new one replaces it whole."""

    at: IntentVersion = IntentVersion()
    region: str = ""
    """The region whose router this is for."""
    regions: Mapping[str, Region] = field(default_factory=dict)
    zones: Mapping[str, Zone] = field(default_factory=dict)
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    nodes: Mapping[str, NodeIntent] = field(default_factory=dict)
    """By name."""
    endpoints: Mapping[str, EndpointIntent] = field(default_factory=dict)
    """By uid."""
    models: Mapping[str, Model] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alias to model name."""
    routes: tuple[Route, ...] = ()
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    """By name."""
    keys_by_digest: Mapping[bytes, TenantKey] = field(default_factory=dict, repr=False)
    sla_classes: Mapping[str, SlaClass] = field(default_factory=dict)
    policies: Mapping[str, PolicyIntent] = field(default_factory=dict)
    holds: Mapping[tuple[str, str], Hold] = field(default_factory=dict)
    """By (target kind, target uid)."""
    secrets: Secrets = Secrets()
