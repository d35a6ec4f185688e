"""The live view of a region: one writer (intent, reports, siblings, peers come in), read by decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.accelerator import AcceleratorState
from fleet.capacity import CapacityRow, InventoryNode, RegionObserved
from fleet.endpoint import EndpointPhase, EndpointReport, ServedModel
from fleet.intent import EndpointIntent, HoldState, Intent
from fleet.report import AgentPhase, NodeReport
from regional.fleetview import rows
from regional.fleetview.bounds import bounded, url_problem
from regional.fleetview.endpoint import Endpoint, Ticket
from regional.fleetview.gpus import GpuIndex
from regional.fleetview.holds import hold_of, node_hold
from regional.fleetview.node import Node, NodeState
from regional.fleetview.peers import PeerProbe
from regional.fleetview.pool import Pool, Seat
from regional.fleetview.regions import PeerRegions
from regional.fleetview.rows import StateCounts
from regional.fleetview.samples import read_sample, refresh_others
from regional.fleetview.settings import ViewSettings
from regional.fleetview.siblings import Siblings
from regional.fleetview.work import release, take
from regional.routing import pricing
from regional.routing.cost import throttling

__all__ = ["FleetView", "ReportAnswer", "ReportVerdict", "StateCounts"]

_PRICE, _RATE = 1, 2
LAYOUT_SECONDS, LAYOUT_SECONDS_PER_SEAT = 0.02, 2.5e-5
"""Least time between two layouts of a pool."""
UNKNOWN_SLOTS = 1_000_000
PROVEN_SECONDS = 1.0
"""A request that did well this lately outweighs a watcher that cannot reach the engine: busy is not dead."""
REFRESH_SECONDS = 0.5
"""Every endpoint is worked out anew this often even when nothing is heard of it."""


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
        self.nodes: dict[str, Node] = {}
        self.endpoints: dict[str, Endpoint] = {}
        """By uid: all that may be chosen, and those gone that still have work of ours."""
        self.pools: dict[str, Pool] = {}
        """By model."""
        self.gpus = GpuIndex()
        self.peers = PeerRegions(self.settings)
        self.active: dict[str, Endpoint] = {}
        """Endpoints with work of ours."""
        self.timed: dict[str, Endpoint] = {}
        """Endpoints whose standing changes with time alone: looked at with every tick."""
        self.panic_share = 0.5
        self._siblings = Siblings(self.settings.sibling_ttl_seconds)
        self._dirty: list[tuple[Endpoint, int]] = []
        self._weights_gib: dict[str, float | None] = {}
        self._lost_callbacks: list[Callable[[tuple[str, ...], str], None]] = []
        self._unlaid: dict[str, Pool] = {}
        self._refresh: list[Endpoint] = []
        self._refreshed_at = 0.0
        self._forgot_at = 0.0

    # What comes in

    def set_intent(self, intent: Intent, now: float) -> None:
        """Take a new intent whole. In-flight counts and what was seen live on."""
        self.intent = intent
        self._weights_gib = {m.name: m.weights_gib for m in intent.models.values()}
        self.peers.keep(name for name in intent.regions if name != self.region)
        self._declare_nodes()
        declared = {
            e.uid: e for e in intent.endpoints.values() if (node := intent.nodes.get(e.node)) and self._ours(node.zone)
        }
        for endpoint in list(self.endpoints.values()):
            if endpoint.declared and endpoint.uid not in declared:
                endpoint.declared = False
                self._remove(endpoint, now)
        for uid, spec in declared.items():
            self._declare(uid, spec, now)
        for pool in self.pools.values():
            pool.masks.clear()
        for endpoint in self.endpoints.values():
            endpoint.hold = hold_of(endpoint, intent, self.region, self.gpus)
            self.mark(endpoint, _RATE)

    def apply_report(self, report: NodeReport, now: float) -> ReportAnswer:
        """Take a node's full state, if newer than what is held. Identity (uid, zone) has been checked by the caller."""
        zone = self.intent.zones.get(report.zone)
        if zone is not None and zone.region != self.region:
            return ReportAnswer(ReportVerdict.WRONG_REGION)
        node = self.nodes.get(report.node_uid)
        if node is not None and node.order is not None and report.order <= node.order:
            return ReportAnswer(ReportVerdict.STALE)
        former = self._former_owners(report)
        if any(not self._silent(owner, now) for owner in former):
            return ReportAnswer(ReportVerdict.CONFLICT)
        for owner in former:
            self.forget(owner, now)
        if node is None:
            node = self.nodes[report.node_uid] = Node(report.node_uid, report.node_name, report.zone)
        moved = node.zone != report.zone
        gpus_before = node.gpus
        state_before = node.state
        node.accept(report, self.settings.lease_seconds(report.interval_seconds), now)
        node.came_from = state_before
        node.state = NodeState.DRAINING if report.phase is AgentPhase.DRAINING else NodeState.READY
        devices_changed = _devices_changed(gpus_before, node.gpus) or state_before is not node.state
        if devices_changed:
            self.gpus.own(node, gpus_before)
        refused = self._apply_endpoints(node, report, moved, now)
        if devices_changed:
            self._judge_gpus(node, now)
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

    def tick(self, now: float) -> None:
        """Age what is held: siblings' words, long silent agents, slow starts. Call ten to twenty times a second."""
        self._refresh_others(self._siblings.lapse(now), now)
        self.peers.tick(now)
        if now - self._forgot_at > 10.0:
            self._forgot_at = now
            for node in list(self.nodes.values()):
                if node.reported and node.silent_seconds(now) > self.settings.forget_after_seconds:
                    self.forget(node, now)
        self._refresh_some(now)
        for endpoint in self.timed.values():
            self.mark(endpoint, _RATE)
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
        self.mark(endpoint, _RATE if ticket.trial else _PRICE)
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
        self.mark(endpoint, _RATE if ticket.trial else _PRICE)

    def changed(self, endpoint: Endpoint) -> None:
        """Something other than its load changed: work its standing out anew before the next decision."""
        self.mark(endpoint, _RATE)
        self.timed[endpoint.uid] = endpoint

    def mark(self, endpoint: Endpoint, level: int = _PRICE) -> None:
        if endpoint.dirty < level:
            endpoint.dirty = level
            self._dirty.append((endpoint, level))

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

    def node_changed(self, node: Node, now: float) -> None:
        """The node's state changed: its endpoints, and those on its GPUs, stand differently."""
        for endpoint in node.endpoints.values():
            self.mark(endpoint, _RATE)
        self._judge_gpus(node, now)

    def forget(self, node: Node, now: float) -> None:
        """A node is gone for good, with all that it reported; what intent declares stays declared."""
        self.gpus.disown(node)
        for endpoint in list(node.endpoints.values()):
            endpoint.reported = False
            if not endpoint.declared:
                self._remove(endpoint, now)
        node.gpus = {}
        node.order = None
        node.lease = None
        node.state = NodeState.DECLARED
        if not node.in_intent and not node.endpoints:
            self.nodes.pop(node.uid, None)

    # What decisions read

    def settle(self, now: float) -> None:
        """Bring all columns up to date with what has happened."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            settings = self.settings
            for endpoint, level in dirty:
                if endpoint.dirty != level:
                    continue  # done, or to be done by a later and larger entry
                endpoint.dirty = 0
                if level == _PRICE:
                    for seat in endpoint.seats:
                        pricing.price(seat)
                    continue
                pricing.rate(
                    endpoint, self._weights_gib, settings.fresh_sample_seconds, settings.slow_start_seconds, now
                )
                if not endpoint.timed(now):
                    self.timed.pop(endpoint.uid, None)
            for pool in {
                seat.pool.model: seat.pool for e, level in dirty if level == _RATE for seat in e.seats
            }.values():
                pricing.watch_panic(pool, self.panic_share)
        if self._unlaid:
            self._lay_out(now)

    # Within

    def _lay_out(self, now: float) -> None:
        """Give new endpoints their columns. Many that come at once share one layout, rarer the larger the pool."""
        for pool in list(self._unlaid.values()):
            pause = LAYOUT_SECONDS + LAYOUT_SECONDS_PER_SEAT * len(pool.members)
            if pool.seats and now - pool.laid_out_at < pause:
                continue
            del self._unlaid[pool.model]
            pool.lay_out(now)
            for seat in pool.seats:
                pricing.price(seat)
            if not pool.members:
                self.pools.pop(pool.model, None)

    def _ours(self, zone: str) -> bool:
        known = self.intent.zones.get(zone)
        return known is not None and known.region == self.region

    def _silent(self, node: Node, now: float) -> bool:
        return node.lease is None or node.lease.lapsed(now)

    def _former_owners(self, report: NodeReport) -> list[Node]:
        """Other nodes that hold GPUs this report lists: the same machine before it was installed anew (case-G11)."""
        owners = {id(o): o for g in report.gpus if (o := self.gpus.owner(g.uuid)) and o.uid != report.node_uid}
        return list(owners.values())

    def _declare_nodes(self) -> None:
        for node in self.nodes.values():
            node.in_intent = False
        for spec in self.intent.nodes.values():
            if not self._ours(spec.zone):
                continue
            node = self.nodes.setdefault(spec.uid, Node(spec.uid, spec.name, spec.zone))
            node.in_intent = True
            node.declared_gpus = spec.gpus
            if not node.reported:
                node.name, node.zone = spec.name, spec.zone
        for node in list(self.nodes.values()):
            if not node.in_intent and not node.reported and not node.endpoints:
                del self.nodes[node.uid]

    def _declare(self, uid: str, spec: EndpointIntent, now: float) -> None:
        """An endpoint that intent writes down: known at once, whether or not anybody has seen it yet."""
        node = self.nodes[self.intent.nodes[spec.node].uid]
        zone = self.intent.zones[node.zone]
        if url_problem(spec.url, zone.endpoint_ranges, (), declared=True):
            if uid in self.endpoints:
                self._remove(self.endpoints[uid], now)
            return
        endpoint = self._known(uid, spec.name, node, now)
        endpoint.declared = True
        changed = endpoint.url != spec.url or endpoint.api_key != spec.api_key
        endpoint.name, endpoint.url, endpoint.api_key, endpoint.kind = spec.name, spec.url, spec.api_key, spec.engine
        endpoint.tensor_parallel = spec.tensor_parallel
        if spec.max_inflight is not None:
            endpoint.max_inflight = endpoint.slots = spec.max_inflight
        if spec.kv_tokens is not None:
            endpoint.kv_tokens = spec.kv_tokens
        if not endpoint.gpus_known:
            self.gpus.use(endpoint, tuple(g for g in spec.gpus if not g.isdigit()))
        self._serve(endpoint, spec.models, changed)
        self._equip(endpoint)

    def _known(self, uid: str, name: str, node: Node, now: float) -> Endpoint:
        """The row of an endpoint, new or as it was; it belongs to the node."""
        endpoint = self.endpoints.get(uid)
        if endpoint is None:
            endpoint = self.endpoints[uid] = Endpoint(uid, name, node, node.zone, now)
        elif endpoint.node is not node:
            endpoint.node.endpoints.pop(uid, None)
            endpoint.node = node
        endpoint.gone = False
        node.endpoints[uid] = endpoint
        return endpoint

    def _serve(self, endpoint: Endpoint, models: tuple[ServedModel, ...], changed: bool) -> None:
        """Seat the endpoint in the pools of exactly these models."""
        if models != endpoint.models or not endpoint.seats:
            for seat in endpoint.seats:
                pricing.leave(seat)
                seat.pool.remove(seat)
                self._unlaid[seat.model] = seat.pool
            endpoint.models = models
            endpoint.seats = []
            for served in {m.model: m for m in models}.values():
                pool = self.pools.get(served.model)
                if pool is None:
                    pool = self.pools[served.model] = Pool(served.model)
                endpoint.seats.append(pool.add(endpoint, served.served_as))
                self._unlaid[pool.model] = pool
        elif changed:
            for seat in endpoint.seats:
                seat.target = None
        self.mark(endpoint, _RATE)

    def _equip(self, endpoint: Endpoint) -> None:
        """Take over what its GPUs say of its speed, and which holds reach it through them."""
        products = self.gpus.products(endpoint)
        states = [s for uuid in endpoint.gpu_uuids if (s := self.gpus.state(uuid)) is not None]
        factor = max((throttling(s) for s in states), default=1.0)
        hold = hold_of(endpoint, self.intent, self.region, self.gpus)
        if (products, factor, hold) != (endpoint.gpu_products, endpoint.speed_factor, endpoint.hold):
            if products != endpoint.gpu_products:
                for seat in endpoint.seats:
                    seat.pool.masks.clear()
            endpoint.gpu_products, endpoint.speed_factor, endpoint.hold = products, factor, hold
            self.mark(endpoint, _RATE)

    def _apply_endpoints(self, node: Node, report: NodeReport, moved: bool, now: float) -> list[str]:
        """Take the report's endpoints over; what it no longer names is gone. Returns why some were left out."""
        zone = self.intent.zones.get(report.zone)
        ranges = () if zone is None else zone.endpoint_ranges
        refused: list[str] = []
        named: set[str] = set()
        for told in report.endpoints:
            existing = self.endpoints.get(told.uid)
            declared = existing is not None and existing.declared
            if not told.uid or told.uid in named:
                refused.append(f"endpoint {told.name}: has no uid of its own")
                continue
            if existing is not None and existing.node is not node and not existing.gone:
                refused.append(f"endpoint {told.name}: its uid belongs to node {existing.node.name}")
                continue
            checked = (told.url, ranges, report.addresses, declared)
            known_good = existing is not None and existing.url_checked == checked
            problem = "" if known_good else url_problem(told.url, ranges, report.addresses, declared=declared)
            if problem:
                refused.append(f"endpoint {told.name}: its address {problem}")
                continue
            named.add(told.uid)
            endpoint = self._known(told.uid, told.name, node, now)
            endpoint.url_checked = checked
            if moved or endpoint.zone != report.zone:
                self._move(endpoint, report.zone)
            self._apply_endpoint(endpoint, bounded(told), now)
        for endpoint in [e for e in node.endpoints.values() if e.uid not in named]:
            endpoint.reported = False
            if endpoint.declared:
                self.mark(endpoint, _RATE)
            else:
                self._remove(endpoint, now)
        return refused

    def _apply_endpoint(self, endpoint: Endpoint, told: EndpointReport, now: float) -> None:
        came_back = not endpoint.reported or endpoint.node.came_from in (NodeState.DEAD, NodeState.SUSPECT)
        before = endpoint.report
        if before is not None and not came_back and _same_but_load(before, told):
            endpoint.report = told
            self._take_sample(endpoint, told, now)
            return
        changed = (endpoint.url, endpoint.api_key) != (told.url, told.api_key)
        endpoint.report = told
        endpoint.reported = True
        endpoint.name, endpoint.url, endpoint.kind = told.name, told.url, told.kind
        endpoint.api_key = told.api_key or (endpoint.api_key if endpoint.declared else "")
        endpoint.tensor_parallel = told.tensor_parallel
        if told.max_inflight is not None or not endpoint.declared:
            endpoint.max_inflight = told.max_inflight or None  # none at once would be no engine at all: unknown
        endpoint.slots = endpoint.max_inflight or UNKNOWN_SLOTS
        endpoint.kv_tokens = told.kv_tokens if told.kv_tokens is not None else endpoint.kv_tokens
        if endpoint.context_limit != (told.context_tokens or None):
            endpoint.context_limit = told.context_tokens or None
            for seat in endpoint.seats:
                seat.pool.masks.clear()
        if told.gpus_known or not endpoint.declared:
            endpoint.gpus_known = told.gpus_known
            if endpoint.gpu_uuids != told.gpu_uuids:
                self.gpus.use(endpoint, told.gpu_uuids)
                changed = True
        restarted = told.engine_incarnation > endpoint.engine_incarnation > 0
        endpoint.engine_incarnation = told.engine_incarnation
        was_ready = endpoint.phase is EndpointPhase.READY
        endpoint.phase, endpoint.reason = told.phase, told.reason
        endpoint.reported_auth_failed = told.auth_failed
        endpoint.silent = False
        if endpoint.dead and endpoint.dead_cause == "node" and came_back:
            endpoint.dead = False
        if endpoint.phase is EndpointPhase.READY and (restarted or came_back or not was_ready):
            endpoint.slow_start_from = now
            self.timed[endpoint.uid] = endpoint
        self._serve(endpoint, told.models, changed)
        self._take_sample(endpoint, told, now)
        if changed or came_back:
            self._judge(endpoint)
        if told.phase is EndpointPhase.STOPPED and endpoint.pending:
            self.lose((endpoint,), "endpoint")

    def _take_sample(self, endpoint: Endpoint, told: EndpointReport, now: float) -> None:
        """What changes with every report."""
        if told.phase is EndpointPhase.UNREACHABLE:
            silent = not endpoint.proven(now, PROVEN_SECONDS)
            if silent is not endpoint.silent:
                endpoint.silent = silent
                self.mark(endpoint, _RATE)
        read_sample(endpoint, told.load, now)
        pricing.weigh_sample(endpoint, self.settings.fresh_sample_seconds, now)
        self._refresh_others((endpoint.uid,), now)

    def _move(self, endpoint: Endpoint, zone: str) -> None:
        endpoint.zone = zone
        for seat in endpoint.seats:
            seat.target = None
            seat.pool.changed = True
            self._unlaid[seat.model] = seat.pool

    def _remove(self, endpoint: Endpoint, now: float) -> None:
        """An endpoint is no longer part of the fleet. Streams there may finish; what has no first byte goes elsewhere."""
        for seat in endpoint.seats:
            pricing.leave(seat)
            seat.pool.remove(seat)
            self._unlaid[seat.model] = seat.pool
        endpoint.seats = []
        endpoint.models = ()
        endpoint.gone = True
        endpoint.reported = False
        endpoint.node.endpoints.pop(endpoint.uid, None)
        self.gpus.use(endpoint, ())
        self.timed.pop(endpoint.uid, None)
        if endpoint.own == 0:
            self.endpoints.pop(endpoint.uid, None)
        elif endpoint.pending:
            self.lose((endpoint,), "endpoint")

    def _judge_gpus(self, node: Node, now: float) -> None:
        """The node's devices may have changed: judge every endpoint that stands on them, and its own."""
        for endpoint in {id(e): e for e in (*node.endpoints.values(), *self.gpus.users_of(node))}.values():
            self._judge(endpoint)

    def _judge(self, endpoint: Endpoint) -> None:
        """Take over what its devices are now; when one has just failed it, the endpoint is given up."""
        problem = self.gpus.problem(endpoint)
        endpoint.gpu_problem = problem
        self._equip(endpoint)
        if bool(problem) == endpoint.gpu_down:
            return
        endpoint.gpu_down = bool(problem)
        self.mark(endpoint, _RATE)
        if problem:
            self.lose((endpoint,), "gpu")

    def _refresh_others(self, uids: Iterable[str], now: float) -> None:
        for uid in uids:
            endpoint = self.endpoints.get(uid)
            if endpoint is not None:
                mean = endpoint.seats[0].pool.mean_input_tokens if endpoint.seats else 0.0
                refresh_others(endpoint, self._siblings.words(uid, now), mean)
                self.mark(endpoint)

    def _refresh_some(self, now: float) -> None:
        """A share of all endpoints each time, so that all are looked at within ``REFRESH_SECONDS``."""
        if not self._refresh:
            if now - self._refreshed_at < REFRESH_SECONDS:
                return
            self._refreshed_at = now
            self._refresh = [e for e in self.endpoints.values() if now - e.rated_at >= REFRESH_SECONDS]
        share = max(64, len(self._refresh) // 8)
        for endpoint in self._refresh[-share:]:
            self.mark(endpoint, _RATE)
        del self._refresh[-share:]


def _devices_changed(before: dict[str, AcceleratorState], after: dict[str, AcceleratorState]) -> bool:
    """Whether anything about devices differs that endpoints depend on; readings alone do not count."""
    if before.keys() != after.keys():
        return True
    for uuid, old in before.items():
        new = after[uuid]
        if old.health is not new.health or old.product != new.product or old.parent_uuid != new.parent_uuid:
            return True
        if old.throttle_reasons != new.throttle_reasons or (
            new.throttle_reasons and old.sm_clock_mhz != new.sm_clock_mhz
        ):
            return True
    return False


def _same_but_load(before: EndpointReport, now: EndpointReport) -> bool:
    """Whether two reports of an endpoint differ in its load only: so it is with nearly all of them."""
    return (
        before.phase is now.phase
        and before.engine_incarnation == now.engine_incarnation
        and before.auth_failed is now.auth_failed
        and before.url == now.url
        and before.models == now.models
        and before.gpu_uuids == now.gpu_uuids
        and before.gpus_known is now.gpus_known
        and before.max_inflight == now.max_inflight
        and before.tensor_parallel == now.tensor_parallel
        and before.kv_tokens == now.kv_tokens
        and before.context_tokens == now.context_tokens
        and before.api_key == now.api_key
        and before.name == now.name
        and before.kind is now.kind
    )
