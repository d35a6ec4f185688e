"""Which parts of an offered snapshot are believed.

A publisher may be wrong in ways that a digest cannot show: a sync that failed and came out empty (case-X07), a filter that lost
half the fleet. Such a section keeps its old members and an event is raised. Keys, tenants, holds, classes and prices always
apply: a revocation or a cordon must never wait for somebody's approval. What exists on both sides is always brought up to date,
so a changed residency applies in a kept section too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.snapshot import SECRETS_KIND, IntentObject

GUARDED_KINDS = frozenset({"region", "zone", "link", "node", "model", "endpoint", "route", "policy", "deployment"})
"""Sections that can be implausible. Any other kind applies as it comes."""

MAX_SHRINK_SHARE = 0.3
SHRINK_FLOOR = 10
"""Sections with fewer members may lose any share of them at once, short of all: that is how small fleets are edited."""
MAX_GROWTH_FACTOR = 20
GROWTH_FLOOR = 500
MAX_MEMBERS = 200_000
"""Of one kind. Far above a cell of 10,000 GPUs; a list this long is a fault of its sender."""

Objects = Mapping[tuple[str, str], IntentObject]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A section that was not believed."""

    kind: str
    reason: str
    """``empty``, ``smaller`` or ``oversized``."""
    held: int
    offered: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason} (held {self.held}, offered {self.offered})"


def sift(held: Objects, offered: Objects, *, confirmed: bool = False) -> tuple[Objects, tuple[Rejection, ...]]:
    """What to use of ``offered`` when ``held`` is in use, and the sections that were not believed.

    Taking away a single object is an act, not an accident, and is always believed. ``confirmed`` says that an operator has
    approved the change; only the absolute size limit still holds then. Returns ``offered`` itself when all is believed.
    """
    before, after = _by_kind(held), _by_kind(offered)
    rejections: list[Rejection] = []
    merged: dict[tuple[str, str], IntentObject] | None = None
    for kind in sorted(before.keys() | after.keys()):
        old, new = before.get(kind, {}), after.get(kind, {})
        reason = _implausible(kind, old, new, confirmed)
        if reason is None:
            continue
        rejections.append(Rejection(kind, reason, len(old), len(new)))
        merged = dict(offered) if merged is None else merged
        if reason == "oversized":
            for key in new.keys() - old.keys():
                del merged[key]
        for key in old.keys() - new.keys():
            merged[key] = old[key]
    return (offered if merged is None else merged), tuple(rejections)


def _by_kind(objects: Objects) -> dict[str, dict[tuple[str, str], IntentObject]]:
    sections: dict[str, dict[tuple[str, str], IntentObject]] = {}
    for key, obj in objects.items():
        sections.setdefault(obj.kind, {})[key] = obj
    return sections


def _implausible(kind: str, old: Objects, new: Objects, confirmed: bool) -> str | None:
    if kind == SECRETS_KIND:
        # Without peppers and keys nobody can be authenticated: never what anybody wants.
        return "empty" if old and not new else None
    if kind not in GUARDED_KINDS:
        return None
    if len(new) > MAX_MEMBERS:
        return "oversized"
    if confirmed:
        return None
    if len(new) > GROWTH_FLOOR and old and len(new) > MAX_GROWTH_FACTOR * len(old):
        return "oversized"
    gone = len(old.keys() - new.keys())
    if gone <= 1:
        return None
    if not new:
        return "empty"
    if len(old) >= SHRINK_FLOOR and len(new) < (1 - MAX_SHRINK_SHARE) * len(old):
        return "smaller"
    return None
