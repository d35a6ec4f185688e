"""The registry of kinds: names in files and paths, spec classes, and the order in which they can be created."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.resources.base import Spec
from fleet.resources.places import LinkSpec, NodeSpec, RegionSpec, ZoneSpec
from fleet.resources.serving import DeploymentSpec, EndpointSpec, ModelSpec, PolicySpec, RouteSpec
from fleet.resources.tenants import KeySpec, PriceSpec, SlaClassSpec, TenantSpec


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    """Singular, as in a file: ``kind: sla-class``."""
    plural: str
    """As in a path: ``/api/v1/sla-classes``."""
    spec: type[Spec]


# In order of reference: what is referred to comes first.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("region", "regions", RegionSpec),
        Kind("link", "links", LinkSpec),
        Kind("zone", "zones", ZoneSpec),
        Kind("node", "nodes", NodeSpec),
        Kind("policy", "policies", PolicySpec),
        Kind("model", "models", ModelSpec),
        Kind("endpoint", "endpoints", EndpointSpec),
        Kind("deployment", "deployments", DeploymentSpec),
        Kind("route", "routes", RouteSpec),
        Kind("sla-class", "sla-classes", SlaClassSpec),
        Kind("tenant", "tenants", TenantSpec),
        Kind("key", "keys", KeySpec),
        Kind("price", "prices", PriceSpec),
    )
}
PLURALS: dict[str, Kind] = {kind.plural: kind for kind in KINDS.values()}
