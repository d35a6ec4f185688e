"""A scanner for Prometheus text that reads only the families it is asked for.

A page of a busy engine has tens of kilobytes, is read several times a second and about ten of its families matter; a full
parser costs some fifty times as much. What it promises:

* whole names only: ``num_requests_waiting`` is not ``num_requests_waiting_by_reason``;
* a value that is no finite number is skipped and counted, as is a line that starts like a wanted sample and is none (case-M03);
* timestamps and exemplars are ignored; of two equal series the later one counts;
* ``prometheus_client.parser`` gives the same for every page it accepts (tests/agents).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

_LABELS = r"\{((?:[^\"}\n]|\"(?:[^\"\\\n]|\\.)*\")*)\}"
_LABEL = re.compile(r"[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*\"((?:[^\"\\]|\\.)*)\"[ \t]*(?:,|$)")
_ESCAPE = re.compile(r"\\(.)")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)\Z")


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a family: its labels as written, and its value."""

    raw_labels: str
    value: float

    def labels(self) -> dict[str, str]:
        """The labels, unescaped. Empty when there are none."""
        return {name: _unescape(value) for name, value in _LABEL.findall(self.raw_labels)}

    def label(self, name: str) -> str | None:
        return self.labels().get(name)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: "\n" if m.group(1) == "n" else m.group(1), text)


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted families of one page."""

    families: dict[str, list[Series]] = field(default_factory=dict)
    skipped: int = 0

    def series(self, *names: str) -> list[Series]:
        """The series of the first of ``names`` that is there: newer names first, so that both together do not count twice."""
        for name in names:
            found = self.families.get(name)
            if found:
                return found
        return []

    def total(self, *names: str, where: Callable[[Series], bool] | None = None) -> float | None:
        """Sum over series (data-parallel ranks, models); None when the family is absent or a value makes no sense."""
        return _fold(sum, self.series(*names), where)

    def largest(self, *names: str, where: Callable[[Series], bool] | None = None) -> float | None:
        """Largest over series: the fullest cache decides."""
        return _fold(max, self.series(*names), where)

    def count(self, *names: str, where: Callable[[Series], bool] | None = None) -> int | None:
        """``total`` as a whole number of requests."""
        total = self.total(*names, where=where)
        return None if total is None else round(total)

    def share(self, *names: str) -> float | None:
        """``largest`` as a share from 0 to 1; None when it is more than one."""
        value = self.largest(*names)
        return value if value is not None and value <= 1.0 + 1e-6 else None


def _fold(
    how: Callable[[list[float]], float], series: Iterable[Series], where: Callable[[Series], bool] | None
) -> float | None:
    values = [s.value for s in series if where is None or where(s)]
    if not values or min(values) < 0:
        return None
    return float(how(values))


class Scanner:
    """Reads the families ``names`` out of pages. Made once per kind of engine."""

    def __init__(self, names: Iterable[str]) -> None:
        wanted = sorted(set(names), key=len, reverse=True)
        alternatives = "|".join(re.escape(n) for n in wanted)
        self._line = re.compile(
            rf"^[ \t]*({alternatives})(?=[ \t{{]|$)(?:[ \t]*{_LABELS})?[ \t]*([^ \t\r\n{{}}\"]*)([^\n]*)$", re.MULTILINE
        )
        self._empty = not wanted

    def scan(self, text: str) -> Page:
        """The wanted families of a page; never raises, whatever the page holds."""
        if self._empty:
            return Page()
        families: dict[str, dict[str, float]] = {}
        skipped = 0
        for name, labels, value, rest in self._matches(text):
            number = _number(value)
            if number is None or not _plain_rest(rest):
                skipped += 1
                continue
            families.setdefault(name, {})[labels] = number
        return Page({n: [Series(raw, v) for raw, v in by.items()] for n, by in families.items()}, skipped)

    def _matches(self, text: str) -> Iterator[tuple[str, str, str, str]]:
        for match in self._line.finditer(text):
            name, labels, value, rest = match.groups(default="")
            yield name, labels, value, rest


def _number(text: str) -> float | None:
    if not _NUMBER.match(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _plain_rest(rest: str) -> bool:
    """After the value only a timestamp, an exemplar or nothing may stand."""
    rest = rest.strip()
    return not rest or rest.startswith("#") or bool(_NUMBER.match(rest.partition(" ")[0]))
