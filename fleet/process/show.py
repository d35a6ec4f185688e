"""Settings in force, for people: as TOML, with where each value came from and secrets masked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from fleet.process.schema import Key, schema_of
from fleet.process.settings import SHARED_TABLES, Loaded

MASK = "********"
_CREDENTIALS = re.compile(r"(?<=://)([^/@\s]*)@")
_QUERY_SECRET = re.compile(r"([?&](?:password|token|secret|key)=)[^&\s]+", re.IGNORECASE)


def show_settings(loaded: Loaded[Any], table: str) -> str:
    """A TOML text that lists every setting. Secrets are masked; a line's comment names its source."""
    sections: dict[str, list[str]] = {table: []}
    for key in schema_of(type(loaded.settings)).keys:
        value: Any = loaded.settings
        for part in key.path:
            value = getattr(value, part) if value is not None else None
        shared = key.path[0] in SHARED_TABLES and len(key.path) > 1
        section = key.path[0] if shared else table
        name = ".".join(key.path[1:] if shared else key.path)
        text = _text(_masked(key, value))
        line = f"{name} = {text}" if text is not None else f"# {name} is not set"
        sections.setdefault(section, []).append(
            f"{line}  # {loaded.origins.get(key.path, 'default')}" if text else line
        )
    return "\n\n".join("\n".join([f"[{section}]", *lines]) for section, lines in sections.items()) + "\n"


def mask_url(value: str) -> str:
    """A URL with its password, and anything that looks like one in its query, masked."""

    def credentials(found: re.Match[str]) -> str:
        user, colon, _ = found[1].partition(":")
        return f"{user}{colon}{MASK if colon else ''}@"

    return _QUERY_SECRET.sub(rf"\1{MASK}", _CREDENTIALS.sub(credentials, value))


def _masked(key: Key, value: Any) -> Any:
    if value is None:
        return None
    if key.secret:
        return MASK if value else value
    if isinstance(value, str):
        return mask_url(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked(key, item) for item in value]
    if isinstance(value, BaseModel):
        schema = schema_of(type(value))
        return {k.name: _masked(k, getattr(value, k.path[0])) for k in schema.keys if len(k.path) == 1}
    return value


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list():
            return "[" + ", ".join(_text(item) or '""' for item in value) + "]"
        case Mapping():
            inner = ", ".join(f"{_quoted(str(k))} = {_text(v)}" for k, v in value.items() if v is not None)
            return "{" + inner + "}"
        case SecretStr():
            return _quoted(MASK)
        case Path():
            return _quoted(str(value))
        case _:
            return _quoted(str(value))


def _quoted(text: str) -> str:
    escaped = "".join(
        c if c >= " " and c not in '"\\\x7f' else {'"': '\\"', "\\": "\\\\"}.get(c, f"\\u{ord(c):04x}") for c in text
    )
    return f'"{escaped}"'
