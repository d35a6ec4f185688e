"""What health asks of its shell, and what it tells people. Values; the shell carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProbeOutcome(StrEnum):
    """What came of asking one endpoint, all tries together."""

    ANSWERED = "answered"
    """HTTP with a status below 500, in time."""
    REFUSED = "refused"
    """None of the tries was answered, and one was turned down: refused, reset, a 5xx, not HTTP. However late we are, it is so."""
    SILENT = "silent"
    """Nothing came in time."""
    UNASKED = "unasked"
    """It could not be asked, for a reason of our own, such as too few file descriptors."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """One endpoint to be asked directly whether it is alive."""

    endpoint_uid: str
    url: str
    kind: str
    """Engine kind, for the path to ask (``fleet.endpoint.EngineKind``)."""
    api_key: str = ""
    ranges: tuple[str, ...] = ()
    """Networks that a name in ``url`` must lead into; none for no limit."""

    def __repr__(self) -> str:
        return f"ProbeTarget({self.endpoint_uid!r}, {self.url!r})"


@dataclass(frozen=True, slots=True)
class ProbeEndpoints:
    """Ask each of these directly, side by side: up to ``tries`` tries of ``timeout_seconds`` each, the first answer counts.

    Report each outcome once with ``on_probe``; until then the endpoint is not asked for again.
    """

    targets: tuple[ProbeTarget, ...]
    tries: int = 2
    timeout_seconds: float = 0.15


@dataclass(frozen=True, slots=True)
class DeclareSuspect:
    """A node fell silent; its endpoints take no new work where there is a choice, and are being probed."""

    node_uid: str
    node_name: str
    zone: str
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class DeclareDegraded:
    """A silent node whose engines answer: kept, with a wider estimate."""

    node_uid: str
    node_name: str
    zone: str


@dataclass(frozen=True, slots=True)
class DeclareDead:
    """These endpoints are given up. Their attempts without a first byte have been revoked."""

    scope: str
    """``gpu``, ``endpoint`` or ``node``: what died; for ``headrace_failovers_total``."""
    name: str
    zone: str
    endpoint_uids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DeclareAlive:
    """A node or endpoint that was suspect, degraded or dead is back."""

    scope: str
    name: str
    zone: str


@dataclass(frozen=True, slots=True)
class Ejected:
    """An endpoint does worse than its peers and is set aside; for ``headrace_ejections_total``."""

    endpoint_uid: str
    name: str
    reason: str
    """``consecutive_failures``, ``half_open_failure``, ``hang``, ``auth_failed`` or ``retry_after``."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Readmitted:
    """An ejected endpoint takes work again."""

    endpoint_uid: str
    name: str


Action = ProbeEndpoints | DeclareSuspect | DeclareDegraded | DeclareDead | DeclareAlive | Ejected | Readmitted
