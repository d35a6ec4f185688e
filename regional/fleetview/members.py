"""Who is in the fleet: nodes, their GPUs and endpoints, as intent declares them and agents report them."""

from __future__ import annotations

from collections.abc import Container
from itertools import islice

from fleet.endpoint import EndpointPhase, EndpointReport, ServedModel
from fleet.intent import EndpointIntent, Intent
from fleet.report import AgentPhase, NodeReport
from regional.fleetview.bounds import bounded, bounded_load, url_problem
from regional.fleetview.changes import Changes, devices_changed, same_but_load
from regional.fleetview.columns import RATE, Columns
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.gpus import GpuIndex
from regional.fleetview.holds import hold_of, reached
from regional.fleetview.node import Node, NodeState
from regional.fleetview.samples import read_sample, refresh_others
from regional.fleetview.settings import ViewSettings
from regional.fleetview.siblings import Siblings
from regional.routing import pricing
from regional.routing.cost import throttling

_AWAY = (NodeState.DEAD, NodeState.SUSPECT)
HOLDS_AT_ONCE = 1_000
"""Endpoints that a hold on a zone or region reaches with one step; the rest follow with the next ticks."""
UNKNOWN_SLOTS = 1_000_000
PROVEN_SECONDS = 1.0
"""A request that did well this lately outweighs a watcher that cannot reach the engine: busy is not dead."""


class Members:
    def __init__(self, region: str, settings: ViewSettings, columns: Columns, siblings: Siblings) -> None:
        self._region = region
        self._settings = settings
        self._columns = columns
        self._siblings = siblings
        self._intent = Intent(region=region)
        self.nodes: dict[str, Node] = {}
        self.endpoints: dict[str, Endpoint] = {}
        """By uid: all that may be chosen, and those gone that still have work of ours."""
        self.gpus = GpuIndex()
        self._lost: list[tuple[Endpoint, str]] = []
        self._unsettled_holds: dict[str, Endpoint] = {}
        """Endpoints whose holds have to be looked up anew."""

    def lost(self) -> list[tuple[Endpoint, str]]:
        """Endpoints given up since the last call, and what died: ``gpu`` or ``endpoint``."""
        lost, self._lost = self._lost, []
        return lost

    def follow(self, intent: Intent, now: float) -> None:
        """Take a new intent: what it declares is there, what it no longer declares is gone, its holds apply.

        Only what differs from the intent before is looked at.
        """
        before, self._intent = self._intent, intent
        changes = Changes.between(before, intent, self._region)
        left = self._declare_nodes(before, changes)
        for uid in changes.endpoints:
            known = self.endpoints.get(uid)
            if self._declared_here(uid) is None and known is not None and known.declared:
                known.declared = False
                self._remove(known)
        for uid in changes.endpoints:
            spec = self._declared_here(uid)
            if spec is not None:
                self._declare(uid, spec, now)
        for node in left:
            if not node.in_intent and not node.reported and not node.endpoints:
                self.nodes.pop(node.uid, None)
        if changes.model_names:
            self._rename_models(changes.model_names)
        for endpoint in reached(changes, (before, intent), self.nodes, self.endpoints, self.gpus):
            self._unsettled_holds[endpoint.uid] = endpoint
        self.settle_holds()

    def settle_holds(self) -> None:
        """Apply the holds of intent to endpoints that they may have changed for: many at a time, but not without end."""
        waiting = self._unsettled_holds
        for uid in list(islice(waiting, HOLDS_AT_ONCE)):
            endpoint = waiting.pop(uid)
            hold = hold_of(endpoint, self._intent, self._region, self.gpus)
            if hold is not endpoint.hold:
                endpoint.hold = hold
                self._columns.mark(endpoint, RATE)

    def take_report(self, node: Node | None, report: NodeReport, now: float) -> list[str]:
        """Take a newer report over. Returns a line for each endpoint that was left out."""
        if node is None:
            node = self.nodes[report.node_uid] = Node(report.node_uid, report.node_name, report.zone)
        moved = node.zone != report.zone
        gpus_before, state_before, phase_before = node.gpus, node.state, node.phase
        node.accept(report, self._settings.lease_seconds(report.interval_seconds), now)
        node.came_from = state_before
        node.state = NodeState.DRAINING if report.phase is AgentPhase.DRAINING else NodeState.READY
        other_devices = devices_changed(gpus_before, node.gpus) or state_before is not node.state
        if other_devices:
            self.gpus.own(node, gpus_before)
        refused = self._take_endpoints(node, report, moved, now)
        if moved:
            self._unsettled_holds.update(node.endpoints)
            self.settle_holds()
        if other_devices:
            self.judge_gpus(node)
        if state_before is not node.state or phase_before is not node.phase:
            for endpoint in node.endpoints.values():
                self._columns.mark(endpoint, RATE)
        return refused

    def forget(self, node: Node) -> None:
        """A node is gone for good, with all that it reported; what intent declares stays declared."""
        self.gpus.disown(node)
        for endpoint in list(node.endpoints.values()):
            endpoint.reported = False
            if not endpoint.declared:
                self._remove(endpoint)
        node.gpus = {}
        node.order = None
        node.lease = None
        node.state = NodeState.DECLARED
        if not node.in_intent and not node.endpoints:
            self.nodes.pop(node.uid, None)

    def refresh_others(self, endpoint: Endpoint, now: float) -> None:
        """Work out anew what others have in flight there."""
        mean = endpoint.seats[0].pool.mean_input_tokens if endpoint.seats else 0.0
        refresh_others(endpoint, self._siblings.words(endpoint.uid, now), mean)
        if not endpoint.dirty:
            self._columns.mark(endpoint)

    def _ours(self, zone: str) -> bool:
        known = self._intent.zones.get(zone)
        return known is not None and known.region == self._region

    def silent(self, node: Node, now: float) -> bool:
        return node.lease is None or node.lease.lapsed(now)

    def former_owners(self, report: NodeReport) -> list[Node]:
        """Other nodes that hold GPUs this report lists: the same machine before it was installed anew (case-G11)."""
        owners = {id(o): o for g in report.gpus if (o := self.gpus.owner(g.uuid)) and o.uid != report.node_uid}
        return list(owners.values())

    def _declare_nodes(self, before: Intent, changes: Changes) -> list[Node]:
        """Write down the changed nodes. Returns those that are no longer declared."""
        left: list[Node] = []
        for name in changes.nodes:
            was = before.nodes.get(name)
            if was is not None and (node := self.nodes.get(was.uid)) is not None:
                node.in_intent = False
                left.append(node)
        for name in changes.nodes:
            spec = self._intent.nodes.get(name)
            if spec is None or not self._ours(spec.zone):
                continue
            node = self.nodes.get(spec.uid)
            if node is None:
                node = self.nodes[spec.uid] = Node(spec.uid, spec.name, spec.zone)
            node.in_intent = True
            if node.declared_gpus != spec.gpus:
                node.declared_gpus = spec.gpus
                for endpoint in node.endpoints.values():
                    self._equip(endpoint)
            if not node.reported:
                node.name, node.zone = spec.name, spec.zone
        return left

    def _declared_here(self, uid: str) -> EndpointIntent | None:
        """What intent says of an endpoint of this region."""
        spec = self._intent.endpoints.get(uid)
        node = None if spec is None else self._intent.nodes.get(spec.node)
        return spec if node is not None and self._ours(node.zone) else None

    def _rename_models(self, names: Container[str]) -> None:
        """Names and aliases of models have come or gone: endpoints that were told by them serve another model now."""
        for endpoint in list(self.endpoints.values()):
            spec = self._intent.endpoints.get(endpoint.uid) if endpoint.declared else None
            told = endpoint.report if endpoint.reported and not endpoint.declared else spec
            if told is not None and any(m.model in names for m in told.models):
                self._serve(endpoint, told.models, False)

    def _declare(self, uid: str, spec: EndpointIntent, now: float) -> None:
        """An endpoint that intent writes down: known at once, whether or not anybody has seen it yet."""
        written = self._intent.nodes[spec.node]
        node = self.nodes[written.uid]
        zone = self._intent.zones[written.zone]  # a node may still report from a zone that is gone
        if url_problem(spec.url, zone.endpoint_ranges, (), declared=True):
            if uid in self.endpoints:
                self._remove(self.endpoints[uid])
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
        """Seat the endpoint in the pools of exactly these models; one told by an alias is the model that has it."""
        known, aliases = self._intent.models, self._intent.aliases
        if any(m.model in aliases and m.model not in known for m in models):
            models = tuple(
                m if m.model in known else ServedModel(aliases.get(m.model, m.model), m.served_as) for m in models
            )
        if models != endpoint.models or not endpoint.seats:
            self._columns.unseat(endpoint)
            endpoint.models = models
            for served in {m.model: m for m in models}.values():
                self._columns.seat(endpoint, served.model, served.served_as)
        elif changed:
            for seat in endpoint.seats:
                seat.target = None
        self._columns.mark(endpoint, RATE)

    def _equip(self, endpoint: Endpoint) -> None:
        """Take over what its GPUs say of its speed, and which holds reach it through them."""
        products = self.gpus.products(endpoint)
        states = [s for uuid in endpoint.gpu_uuids if (s := self.gpus.state(uuid)) is not None]
        factor = max((throttling(s) for s in states), default=1.0)
        hold = hold_of(endpoint, self._intent, self._region, self.gpus)
        if (products, factor, hold) != (endpoint.gpu_products, endpoint.speed_factor, endpoint.hold):
            if products != endpoint.gpu_products:
                for seat in endpoint.seats:
                    seat.pool.masks.clear()
            endpoint.gpu_products, endpoint.speed_factor, endpoint.hold = products, factor, hold
            self._columns.mark(endpoint, RATE)

    def _take_endpoints(self, node: Node, report: NodeReport, moved: bool, now: float) -> list[str]:
        """Take the report's endpoints over; what it no longer names is gone. Returns why some were left out."""
        zone = self._intent.zones.get(report.zone)
        ranges = () if zone is None else zone.endpoint_ranges
        refused: list[str] = []
        named: set[str] = set()
        # In nearly all reports only loads have changed; what was checked for the last one then holds for this one too.
        where = (report.zone, ranges, report.addresses)
        settled = where == node.checked_where and node.came_from not in _AWAY
        node.checked_where = where
        for told in report.endpoints:
            existing = self.endpoints.get(told.uid)
            if settled and existing is not None and existing.node is node and told.uid not in named:
                before = existing.report
                if existing.reported and before is not None and same_but_load(before, told):
                    named.add(told.uid)
                    existing.report = told
                    self._take_sample(existing, told, now)
                    continue
            declared = existing is not None and existing.declared
            if not told.uid or told.uid in named:
                refused.append(f"endpoint {told.name}: has no uid of its own")
                continue
            if existing is not None and existing.node is not node and not existing.gone:
                refused.append(f"endpoint {told.name}: its uid belongs to node {existing.node.name}")
                continue
            problem = url_problem(told.url, ranges, report.addresses, declared=declared)
            if problem:
                refused.append(f"endpoint {told.name}: its address {problem}")
                continue
            named.add(told.uid)
            endpoint = self._known(told.uid, told.name, node, now)
            if moved or endpoint.zone != report.zone:
                endpoint.zone = report.zone
                self._columns.move(endpoint)
            self._take_endpoint(endpoint, bounded(told), now)
        for endpoint in [e for e in node.endpoints.values() if e.uid not in named]:
            endpoint.reported = False
            if endpoint.declared:
                self._columns.mark(endpoint, RATE)
            else:
                self._remove(endpoint)
        return refused

    def _take_endpoint(self, endpoint: Endpoint, told: EndpointReport, now: float) -> None:
        came_back = not endpoint.reported or endpoint.node.came_from in _AWAY
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
            self._columns.changed(endpoint)
        self._serve(endpoint, told.models, changed)
        self._take_sample(endpoint, told, now)
        if changed or came_back:
            self._judge(endpoint)
        if told.phase is EndpointPhase.STOPPED and endpoint.pending:
            self._lost.append((endpoint, "endpoint"))

    def _take_sample(self, endpoint: Endpoint, told: EndpointReport, now: float) -> None:
        """What changes with every report."""
        if told.phase is EndpointPhase.UNREACHABLE:
            silent = not endpoint.proven(now, PROVEN_SECONDS)
            if silent is not endpoint.silent:
                endpoint.silent = silent
                self._columns.mark(endpoint, RATE)
        if read_sample(endpoint, bounded_load(told.load), now):
            pricing.weigh_sample(endpoint, self._settings.fresh_sample_seconds, now)
            self.refresh_others(endpoint, now)

    def _remove(self, endpoint: Endpoint) -> None:
        """An endpoint is no longer part of the fleet. Streams there may finish; what has no first byte goes elsewhere."""
        self._columns.unseat(endpoint)
        self._columns.timed.pop(endpoint.uid, None)
        endpoint.models = ()
        endpoint.gone = True
        endpoint.reported = False
        endpoint.node.endpoints.pop(endpoint.uid, None)
        self.gpus.use(endpoint, ())
        if endpoint.own == 0:
            self.endpoints.pop(endpoint.uid, None)
        elif endpoint.pending:
            self._lost.append((endpoint, "endpoint"))

    def judge_gpus(self, node: Node) -> None:
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
        self._columns.mark(endpoint, RATE)
        if problem:
            self._lost.append((endpoint, "gpu"))
