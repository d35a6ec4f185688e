"""The live view of a region: one writer (intent, reports, siblings, peers come in), read by decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.capacity import CapacityRow, InventoryNode, RegionObserved
from fleet.intent import Intent
from fleet.report import NodeReport
from regional.fleetview.peers import PeerProbe
from regional.fleetview.settings import ViewSettings


class ReportVerdict(StrEnum):
    """What became of a node report."""

    ACCEPTED = "accepted"
    STALE = "stale"
    """(incarnation, sequence) is not newer than what is held."""
    WRONG_REGION = "wrong_region"
    """Its zone belongs to another region."""
    CONFLICT = "conflict"
    """Another live node already owns these GPUs (case-G11)."""


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """``refused`` has a line for each endpoint left out: an address outside the zone, a uid of another node."""

    verdict: ReportVerdict
    refused: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return self.verdict is ReportVerdict.ACCEPTED


@dataclass(frozen=True, slots=True)
class StateCounts:
    """For gauges ``headrace_nodes{state}``, ``headrace_endpoints{state}``, ``headrace_gpus{state}``."""

    nodes: Mapping[str, int]
    endpoints: Mapping[str, int]
    gpus: Mapping[str, int]


class FleetView:
    """Owned by one task. Everything a decision reads is in memory here; nothing waits."""

    def __init__(self, region: str, settings: ViewSettings = ViewSettings()) -> None:
        raise NotImplementedError

    # What comes in

    def set_intent(self, intent: Intent, now: float) -> None:
        """Take a new intent whole. In-flight counts and what was seen live on."""
        raise NotImplementedError

    def apply_report(self, report: NodeReport, now: float) -> ReportAnswer:
        """Take a node's full state, if newer than what is held. Identity (uid, zone) has been checked by the caller."""
        raise NotImplementedError

    def set_sibling_load(self, router_uid: str, load: Mapping[str, tuple[int, float]], now: float) -> None:
        """A sibling's own in-flight and prompt tokens still to be read, by endpoint uid. Replaces its last word."""
        raise NotImplementedError

    def set_sibling_bans(self, router_uid: str, bans: Mapping[str, float], now: float) -> None:
        """Seconds that a sibling keeps off endpoints because they asked for it (``own_bans`` there)."""
        raise NotImplementedError

    def set_region_observed(self, observed: RegionObserved, now: float) -> None:
        """The centre's latest aggregate of another region."""
        raise NotImplementedError

    def set_peer_probe(self, region: str, probe: PeerProbe, now: float) -> None:
        """What came of probing a peer region's router."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Age what is held: siblings' words, long silent agents, slow starts. Call ten to twenty times a second."""
        raise NotImplementedError

    # What goes out

    def own_load(self) -> dict[str, tuple[int, float]]:
        """This router's in-flight and unread prompt tokens by endpoint uid, only where there are any: for its siblings."""
        raise NotImplementedError

    def own_bans(self, now: float) -> dict[str, float]:
        """Seconds left of the pauses that endpoints asked this router for: for its siblings."""
        raise NotImplementedError

    def capacity_rows(self, now: float) -> tuple[CapacityRow, ...]:
        """One row per zone and model: for region reports and for peers that probe."""
        raise NotImplementedError

    def inventory(self, now: float) -> tuple[InventoryNode, ...]:
        """Every node with its devices and endpoints, by node uid. No API keys."""
        raise NotImplementedError

    def counts(self, now: float) -> StateCounts:
        raise NotImplementedError

    def wanted(self, node_uid: str) -> tuple[bool, bool]:
        """(cordoned, draining) of a node, for its directive; holds on its zone and region included."""
        raise NotImplementedError

    def subscribe_lost(self, callback: Callable[[tuple[str, ...], str], None]) -> None:
        """``callback(endpoint_uids, scope)`` is called at once when endpoints are given up."""
        raise NotImplementedError
