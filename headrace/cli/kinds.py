"""Kinds as people write them: ``region``, ``regions``, ``node/eu-west-a-1``."""

from __future__ import annotations

from fleet.resources.kinds import KINDS
from headrace.cli.errors import USAGE, CliError

# Kinds that a file cannot hold, beside those of fleet.resources.kinds.
_API_ONLY = {"gpu": "gpus", "join-token": "join-tokens", "admin-token": "admin-tokens"}
SINGULAR_TO_PLURAL: dict[str, str] = {name: kind.plural for name, kind in KINDS.items()} | _API_ONLY
PLURAL_TO_SINGULAR: dict[str, str] = {plural: name for name, plural in SINGULAR_TO_PLURAL.items()}
HOLDABLE = ("gpu", "endpoint", "node", "zone", "region")


def plural_of(kind: str) -> str:
    """The plural, as paths have it. Raises CliError (usage) for an unknown kind."""
    word = kind.lower().replace("_", "-")
    word = word if word in PLURAL_TO_SINGULAR else SINGULAR_TO_PLURAL.get(word, "")
    if not word:
        raise CliError(f"unknown kind {kind!r}; known are {', '.join(SINGULAR_TO_PLURAL)}", USAGE)
    return word


def kind_and_name(kind: str, name: str | None) -> tuple[str, str | None]:
    """``("nodes", "a")`` from ``nodes a``, ``node a`` or ``node/a``."""
    if "/" in kind:
        if name is not None:
            raise CliError(f"{kind} already names one resource; {name} is one too many", USAGE)
        kind, _, name = kind.partition("/")
    return plural_of(kind), name


def held(target: str) -> tuple[str, str]:
    """(plural, name) of what ``cordon`` and ``drain`` act on; a bare name is a node."""
    kind, slash, name = target.partition("/")
    if not slash:
        return "nodes", target
    plural = plural_of(kind)
    if PLURAL_TO_SINGULAR[plural] not in HOLDABLE or not name:
        raise CliError(f"{target}: must be KIND/NAME with KIND one of {', '.join(HOLDABLE)}", USAGE)
    return plural, name
