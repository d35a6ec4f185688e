"""The live view of a region: one writer (intent, reports, siblings, peers come in), read by decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.capacity import CapacityRow, InventoryNode, RegionObserved
from fleet.intent import HoldState, Intent
from fleet.report import NodeReport
from regional.fleetview import rows
from regional.fleetview.changes import changed, filtered_otherwise
from regional.fleetview.columns import PRICE, RATE, Columns
from regional.fleetview.endpoint import Endpoint, Ticket
from regional.fleetview.holds import node_hold
from regional.fleetview.members import Members
from regional.fleetview.node import Node
from regional.fleetview.peers import PeerProbe
from regional.fleetview.pool import Pool, Seat
from regional.fleetview.regions import PeerRegions
from regional.fleetview.rows import StateCounts
from regional.fleetview.settings import ViewSettings
from regional.fleetview.siblings import Siblings
from regional.fleetview.work import release, take

__all__ = ["FleetView", "ReportAnswer", "ReportVerdict", "StateCounts"]

FORGET_INTERVAL_SECONDS = 10.0


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


class FleetView:
    """Owned by one task. Everything a decision reads is in memory here; nothing waits."""

    def __init__(self, region: str, settings: ViewSettings | None = None) -> None:
        self.region = region
        self.settings = settings or ViewSettings()
        self.intent = Intent(region=region)
        self._columns = Columns(self.settings)
        self._siblings = Siblings(self.settings.sibling_ttl_seconds)
        self._members = Members(region, self.settings, self._columns, self._siblings)
        # The same tables as the parts own; they are changed in place, never replaced.
        self.nodes: dict[str, Node] = self._members.nodes
        """By uid."""
        self.endpoints: dict[str, Endpoint] = self._members.endpoints
        """By uid: all that may be chosen, and those gone that still have work of ours."""
        self.pools: dict[str, Pool] = self._columns.pools
        """By model."""
        self.timed: dict[str, Endpoint] = self._columns.timed
        """Endpoints whose standing changes with time alone."""
        self.peers = PeerRegions(self.settings)
        self.active: dict[str, Endpoint] = {}
        """Endpoints with work of ours."""
        self._lost_callbacks: list[Callable[[tuple[str, ...], str], None]] = []
        self._forgot_at = 0.0

    def set_panic_share(self, share: float) -> None:
        """Below this share of endpoints without an unproven sign against them, such signs are ignored."""
        self._columns.panic_share = share

    # What comes in

    def set_intent(self, intent: Intent, now: float) -> None:
        """Take a new intent whole. In-flight counts and what was seen live on. Costs what has changed, not what there is."""
        before, self.intent = self.intent, intent
        weights = {m.name: m.weights_gib for m in intent.models.values()}
        heavier = changed(self._columns.weights_gib, weights)
        self._columns.weights_gib = weights
        self.peers.keep(name for name in intent.regions if name != self.region)
        self._members.follow(intent, now)
        for model in heavier:
            if model in self.pools:
                self._columns.later(seat.endpoint for seat in self.pools[model].members.values())
        if filtered_otherwise(before, intent):
            for pool in self.pools.values():
                pool.masks.clear()
        self._lose_noted()

    def apply_report(self, report: NodeReport, now: float) -> ReportAnswer:
        """Take a node's full state, if newer than what is held. Identity (uid, zone) has been checked by the caller."""
        zone = self.intent.zones.get(report.zone)
        if zone is not None and zone.region != self.region:
            return ReportAnswer(ReportVerdict.WRONG_REGION)
        node = self.nodes.get(report.node_uid)
        if node is not None and node.order is not None and report.order <= node.order:
            return ReportAnswer(ReportVerdict.STALE)
        former = self._members.former_owners(report)
        if any(not self._members.silent(owner, now) for owner in former):
            return ReportAnswer(ReportVerdict.CONFLICT)
        for owner in former:
            self._members.forget(owner)
        refused = self._members.take_report(node, report, now)
        self._lose_noted()
        return ReportAnswer(ReportVerdict.ACCEPTED, tuple(refused))

    def set_sibling_load(self, router_uid: str, load: Mapping[str, tuple[int, float]], now: float) -> None:
        """A sibling's own in-flight and prompt tokens still to be read, by endpoint uid. Replaces its last word."""
        self._refresh_others(self._siblings.said(router_uid, load, now), now)

    def set_sibling_bans(self, router_uid: str, bans: Mapping[str, float], now: float) -> None:
        """Seconds that a sibling keeps off endpoints because they asked for it (``own_bans`` there)."""
        for uid, seconds in bans.items():
            endpoint = self.endpoints.get(uid)
            if endpoint is not None and 0.0 < seconds <= self.settings.ban_max_seconds:
                endpoint.banned_until = max(endpoint.banned_until, now + seconds)
                self.changed(endpoint)

    def set_region_observed(self, observed: RegionObserved, now: float) -> None:
        """The centre's latest aggregate of another region."""
        if observed.region != self.region:
            self.peers.observe(observed, now)

    def set_peer_probe(self, region: str, probe: PeerProbe, now: float) -> None:
        """What came of probing a peer region's router."""
        if region != self.region:
            self.peers.probed(region, probe, now)

    def tick(self, now: float, patience: float = 0.0) -> None:
        """Age what is held: siblings' words, long silent agents, slow starts. Call ten to twenty times a second.

        ``patience``: seconds that peer regions are given on top, because this router itself is late.
        """
        self.peers.patience = patience
        self._refresh_others(self._siblings.lapse(now), now)
        self.peers.tick(now)
        if now - self._forgot_at > FORGET_INTERVAL_SECONDS:
            self._forgot_at = now
            for node in list(self.nodes.values()):
                if node.reported and node.silent_seconds(now) > self.settings.forget_after_seconds:
                    self._members.forget(node)
            self._lose_noted()
        self._members.settle_holds()
        self._columns.refresh(self.endpoints, now)
        self.settle(now)

    # What goes out

    def own_load(self) -> dict[str, tuple[int, float]]:
        """This router's in-flight and unread prompt tokens by endpoint uid, only where there are any: for its siblings."""
        return {uid: (e.own, e.own_unread) for uid, e in self.active.items()}

    def own_bans(self, now: float) -> dict[str, float]:
        """Seconds left of the pauses that endpoints asked this router for: for its siblings."""
        return {uid: e.banned_until - now for uid, e in self.timed.items() if e.banned_until > now}

    def capacity_rows(self, now: float) -> tuple[CapacityRow, ...]:
        """One row per zone and model: for region reports and for peers that probe."""
        self.settle(now)
        return rows.capacity_rows(self.pools.values())

    def inventory(self, now: float) -> tuple[InventoryNode, ...]:
        """Every node with its devices and endpoints, by node uid. No API keys."""
        return rows.inventory(self.nodes.values(), now)

    def counts(self, now: float) -> StateCounts:
        """For the gauges of nodes, endpoints and GPUs by state."""
        return rows.counts(self.nodes.values(), self.endpoints.values(), now)

    def wanted(self, node_uid: str) -> tuple[bool, bool]:
        """(cordoned, draining) of a node, for its directive; holds on its zone and region included."""
        node = self.nodes.get(node_uid)
        hold = None if node is None else node_hold(node.uid, node.zone, self.intent, self.region)
        return hold is not None, hold is HoldState.DRAINING

    def subscribe_lost(self, callback: Callable[[tuple[str, ...], str], None]) -> None:
        """``callback(endpoint_uids, scope)`` is called at once when endpoints are given up."""
        self._lost_callbacks.append(callback)

    # What decisions and health write

    def take(
        self,
        seat: Seat,
        input_tokens: float,
        output_tokens: float,
        now: float,
        revoke: Callable[[], None] | None = None,
    ) -> Ticket:
        """Count one attempt as in flight until its ticket is given back."""
        endpoint = seat.endpoint
        ticket = take(seat, input_tokens, output_tokens, now, revoke)
        self.active[endpoint.uid] = endpoint
        self._columns.mark(endpoint, RATE if ticket.trial else PRICE)
        return ticket

    def release(self, ticket: Ticket, now: float) -> None:
        """Give a ticket back; a second time does nothing."""
        if not release(ticket, now):
            return
        endpoint = ticket.endpoint
        if endpoint.own == 0:
            self.active.pop(endpoint.uid, None)
            if endpoint.gone:
                self.endpoints.pop(endpoint.uid, None)
                return
        self._columns.mark(endpoint, RATE if ticket.trial else PRICE)

    def changed(self, endpoint: Endpoint) -> None:
        """Something other than its load changed: work its standing out anew before the next decision."""
        self._columns.changed(endpoint)

    def mark(self, endpoint: Endpoint) -> None:
        """Its load changed."""
        self._columns.mark(endpoint)

    def lose(self, endpoints: Iterable[Endpoint], scope: str) -> None:
        """Give endpoints up: their attempts without a first byte are revoked now, and all who asked are told."""
        lost = list(endpoints)
        for endpoint in lost:
            self.changed(endpoint)
        for callback in self._lost_callbacks:
            callback(tuple(e.uid for e in lost), scope)
        for endpoint in lost:
            for ticket in list(endpoint.pending):
                if ticket.revoke is not None:
                    ticket.revoke()

    def node_changed(self, node: Node) -> None:
        """The node's state changed: its endpoints, and those on its GPUs, stand differently."""
        for endpoint in node.endpoints.values():
            self._columns.changed(endpoint)
        self._members.judge_gpus(node)
        self._lose_noted()

    # What decisions read

    def settle(self, now: float) -> None:
        """Bring all columns up to date with what has happened."""
        self._columns.settle(now)

    def lay_out(self, pool: Pool, now: float) -> None:
        """Let a pool's newest members be chosen at once, not with the next layout."""
        self._columns.lay_out(pool, now)

    # Within

    def _refresh_others(self, uids: Iterable[str], now: float) -> None:
        for uid in uids:
            endpoint = self.endpoints.get(uid)
            if endpoint is not None:
                self._members.refresh_others(endpoint, now)

    def _lose_noted(self) -> None:
        """Give up, all together, what a piece of news has cost: so nothing is sent on to a place that is lost as well."""
        lost = self._members.lost()
        for scope in dict.fromkeys(scope for _, scope in lost):
            self.lose([e for e, s in lost if s == scope], scope)
