"""Label and field selectors, in the grammar that kubectl made usual.

Labels: ``a=b``, ``a==b``, ``a!=b``, ``a in (b,c)``, ``a notin (b,c)``, ``a`` (exists), ``!a`` (does not exist), joined by commas;
all must hold. ``!=`` and ``notin`` also hold where the label is missing.
Fields: ``spec.zone=eu-a``, ``status.observed.state!=ready``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from controlplane.api.problems import invalid

MAX_CHARS = 4096
_KEY = r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_TERM = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<set>{_KEY})\s+(?P<op>in|notin)\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)"
    rf"|(?P<key>{_KEY})\s*(?:(?P<eq>!=|==?)\s*(?P<value>{_VALUE}))?)\s*(?P<end>,|$)"
)
_FIELD = re.compile(r"^(?P<path>[A-Za-z_][A-Za-z0-9_.-]{0,200})(?P<eq>!=|==?)(?P<value>[^,\x00-\x1f]{0,256})$")


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: Literal["in", "notin", "exists", "absent"]
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "exists":
                return self.key in labels
            case "absent":
                return self.key not in labels
            case "in":
                return labels.get(self.key) in self.values
            case "notin":
                return labels.get(self.key) not in self.values


@dataclass(frozen=True, slots=True)
class LabelSelector:
    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(r.holds(labels) for r in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    terms: tuple[tuple[tuple[str, ...], bool, str], ...] = ()
    """(path, wanted equal, value)"""

    def matches(self, document: Mapping[str, Any]) -> bool:
        return all((_at(document, path) == value) is equal for path, equal, value in self.terms)


def parse_labels(text: str, pointer: str = "/query/label_selector") -> LabelSelector:
    """Raises Problem (422). The empty text matches everything."""
    if not text.strip():
        return LabelSelector()
    if len(text) > MAX_CHARS:
        raise invalid(pointer, f"has more than {MAX_CHARS} characters")
    requirements: list[Requirement] = []
    position = 0
    while True:
        term = _TERM.match(text, position)
        if term is None:
            raise invalid(
                pointer,
                f"cannot be read at character {position + 1}; write a=b, a!=b, a in (b,c), a notin (b), a or !a",
            )
        requirements.append(_requirement(term))
        position = term.end()
        if not term["end"]:
            return LabelSelector(tuple(requirements))


def _requirement(term: re.Match[str]) -> Requirement:
    if term["absent"]:
        return Requirement(term["absent"], "absent")
    if term["set"]:
        values = frozenset(v.strip() for v in term["values"].split(","))
        return Requirement(term["set"], "in" if term["op"] == "in" else "notin", values)
    if term["eq"]:
        return Requirement(term["key"], "notin" if term["eq"] == "!=" else "in", frozenset({term["value"]}))
    return Requirement(term["key"], "exists")


def parse_fields(text: str) -> FieldSelector:
    """Raises Problem (422). The empty text matches everything."""
    if not text.strip():
        return FieldSelector()
    if len(text) > MAX_CHARS:
        raise invalid("/query/field_selector", f"has more than {MAX_CHARS} characters")
    terms = []
    for part in text.split(","):
        found = _FIELD.match(part.strip())
        if found is None:
            raise invalid(
                "/query/field_selector", "cannot be read; write path=value or path!=value, such as spec.zone=eu-a"
            )
        terms.append((tuple(found["path"].split(".")), found["eq"] != "!=", found["value"]))
    return FieldSelector(tuple(terms))


def _at(document: Any, path: tuple[str, ...]) -> str | None:
    """The value at a path as text: ``true`` and ``false`` as in JSON; None when there is no such scalar."""
    for part in path:
        if not isinstance(document, Mapping) or part not in document:
            return None
        document = document[part]
    if isinstance(document, bool):
        return "true" if document else "false"
    return str(document) if isinstance(document, str | int | float) else None
