"""The router's metrics: names that dashboards rely on, labels that are bounded, children that are bound once.

Other parts never see the registry: they call the methods here, or are handed a bound child.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from regional.request.steps import Outcome, RequestRecord
from regional.tally import Count, CountChild, Tally, TallyChild

MAX_MODELS = 50
"""Model names that get series of their own, in the order in which they are first asked for; the rest are ``other``."""
MAX_REQUEST_SERIES = 1_500
OTHER = "other"

_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0)
_DECISION_BUCKETS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01)
_WAIT_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_OUTCOMES: Mapping[Outcome, str] = {
    Outcome.OK: "ok",
    Outcome.CLIENT_ERROR: "client_error",
    Outcome.ABORTED: "aborted",
    Outcome.OVERLOADED: "shed",
    Outcome.REJECTED: "shed",
    Outcome.TIMEOUT_CONNECT: "timeout",
    Outcome.TIMEOUT_FIRST_BYTE: "timeout",
    Outcome.TIMEOUT_IDLE: "timeout",
    Outcome.TIMEOUT_TOTAL: "timeout",
}
"""Everything else is ``upstream_error``."""
_REJECTED_BY_CLIENT_FAULT = frozenset(
    {
        "model_not_found",
        "model_not_allowed",
        "wrong_task",
        "region_not_allowed",
        "context_length_exceeded",
        "second_hop",
    }
)
_REJECTED_BY_TIME = frozenset({"upstream_timeout", "deadline"})
_REJECTED_BY_UPSTREAM = frozenset({"upstream_reset", "upstream_auth"})


def outcome_label(record: RequestRecord) -> str:
    """One of ok, client_error, shed, limited, timeout, upstream_error, aborted."""
    if record.outcome is Outcome.REJECTED and record.reject_reason is not None:
        reason = record.reject_reason.value
        if reason in _REJECTED_BY_CLIENT_FAULT:
            return "client_error"
        if reason in _REJECTED_BY_TIME:
            return "timeout"
        return "upstream_error" if reason in _REJECTED_BY_UPSTREAM else "shed"
    return _OUTCOMES.get(record.outcome, "upstream_error")


class RouterMetrics:
    """All series of one router, in a registry of its own."""

    def __init__(self, region: str, version: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._region = region
        self._known: frozenset[str] = frozenset()
        self._models: set[str] = set()
        self._request_children: dict[tuple[str, str, str, str, str], CountChild] = {}
        self._first_token_children: dict[str, TallyChild] = {}
        self._duration_children: dict[str, TallyChild] = {}

        self._requests = Count(
            "headrace_requests",
            "Requests that are over, by the place that served them.",
            ("model", "tenant_class", "region", "entry_region", "outcome"),
            registry=registry,
        )
        self._duration = Tally(
            "headrace_request_duration_seconds",
            "From the request's head to its last byte.",
            ("model",),
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._first_token = Tally(
            "headrace_time_to_first_token_seconds",
            "From the request's head to the first byte of the answer's body.",
            ("model",),
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.decision_seconds = Tally(
            "headrace_routing_decision_seconds",
            "Time one routing decision took.",
            buckets=_DECISION_BUCKETS,
            registry=registry,
        )
        self.queue_wait_seconds = Histogram(
            "headrace_queue_wait_seconds",
            "Time a request was held because no place could take it.",
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.queue_depth = Gauge(
            "headrace_queue_depth", "Requests held because no place can take them.", registry=registry
        )
        self.inflight = Gauge("headrace_inflight", "Requests under way in this router.", registry=registry)
        self._retries = Counter(
            "headrace_retries",
            "Attempts after the first, by why the one before failed.",
            ("reason",),
            registry=registry,
        )
        self._ejections = Counter(
            "headrace_ejections", "Endpoints set aside, by reason.", ("reason",), registry=registry
        )
        self._failovers = Counter(
            "headrace_failovers", "Places given up: gpu, endpoint, node, zone or region.", ("scope",), registry=registry
        )
        self._tokens = Count("headrace_tokens", "Tokens as engines counted them.", ("direction",), registry=registry)
        self._tokens_in = self._tokens.labels("input")
        self._tokens_cached = self._tokens.labels("cached")
        self._tokens_out = self._tokens.labels("output")

        self.snapshot_version = Gauge("headrace_snapshot_version", "Version of the intent in use.", registry=registry)
        self.snapshot_epoch = Gauge("headrace_snapshot_epoch", "Epoch of the intent in use.", registry=registry)
        self.snapshot_age_seconds = Gauge(
            "headrace_snapshot_age_seconds", "Since the intent in use was known to be current.", registry=registry
        )
        self._snapshot_refused = Counter(
            "headrace_snapshot_rejections",
            "Snapshots, deltas or sections that were offered and not taken.",
            ("reason",),
            registry=registry,
        )
        self.controlplane_connected = Gauge(
            "headrace_controlplane_connected", "1 while the watch on a control plane is live.", registry=registry
        )
        self.shared_connected = Gauge(
            "headrace_shared_state_connected", "1 while sibling routers' state can be reached.", registry=registry
        )
        self.siblings = Gauge(
            "headrace_sibling_routers", "Other routers of the region heard lately.", registry=registry
        )
        self.late_seconds = Gauge(
            "headrace_router_late_seconds",
            "How late this router's own ticks have been lately; zero while it keeps time.",
            registry=registry,
        )
        self._peer_rtt = Gauge(
            "headrace_peer_rtt_seconds", "Round trip to each peer region that answers.", ("region",), registry=registry
        )
        self.agent_report_age_seconds = Gauge(
            "headrace_agent_report_age_seconds", "Age of the oldest report among live nodes.", registry=registry
        )
        self._reports = Counter(
            "headrace_agent_reports", "Node reports by what became of them.", ("verdict",), registry=registry
        )
        self._agents_refused = Counter(
            "headrace_agent_refusals",
            "Streams or reports of agents refused, by reason.",
            ("reason",),
            registry=registry,
        )
        self._nodes = Gauge("headrace_nodes", "Nodes by state.", ("state",), registry=registry)
        self._endpoints = Gauge("headrace_endpoints", "Endpoints by state.", ("state",), registry=registry)
        self._gpus = Gauge("headrace_gpus", "GPUs by state.", ("state",), registry=registry)
        self.config_errors = Counter(
            "headrace_config_errors", "Fleet files, settings or snapshots that were refused.", registry=registry
        )
        self.certificate_expiry = Gauge(
            "headrace_certificate_expiry_timestamp_seconds", "When the served certificate expires.", registry=registry
        )
        self._faults = Counter(
            "headrace_faults", "Parts of the router that failed and were started again.", ("part",), registry=registry
        )
        self.events_dropped = Gauge(
            "headrace_events_dropped", "Events lost because the control plane was away for too long.", registry=registry
        )
        Gauge("headrace_build_info", "1; the version is a label.", ("version", "process"), registry=registry).labels(
            version, "router"
        ).set(1)

    def set_models(self, names: Iterable[str]) -> None:
        """The models of the intent in use. Only these can be label values: a client's spelling never is one."""
        self._known = frozenset(names)

    # One request

    def request_over(self, record: RequestRecord) -> None:
        """Count a finished request. Called once for each, on the hot path: children are looked up by one dictionary get."""
        outcome = outcome_label(record)
        self._request_child(record.model, record.sla_class, record.serving_region, record.entry_region, outcome).inc()
        model = self._model_label(record.model)
        child = self._duration_children.get(model)
        if child is None:
            child = self._duration_children[model] = self._duration.labels(model)
        child.observe(record.seconds)
        if record.first_byte_seconds is not None:
            first = self._first_token_children.get(model)
            if first is None:
                first = self._first_token_children[model] = self._first_token.labels(model)
            first.observe(record.first_byte_seconds)
        usage = record.usage
        if usage.prompt_tokens:
            self._tokens_in.inc(usage.prompt_tokens)
        if usage.cached_tokens:
            self._tokens_cached.inc(usage.cached_tokens)
        if usage.completion_tokens:
            self._tokens_out.inc(usage.completion_tokens)

    def _request_child(self, model: str, tenant_class: str, region: str, entry_region: str, outcome: str) -> CountChild:
        model = self._model_label(model)
        key = (model, tenant_class, region, entry_region, outcome)
        child = self._request_children.get(key)
        if child is None:
            if len(self._request_children) >= MAX_REQUEST_SERIES:
                return self._requests.labels(OTHER, OTHER, OTHER, OTHER, outcome)
            child = self._requests.labels(model, tenant_class or "none", region or "none", entry_region, outcome)
            self._request_children[key] = child
        return child

    def _model_label(self, model: str) -> str:
        if model in self._models:
            return model
        if model not in self._known or len(self._models) >= MAX_MODELS:
            return OTHER
        self._models.add(model)
        return model

    def retried(self, reason: str) -> None:
        self._retries.labels(reason).inc()

    # What the shells see

    def failover(self, scope: str) -> None:
        self._failovers.labels(scope).inc()

    def ejected(self, reason: str) -> None:
        self._ejections.labels(reason).inc()

    def fault(self, part: str) -> None:
        self._faults.labels(part).inc()

    def snapshot_refused(self, reason: str) -> None:
        self._snapshot_refused.labels(reason).inc()

    def report(self, verdict: str) -> None:
        self._reports.labels(verdict).inc()

    def agent_refused(self, reason: str) -> None:
        self._agents_refused.labels(reason).inc()

    def set_counts(self, nodes: Mapping[str, int], endpoints: Mapping[str, int], gpus: Mapping[str, int]) -> None:
        """States that are absent now are zero, not gone: a graph must come down."""
        for gauge, counts in ((self._nodes, nodes), (self._endpoints, endpoints), (self._gpus, gpus)):
            for labels in [sample.labels for metric in gauge.collect() for sample in metric.samples]:
                if labels["state"] not in counts:
                    gauge.labels(labels["state"]).set(0)
            for state, number in counts.items():
                gauge.labels(state).set(number)

    def set_peer_rtts(self, rtts: Mapping[str, float]) -> None:
        """A region that does not answer has no round trip: its series goes."""
        self._peer_rtt.clear()
        for region, seconds in rtts.items():
            self._peer_rtt.labels(region).set(seconds)
