"""Specs of what is served and how: model, endpoint, deployment, route, policy."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fleet.endpoint import EngineKind
from fleet.resources.base import Alias, BaseUrl, Pattern, ResourceName, Spec, Strict


class ModelSpec(Spec):
    immutable: ClassVar[frozenset[str]] = frozenset({"task", "version", "context_tokens", "weights_gib"})
    references: ClassVar[dict[str, str]] = {"policy": "policy"}

    task: Literal["chat", "completion", "embedding", "rerank", "other"] = "chat"
    aliases: list[Alias] = []
    version: str = Field("1", min_length=1, max_length=128)
    context_tokens: int | None = Field(None, ge=1)
    weights_gib: float | None = Field(None, ge=0)
    policy: ResourceName | None = None


class ServedModelSpec(Strict):
    name: ResourceName
    served_as: Alias | None = None


class EndpointSpec(Spec):
    secret_fields: ClassVar[frozenset[str]] = frozenset({"api_key"})
    references: ClassVar[dict[str, str]] = {"node": "node", "models[].name": "model"}

    node: ResourceName
    url: BaseUrl
    engine: EngineKind = EngineKind.OPENAI
    models: list[ServedModelSpec] = Field(min_length=1)
    gpus: list[str] = []
    """Indices, UUIDs or MIG ids on the node."""
    tensor_parallel: int = Field(1, ge=1, le=64)
    max_inflight: int | None = Field(None, ge=1, le=100_000)
    kv_tokens: int | None = Field(None, ge=1)
    api_key: str | None = Field(None, min_length=1, max_length=4096, repr=False)

    @field_validator("models", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [{"name": item} if isinstance(item, str) else item for item in value]
        return value


class Replicas(Strict):
    min: int = Field(0, ge=0)
    max: int = Field(1, ge=0)

    @model_validator(mode="after")
    def _order(self) -> Replicas:
        if self.max < self.min:
            raise ValueError("max must be at least min")
        return self


class DeploymentSpec(Spec):
    references: ClassVar[dict[str, str]] = {"model": "model", "zones[]": "zone"}

    model: ResourceName
    zones: list[ResourceName] = Field(min_length=1)
    product: ResourceName
    tensor_parallel: int = Field(1, ge=1, le=64)
    precision: Literal["fp32", "fp16", "bf16", "fp8", "int8", "fp4", "int4"] = "bf16"
    kv_tokens: int | None = Field(None, ge=1)
    replicas: Replicas = Replicas(min=0, max=1)
    actuator: Literal["none"] = "none"


class RouteMatch(Strict):
    model: Alias
    tenants: list[Pattern] = ["*"]
    headers: dict[str, str] = {}


class RouteSplit(Strict):
    model: ResourceName
    weight: float = Field(1, ge=0, le=1_000_000)


class RouteSpec(Spec):
    references: ClassVar[dict[str, str]] = {"split[].model": "model", "fallback[]": "model"}

    match: RouteMatch
    split: list[RouteSplit] = Field(min_length=1)
    sticky: Literal["session", "none"] = "none"
    fallback: list[ResourceName] = []

    @model_validator(mode="after")
    def _weight(self) -> RouteSpec:
        if sum(s.weight for s in self.split) <= 0:
            raise ValueError("split: at least one weight must be above 0")
        return self


class PolicyMatch(Strict):
    models: list[Pattern] = ["*"]
    regions: list[Pattern] = ["*"]
    classes: list[Pattern] = ["*"]


class PolicySpec(Spec):
    algorithm: str = Field("expected-cost", pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=63)
    parameters: dict[str, bool | int | float | str] = {}
    match: PolicyMatch = PolicyMatch()
