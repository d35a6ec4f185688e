"""YAML into plain values, remembering the line of each.

A narrow reading on purpose. Plain scalars follow the YAML 1.2 core schema, so that ``NO`` is Norway and not false, and dates
stay text. Anchors, aliases and tags are refused, and size and depth are bounded: no document can unfold into more than it
says. ``${NAME}`` in a value is replaced from the environment after parsing, so a value can never become structure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from fleet.errors import FieldError, InvalidInput

SIZE_LIMIT_BYTES = 16 * 1024 * 1024
DEPTH_LIMIT = 32

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(slots=True)
class YamlDocument:
    """One document: its value, and the line (from 1) of each part by JSON pointer."""

    value: Any
    lines: dict[str, int]
    line: int

    def line_of(self, pointer: str) -> int:
        """Line of the part that ``pointer`` names, or of the nearest part around it that is written."""
        while pointer and pointer not in self.lines:
            pointer = pointer.rpartition("/")[0]
        return self.lines.get(pointer, self.line)


@dataclass(slots=True)
class _Open:
    """A mapping or sequence being read."""

    value: dict[str, Any] | list[Any]
    pointer: str
    key: str | None = None
    """Of a mapping: the key whose value comes next."""
    seen: dict[str, int] = field(default_factory=dict)


def escape_pointer(part: str) -> str:
    """One reference token of an RFC 6901 pointer."""
    return part.replace("~", "~0").replace("/", "~1")


def read_yaml(text: str, source: str, environ: Mapping[str, str]) -> list[YamlDocument]:
    """All documents of ``text``; empty ones are left out. Raises InvalidInput with ``source`` and line."""
    if len(text) > SIZE_LIMIT_BYTES:
        raise InvalidInput([FieldError("", f"is larger than {SIZE_LIMIT_BYTES >> 20} MiB", source)])
    reader = _Reader(source, environ)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        hint = '; a variable inside braces or brackets wants quotes: "${NAME}"' if _unquoted(text, mark) else ""
        reader.errors.append(FieldError("", f"is not valid YAML: {error.problem or error.context}{hint}", where))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        reader.errors.append(FieldError("", f"is not valid YAML: {error.reason}", f"{source}:{line}"))
    except yaml.YAMLError as error:
        reader.errors.append(FieldError("", f"is not valid YAML: {' '.join(str(error).split())}", source))
    if reader.errors:
        raise InvalidInput(reader.errors)
    return reader.documents


class _Reader:
    """Builds documents from parser events with a stack of its own, so depth is ours to bound."""

    def __init__(self, source: str, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._stack: list[_Open] = []
        self._document = YamlDocument(None, {}, 1)
        self.documents: list[YamlDocument] = []
        self.errors: list[FieldError] = []

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        match event:
            case yaml.AliasEvent():
                self._stop(line, "aliases are not supported; write the value out")
            case yaml.ScalarEvent() | yaml.SequenceStartEvent() | yaml.MappingStartEvent() if event.anchor is not None:
                self._stop(line, "anchors are not supported; write the value out where it is wanted")
            case yaml.DocumentStartEvent():
                self._document = YamlDocument(None, {}, line)
            case yaml.DocumentEndEvent():
                if self._document.value is not None:
                    self.documents.append(self._document)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open({} if isinstance(event, yaml.MappingStartEvent) else [], line, event.tag)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._stack.pop()
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case _:
                pass  # start and end of the stream

    def _open(self, value: dict[str, Any] | list[Any], line: int, tag: str | None) -> None:
        if tag not in (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            self._stop(line, f"tag {tag} is not supported")
        if len(self._stack) >= DEPTH_LIMIT:
            self._stop(line, f"is nested deeper than {DEPTH_LIMIT} levels")
        if self._stack and isinstance(self._stack[-1].value, dict) and self._stack[-1].key is None:
            self._stop(line, "a key must be a plain word")
        self._stack.append(_Open(value, self._place(value, line)))

    def _scalar(self, event: Any, line: int) -> None:
        parent = self._stack[-1] if self._stack else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            key = str(event.value)
            if key in parent.seen:
                where = f"{parent.pointer}/{escape_pointer(key)}"
                self._note(where, line, f"is written twice, first on line {parent.seen[key]}")
            parent.seen.setdefault(key, line)
            parent.key = key
            self._document.lines[f"{parent.pointer}/{escape_pointer(key)}"] = line
            return
        self._place(self._value(event, line), line)

    def _place(self, value: Any, line: int) -> str:
        """Put ``value`` where the parser is now; its pointer."""
        if not self._stack:
            self._document.value = value
            self._document.line = line
            return ""
        parent = self._stack[-1]
        if isinstance(parent.value, list):
            pointer = f"{parent.pointer}/{len(parent.value)}"
            parent.value.append(value)
        else:
            key = parent.key or ""
            pointer = f"{parent.pointer}/{escape_pointer(key)}"
            parent.value[key] = value
            parent.key = None
        # Of a mapping's value the line of its key is kept: that is where a reader looks.
        self._document.lines.setdefault(pointer, line)
        return pointer

    def _value(self, event: Any, line: int) -> Any:
        text: str = event.value
        if event.tag not in (None, "!"):
            return self._tagged(event.tag, text, line)
        quoted = bool(event.style)  # plain is None from one parser and "" from the other
        if quoted or _VARIABLE.search(text):
            return self._substituted(text, line)
        return _plain(text)

    def _tagged(self, tag: str, text: str, line: int) -> Any:
        kind = tag.removeprefix("tag:yaml.org,2002:")
        value = self._substituted(text, line)
        wanted: tuple[type, ...]
        match kind:
            case "str":
                return value
            case "int":
                wanted = (int,)
            case "float":
                wanted = (int, float)
            case "bool":
                wanted = (bool,)
            case "null":
                wanted = (type(None),)
            case _:
                self._stop(line, f"tag {tag} is not supported")
                return None
        plain = _plain(value)
        if not isinstance(plain, wanted) or (isinstance(plain, bool) and bool not in wanted):
            self._note(self._here(), line, f"is not of the type its tag says, {kind}")
        return plain

    def _substituted(self, text: str, line: int) -> str:
        def replace(found: re.Match[str]) -> str:
            if found[1]:
                return found[0][1:]
            name = found[2]
            if not _NAME.fullmatch(name):
                self._note(self._here(), line, f"${{{name}}} is not a variable; write $${{{name}}} for the text itself")
                return ""
            value = self._environ.get(name)
            if value is None:
                self._note(self._here(), line, f"environment variable {name} is not set")
                return ""
            return value

        return _VARIABLE.sub(replace, text)

    def _here(self) -> str:
        if not self._stack:
            return ""
        parent = self._stack[-1]
        last = str(len(parent.value)) if isinstance(parent.value, list) else escape_pointer(parent.key or "")
        return f"{parent.pointer}/{last}"

    def _note(self, pointer: str, line: int, reason: str) -> None:
        self.errors.append(FieldError(pointer, reason, f"{self._source}:{line}"))

    def _stop(self, line: int, reason: str) -> None:
        self._note(self._here(), line, reason)
        raise InvalidInput(self.errors)


def _unquoted(text: str, mark: Any) -> bool:
    """True when the line at ``mark`` has a variable that YAML may have taken for a mapping."""
    return mark is not None and "${" in next(iter(text.split("\n")[mark.line : mark.line + 1]), "")


def _plain(text: str) -> Any:
    """A plain scalar by the YAML 1.2 core schema."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
