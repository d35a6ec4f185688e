"""The kinds of the admin API, and who may read and write each. Adding a kind is adding a line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field, model_validator

from controlplane.api.auth import Role
from fleet.resources.base import Pattern, ResourceName, Spec
from fleet.resources.kinds import KINDS


class AdminTokenSpec(Spec):
    """A bearer token: of a person or program (viewer, operator, admin), or of a region's routers (router)."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"secret"})
    references: ClassVar[dict[str, str]] = {"region": "region"}

    role: Literal["viewer", "operator", "admin", "router"]
    region: ResourceName | None = None
    """Wanted exactly for role router: whose snapshot it gets and for which region it may report."""
    expires_at: AwareDatetime | None = None
    secret: str | None = Field(None, min_length=20, max_length=512, pattern=r"^[\x21-\x7e]+$", repr=False)
    """Write-only. Left out, the control plane makes one and shows it once."""

    @model_validator(mode="after")
    def _region(self) -> AdminTokenSpec:
        if (self.role == "router") != (self.region is not None):
            raise ValueError("region is wanted exactly when role is router")
        return self


class JoinTokenSpec(Spec):
    """Lets agents join: at most ``uses`` times, in zones and under node names that match."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"secret"})

    zone: Pattern = "*"
    node: Pattern = "*"
    uses: int = Field(1, ge=1, le=100_000)
    ttl_seconds: int = Field(86_400, ge=1, le=366 * 86_400)
    """From creation."""
    secret: str | None = Field(None, min_length=20, max_length=512, pattern=r"^[\x21-\x7e]+$", repr=False)
    """Write-only. Left out, the control plane makes one and shows it once."""


@dataclass(frozen=True, slots=True)
class ApiKind:
    name: str
    plural: str
    spec: type[Spec]
    read: Role = Role.VIEWER
    write: Role = Role.OPERATOR
    observed: bool = False
    """Agents report such things too; they are listed beside those that users have written."""
    holdable: bool = False
    """Can be cordoned and drained."""
    file: bool = True
    """May stand in a fleet file, and so in ``apply``."""

    @property
    def title(self) -> str:
        """As in OpenAPI: ``SlaClass``."""
        return "".join(part.capitalize() for part in self.name.split("-"))

    @property
    def secret_field(self) -> str | None:
        """The field a secret is written to, if the kind has one."""
        return next((f for f in ("secret", "api_key") if f in self.spec.secret_fields), None)


_ADMIN_WRITES = frozenset({"tenant", "key", "sla-class", "price"})
_OBSERVED = frozenset({"node", "endpoint"})
_HOLDABLE = frozenset({"endpoint", "node", "zone", "region"})

API_KINDS: dict[str, ApiKind] = {
    kind.name: ApiKind(
        kind.name,
        kind.plural,
        kind.spec,
        write=Role.ADMIN if kind.name in _ADMIN_WRITES else Role.OPERATOR,
        observed=kind.name in _OBSERVED,
        holdable=kind.name in _HOLDABLE,
    )
    for kind in KINDS.values()
} | {
    "join-token": ApiKind("join-token", "join-tokens", JoinTokenSpec, Role.OPERATOR, Role.ADMIN, file=False),
    "admin-token": ApiKind("admin-token", "admin-tokens", AdminTokenSpec, Role.ADMIN, Role.ADMIN, file=False),
}
"""In order of reference: what is referred to comes first."""

GPU = ApiKind("gpu", "gpus", Spec, observed=True, holdable=True, file=False)
"""Only ever reported; named by its UUID."""
