"""The fleet file: YAML documents of the same resources as the REST API, checked before anything is done with them.

Read by the standalone router, ``headrace apply`` and the simulator. Every error names file, line and field, and all are
found in one go.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleet.errors import FieldError, InvalidInput
from fleet.resources.base import Annotations, Labels, ResourceName, Spec
from fleet.resources.keys import key_digest
from fleet.resources.kinds import KINDS
from fleet.resources.serving import ModelSpec, RouteSpec
from fleet.resources.tenants import DEFAULT_SLA_CLASSES, KeySpec
from fleet.resources.yaml_source import SIZE_LIMIT_BYTES, YamlDocument, escape_pointer, read_yaml
from fleet.snapshot import IntentObject

API_VERSION = "headrace/v1"
_UIDS = uuid.UUID("3d0f2f58-4c57-5d0a-9a52-5f1c3c0d8a11")
_FIELDS = ("apiVersion", "kind", "name", "labels", "annotations", "spec")
_READ_ONLY = frozenset({"uid", "status", "generation", "resource_version", "created_at", "updated_at"})
"""What ``get -o yaml`` shows besides; tolerated so that its output can be edited and applied."""
_ERROR_LIMIT = 100

_NAME: TypeAdapter[str] = TypeAdapter(ResourceName)
_LABELS: TypeAdapter[dict[str, str]] = TypeAdapter(Labels)
_ANNOTATIONS: TypeAdapter[dict[str, str]] = TypeAdapter(Annotations)


@dataclass(frozen=True, slots=True)
class Document:
    """One resource as written. ``uid`` depends on kind and name only, so that a reload keeps identities."""

    kind: str
    name: str
    uid: str
    spec: Spec = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    line: int = 0

    @property
    def source(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""

    def manifest(self) -> dict[str, Any]:
        """As the REST API's ``apply`` takes it: what was written, secrets included."""
        body: dict[str, Any] = {"kind": self.kind, "name": self.name, "spec": written_spec(self.spec)}
        if self.labels:
            body["labels"] = dict(self.labels)
        if self.annotations:
            body["annotations"] = dict(self.annotations)
        return body


def uid_of(kind: str, name: str) -> str:
    """The uid of a resource that exists only in a fleet file."""
    return str(uuid.uuid5(_UIDS, f"{kind}/{name}"))


def written_spec(spec: Spec) -> dict[str, Any]:
    """The spec as JSON, with only the fields that were written."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def load(source: Path | str, environ: Mapping[str, str], *, name: str = "", complete: bool = True) -> list[Document]:
    """The documents of a file (a Path) or a text (a str, called ``name`` in errors).

    ``complete`` says that this is the whole fleet: every reference must be in it and every key must have its secret.
    Without it, those are for the control plane to judge. Raises InvalidInput with one error for each fault.
    """
    if isinstance(source, Path):
        name = name or str(source)
        text = _read(source, name)
    else:
        name = name or "-"
        text = source
    errors: list[FieldError] = []
    pairs: list[tuple[Document, YamlDocument]] = []
    for raw in read_yaml(text, name, environ):
        document = _document(raw, name, errors)
        if document is not None:
            pairs.append((document, raw))
    errors.extend(_duplicates(pairs, name))
    if complete and not errors:
        errors.extend(_dangling(pairs, name))
        errors.extend(_without_secret(pairs, name))
    if errors:
        raise InvalidInput(_bounded(errors))
    return [document for document, _ in pairs]


def to_intent_objects(documents: Iterable[Document], pepper: bytes) -> list[IntentObject]:
    """Documents as intent: secrets moved out of the spec, keys kept only as their digest under ``pepper``."""
    return [_intent_object(document, pepper) for document in documents]


def _intent_object(document: Document, pepper: bytes) -> IntentObject:
    spec = written_spec(document.spec)
    secrets = {name: spec.pop(name) for name in document.spec.secret_fields if name in spec}
    secrets = {name: value for name, value in secrets.items() if value is not None}
    if isinstance(document.spec, KeySpec) and document.spec.secret is not None:
        secrets = {"secret_hmac": key_digest(pepper, document.spec.secret).hex()}
    return IntentObject(document.kind, document.uid, document.name, 1, spec, dict(document.labels), secrets)


def _read(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT_BYTES + 1)
        if len(data) > SIZE_LIMIT_BYTES:
            raise InvalidInput([FieldError("", f"is larger than {SIZE_LIMIT_BYTES >> 20} MiB", name)])
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput([FieldError("", error.strerror or "cannot be read", name)]) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput([FieldError("", "is not UTF-8 text", f"{name}:{line}")]) from None


def _document(raw: YamlDocument, name: str, errors: list[FieldError]) -> Document | None:
    """The resource, or None after noting what is wrong with it."""
    before = len(errors)

    def wrong(pointer: str, reason: str) -> None:
        errors.append(FieldError(pointer, reason, f"{name}:{raw.line_of(pointer)}"))

    value = raw.value
    if not isinstance(value, dict):
        wrong("", "a document must be a mapping with kind, name and spec")
        return None
    for key in value:
        if key not in _FIELDS and key not in _READ_ONLY:
            wrong(f"/{escape_pointer(key)}", f"unknown field; known are {', '.join(_FIELDS)}")
    if value.get("apiVersion", API_VERSION) != API_VERSION:
        wrong("/apiVersion", f"must be {API_VERSION}")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        wrong("/kind", "is missing" if kind is None else f"unknown kind; known are {', '.join(KINDS)}")
        return None
    label = _checked(_NAME, value.get("name"), "/name", wrong)
    labels = _checked(_LABELS, value.get("labels") or {}, "/labels", wrong)
    annotations = _checked(_ANNOTATIONS, value.get("annotations") or {}, "/annotations", wrong)
    spec = _spec(kind, value.get("spec"), wrong)
    if len(errors) > before or label is None or labels is None or annotations is None or spec is None:
        return None
    return Document(kind, label, uid_of(kind, label), spec, labels, annotations, name, raw.line)


def _checked(adapter: TypeAdapter[Any], value: Any, pointer: str, wrong: Any) -> Any:
    if value is None:
        wrong(pointer, "is missing")
        return None
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        for e in error.errors(include_url=False, include_input=False):
            wrong(pointer + _pointer(e["loc"]), _reason(e))
        return None


def _spec(kind: str, value: Any, wrong: Any) -> Spec | None:
    spec_class = KINDS[kind].spec
    try:
        return spec_class.model_validate({} if value is None else value)
    except ValidationError as error:
        for e in error.errors(include_url=False, include_input=False):
            wrong("/spec" + _pointer(e["loc"]), _reason(e))
        return None


def _pointer(location: Iterable[Any]) -> str:
    return "".join(f"/{escape_pointer(str(part))}" for part in location if part != "[key]")


def _reason(error: Any) -> str:
    """pydantic's message in our words; it never holds the value, which may be a secret."""
    match error["type"]:
        case "extra_forbidden":
            return "unknown field"
        case "missing":
            return "is missing"
        case "model_type" | "dict_type":
            return "must be a mapping"
        case "string_pattern_mismatch":
            return f"must match {error['ctx']['pattern']}"
        case _:
            message = str(error["msg"]).removeprefix("Value error, ")
            return " ".join(message.replace("Input should be", "must be").split())


def _duplicates(pairs: list[tuple[Document, YamlDocument]], name: str) -> Iterator[FieldError]:
    """Two documents that claim the same thing: a name, an alias, what a route matches, a key's secret."""
    first: dict[tuple[Any, ...], int] = {}
    for document, raw in pairs:
        for claim, pointer, what in _claims(document):
            line = raw.line_of(pointer)
            if claim in first:
                yield FieldError(pointer, f"{what} is already taken, on line {first[claim]}", f"{name}:{line}")
            else:
                first[claim] = line


def _claims(document: Document) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """(claim, pointer, what it is in words) for all that must be unique."""
    yield ("name", document.kind, document.name), "/name", f"{document.kind} {document.name}"
    match document.spec:
        case ModelSpec(aliases=aliases):
            for index, alias in enumerate(aliases):
                yield ("alias", alias), f"/spec/aliases/{index}", f"alias {alias}"
        case RouteSpec(match=m):
            claim = (m.model, tuple(sorted(m.tenants)), tuple(sorted(m.headers.items())))
            yield ("route", *claim), "/spec/match", f"a route for model {m.model} with the same tenants and headers"
        case KeySpec(secret=secret, secret_hmac=digest) if secret is not None or digest is not None:
            pointer = "/spec/secret" if secret is not None else "/spec/secret_hmac"
            yield ("secret", secret, digest), pointer, "this secret"


def _dangling(pairs: list[tuple[Document, YamlDocument]], name: str) -> Iterator[FieldError]:
    """References to what is not in the file."""
    names: dict[str, set[str]] = {kind: set() for kind in KINDS}
    names["sla-class"].update(DEFAULT_SLA_CLASSES)
    for document, _ in pairs:
        names[document.kind].add(document.name)
    for document, raw in pairs:
        spec = document.spec.model_dump(mode="json", by_alias=True)
        for path, kind in document.spec.references.items():
            for pointer, value in _at(spec, path.split("."), ""):
                if value not in names[kind]:
                    place = f"/spec{pointer}"
                    yield FieldError(place, f"there is no {kind} {value}", f"{name}:{raw.line_of(place)}")


def _at(value: Any, path: list[str], pointer: str) -> Iterator[tuple[str, str]]:
    """Every string at ``path`` (``[]`` after a part is each element of a list), with its pointer."""
    if not path:
        if isinstance(value, str):
            yield pointer, value
        return
    part, rest = path[0], path[1:]
    inner = value.get(part.removesuffix("[]")) if isinstance(value, Mapping) else None
    pointer = f"{pointer}/{part.removesuffix('[]')}"
    if not part.endswith("[]"):
        yield from _at(inner, rest, pointer)
    elif isinstance(inner, list):
        for index, item in enumerate(inner):
            yield from _at(item, rest, f"{pointer}/{index}")


def _without_secret(pairs: list[tuple[Document, YamlDocument]], name: str) -> Iterator[FieldError]:
    for document, raw in pairs:
        spec = document.spec
        if isinstance(spec, KeySpec) and spec.secret is None and spec.secret_hmac is None:
            yield FieldError("/spec", "a key wants secret or secret_hmac", f"{name}:{raw.line_of('/spec')}")


def _bounded(errors: Collection[FieldError]) -> list[FieldError]:
    """At most a hundred, in the order of the file; what is left out is counted."""
    listed = list(errors)[:_ERROR_LIMIT]
    if len(errors) > _ERROR_LIMIT:
        listed.append(FieldError("", f"and {len(errors) - _ERROR_LIMIT} more errors"))
    return listed
