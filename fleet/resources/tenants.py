"""Specs of who is served: sla-class, tenant, key, price."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field, model_validator

from fleet.resources.base import Jurisdiction, Money, Pattern, ResourceName, Spec, Strict


class SlaClassSpec(Spec):
    priority: int = Field(300, ge=0, le=1000)
    ttft_ms: float | None = Field(None, gt=0)
    tpot_ms: float | None = Field(None, gt=0)
    percentile: float = Field(95, gt=0, lt=100)
    first_byte_deadline_ms: float = Field(60_000, gt=0, le=86_400_000)
    end_to_end_ms: float | None = Field(None, gt=0)
    total_ms: float = Field(600_000, gt=0, le=86_400_000)
    sheddable: bool = False
    preemptible: bool = False
    spill: bool = True
    max_cost: Money | None = None


DEFAULT_SLA_CLASSES: dict[str, SlaClassSpec] = {
    "realtime": SlaClassSpec(priority=900, first_byte_deadline_ms=10_000),
    "interactive": SlaClassSpec(priority=600),
    "standard": SlaClassSpec(priority=300),
    "batch": SlaClassSpec(
        priority=0, sheddable=True, preemptible=True, first_byte_deadline_ms=600_000, total_ms=3_600_000
    ),
}
"""Present in every deployment unless a resource of the same name says otherwise."""


class ResidencySpec(Strict):
    allow: list[Jurisdiction] = []
    ingress: Literal["reject", "relay"] = "reject"


class Limit(Strict):
    per: Literal["tenant", "key", "model"]
    model: ResourceName | None = None
    requests_per_minute: int | None = Field(None, ge=0)
    tokens_per_minute: int | None = Field(None, ge=0)
    input_tokens_per_minute: int | None = Field(None, ge=0)
    output_tokens_per_minute: int | None = Field(None, ge=0)
    concurrent_requests: int | None = Field(None, ge=0)
    gpu_seconds_per_hour: float | None = Field(None, ge=0)
    spend_per_day: Money | None = None

    @model_validator(mode="after")
    def _model(self) -> Limit:
        if (self.per == "model") != (self.model is not None):
            raise ValueError("model is wanted exactly when per is model")
        return self


class Guarantee(Strict):
    model: ResourceName
    tokens_per_second: float = Field(gt=0)


class TenantSpec(Spec):
    references: ClassVar[dict[str, str]] = {
        "sla_class": "sla-class",
        "policy": "policy",
        "guarantees[].model": "model",
        "limits[].model": "model",
    }

    sla_class: ResourceName = "standard"
    weight: float = Field(1, gt=0, le=1_000_000)
    models: list[Pattern] = ["*"]
    regions: list[Pattern] = ["*"]
    gpu_classes: list[Pattern] = ["*"]
    residency: ResidencySpec = ResidencySpec()
    limits: list[Limit] = []
    guarantees: list[Guarantee] = []
    policy: ResourceName | None = None


class KeySpec(Spec):
    secret_fields: ClassVar[frozenset[str]] = frozenset({"secret", "secret_hmac"})
    references: ClassVar[dict[str, str]] = {"tenant": "tenant", "limits[].model": "model"}

    tenant: ResourceName
    secret: str | None = Field(None, min_length=8, max_length=512, pattern=r"^[\x21-\x7e]+$", repr=False)
    """Write-only. Left out, the control plane makes one and shows it once."""
    secret_hmac: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", repr=False)
    """Instead of ``secret``: hex HMAC-SHA256 of it under the deployment's pepper."""
    expires_at: AwareDatetime | None = None
    models: list[Pattern] = ["*"]
    limits: list[Limit] = []
    residency: ResidencySpec | None = None
    revoked: bool = False

    @model_validator(mode="after")
    def _one(self) -> KeySpec:
        if self.secret is not None and self.secret_hmac is not None:
            raise ValueError("give secret or secret_hmac, not both")
        return self


class TokenPrices(Strict):
    input: Money = "0"
    cached: Money | None = None
    output: Money = "0"


class PriceSpec(Spec):
    references: ClassVar[dict[str, str]] = {"model": "model"}

    currency: str = Field(pattern=r"^[A-Z]{3}$")
    start: AwareDatetime = Field(alias="from")
    model: ResourceName | None = None
    per_million_tokens: TokenPrices = TokenPrices()
    gpu_hour: dict[ResourceName, Money] = {}
