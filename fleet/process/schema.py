"""The settings of a process as a flat list of keys, read off its pydantic model."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Union

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

_SECRET_NAME = re.compile(r"(^|_)(token|secret|password|pepper|secret_key|api_key|hop_key)s?$")
_URL_NAME = re.compile(r"(^|_)urls?$")
_UNITS = ("_seconds", "_bytes")


@dataclass(frozen=True, slots=True)
class Key:
    """One setting that can be written in a file, the environment or a flag."""

    path: tuple[str, ...]
    """Field names from the top of the model down."""
    kind: str
    """``list``, ``dict``, ``seconds``, ``bytes`` or ``plain``: how a string is read."""
    secret: bool
    """Masked when shown, never a flag, and has a ``_FILE`` twin."""
    may_hold_secret: bool
    """A URL: its password is masked, and it has a ``_FILE`` twin."""
    info: FieldInfo = field(repr=False)

    @property
    def name(self) -> str:
        return "_".join(self.path)

    @property
    def has_file_twin(self) -> bool:
        return self.secret or self.may_hold_secret


@dataclass(frozen=True, slots=True)
class Schema:
    keys: tuple[Key, ...]
    by_name: Mapping[str, Key]
    """Every accepted name in lower case, units left out or not: ``tls_cert``, ``timeout_idle_seconds``, ``timeout_idle``."""
    tables: frozenset[str]
    """Fields that are themselves tables, such as ``tls``."""


def schema_of(model: type[BaseModel]) -> Schema:
    """All settings of ``model``."""
    keys: list[Key] = []
    tables: set[str] = set()
    _collect(model, (), keys, tables)
    by_name: dict[str, Key] = {key.name: key for key in keys}
    for key in keys:
        for unit in _UNITS:
            if key.name.endswith(unit):
                by_name.setdefault(key.name.removesuffix(unit), key)
    return Schema(tuple(keys), by_name, frozenset(tables))


def _collect(model: type[BaseModel], prefix: tuple[str, ...], keys: list[Key], tables: set[str]) -> None:
    for name, info in model.model_fields.items():
        inner = _bare(info.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            tables.add("_".join((*prefix, name)))
            _collect(inner, (*prefix, name), keys, tables)
            continue
        secret = (
            _mentions(info.annotation, SecretStr)
            or info.repr is False
            or (_SECRET_NAME.search(name) is not None and not name.endswith("_file"))
        )
        kind = _kind(inner, name)
        may_hold = kind == "plain" and _URL_NAME.search(name) is not None
        keys.append(Key((*prefix, name), kind, secret, may_hold and not secret, info))


def _kind(annotation: Any, name: str) -> str:
    origin = typing.get_origin(annotation) or annotation
    if origin in (list, tuple, set, frozenset):
        return "list"
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "dict"
    if annotation in (int, float) and name.endswith("_seconds"):
        return "seconds"
    if annotation is int and name.endswith("_bytes"):
        return "bytes"
    return "plain"


def _bare(annotation: Any) -> Any:
    """The annotation without Annotated and ``| None``."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            others = [a for a in typing.get_args(annotation) if a is not type(None)]
            if len(others) != 1:
                return annotation
            annotation = others[0]
        else:
            return annotation


def _mentions(annotation: Any, wanted: type) -> bool:
    return annotation is wanted or any(_mentions(a, wanted) for a in typing.get_args(annotation))
