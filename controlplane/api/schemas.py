"""The documents of the admin API, a typed model per kind made from its spec, so that OpenAPI says exactly what is taken."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from controlplane.api.kinds import ApiKind
from fleet.resources.base import Annotations, Labels, ResourceName, Spec, Strict

M = TypeVar("M", bound=BaseModel)


class Condition(BaseModel):
    """Something that is or is not so, and since when."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_time: datetime | None
    observed_generation: int | None


class Status(BaseModel):
    """What agents and controllers have seen. Users never write it."""

    managed_by: Literal["user", "agent"]
    secret_hint: str | None = Field(description="What may be shown of a write-only secret")
    conditions: list[Condition]
    observed: dict[str, Any] = Field(description="Reported facts; null is unknown, never zero")


class Document(BaseModel):
    """What all resources have in common when read."""

    name: str
    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    status: Status
    generation: int
    resource_version: str
    created_at: datetime
    updated_at: datetime


class Input(Strict):
    """What all resources have in common when written. Fields that are not the user's may come along and are ignored,
    so that what was read can be written back; ``uid`` and ``resource_version``, when given, must be those of the resource."""

    api_version: Literal["headrace/v1"] | None = Field(None, alias="apiVersion")
    name: ResourceName
    labels: Labels = {}
    annotations: Annotations = {}
    uid: str | None = Field(None, max_length=64)
    resource_version: str | None = Field(None, max_length=64)
    status: Any = Field(None, description="Ignored")
    generation: Any = Field(None, description="Ignored")
    created_at: Any = Field(None, description="Ignored")
    updated_at: Any = Field(None, description="Ignored")


class Reference(BaseModel):
    kind: str
    name: str
    uid: str


class Deleted(BaseModel):
    deleted: list[Reference]


class Models:
    """The models of one kind."""

    def __init__(self, kind: ApiKind) -> None:
        self.kind = kind
        fields = {n: (f.annotation, f) for n, f in kind.spec.model_fields.items() if n not in kind.spec.secret_fields}
        shown: type[BaseModel] = create_model(
            f"{kind.title}SpecShown", __config__=ConfigDict(hide_input_in_errors=True), **fields
        )  # type: ignore[call-overload]
        named: Any = {"kind": (Literal[kind.name], ...), "spec": (shown, ...)}
        self.document: type[Document] = create_model(kind.title, __base__=Document, **named)
        once: Any = {"secret": (str | None, Field(None, description="Made by the control plane and shown this once"))}
        self.created: type[Document] = create_model(f"{kind.title}Created", __base__=self.document, **once)
        page: Any = {
            "items": (list[self.document], ...),  # type: ignore[name-defined]
            "next_page_token": (str, Field(description="Empty at the end")),
            "resource_version": (str, Field(description="Where a watch may start")),
        }
        self.page: type[BaseModel] = create_model(f"{kind.title}List", **page)
        given: Any = {
            "kind": (Literal[kind.name] | None, None),
            "spec": (kind.spec, Field(default_factory=kind.spec) if _all_optional(kind.spec) else ...),
        }
        self.input: type[Input] = create_model(f"{kind.title}Input", __base__=Input, **given)
        in_file: Any = {"kind": (Literal[kind.name], ...)}
        self.file: type[Input] = create_model(f"{kind.title}FileInput", __base__=self.input, **in_file)


def _all_optional(spec: type[Spec]) -> bool:
    return not any(field.is_required() for field in spec.model_fields.values())


def discriminated(models: list[Models]) -> Any:
    """The union of the file inputs, told apart by ``kind``."""
    union: Any = models[0].file
    for more in models[1:]:
        union = union | more.file
    return Annotated[union, Field(discriminator="kind")]
