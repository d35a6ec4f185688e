"""Turns what happened into what people see: counters, log lines, and events for the control plane."""

from __future__ import annotations

from fleet.clock import Clock
from fleet.errors import InvalidInput
from fleet.process.logs import get_logger
from fleet.report import NodeReport
from regional.fleetview.view import ReportAnswer, ReportVerdict
from regional.health.actions import (
    Action,
    DeclareAlive,
    DeclareDead,
    DeclareDegraded,
    DeclareSuspect,
    Ejected,
    ProbeEndpoints,
    Readmitted,
)
from regional.metrics import RouterMetrics
from regional.sync.events import EventOutbox

QUIET_SECONDS = 30.0
"""The same complaint about the same thing is told at most this often; the counters count them all."""
_MAX_COMPLAINTS = 10_000


class Teller:
    """One per router. Its methods are quick and never raise."""

    def __init__(self, metrics: RouterMetrics, events: EventOutbox, clock: Clock) -> None:
        self._metrics = metrics
        self._events = events
        self._clock = clock
        self._log = get_logger("router")
        self._told: dict[tuple[str, str], float] = {}

    # Health

    def action(self, action: Action) -> None:
        """Something that health decided; probes are not for people."""
        match action:
            case DeclareSuspect():
                self._log.warning(
                    "node suspect",
                    node=action.node_name,
                    zone=action.zone,
                    silent_seconds=round(action.silent_seconds, 3),
                )
                self._events.add("NodeSuspect", "its reports stopped; its engines are asked", "node", action.node_name)
            case DeclareDegraded():
                self._log.warning("node degraded", node=action.node_name, zone=action.zone)
                message = "its agent is silent, its engines answer: kept, with a wider estimate"
                self._events.add("NodeDegraded", message, "node", action.node_name, "warning")
            case DeclareDead():
                self._metrics.failover(action.scope)
                self._log.error(
                    "given up",
                    scope=action.scope,
                    name=action.name,
                    zone=action.zone,
                    reason=action.reason,
                    endpoints=len(action.endpoint_uids),
                )
                reason = f"{action.scope.capitalize()}Dead"
                self._events.add(reason, action.reason, action.scope, action.name, "error")
            case DeclareAlive():
                self._log.info("alive", scope=action.scope, name=action.name, zone=action.zone)
                self._events.add(f"{action.scope.capitalize()}Alive", "it is back", action.scope, action.name)
            case Ejected():
                self._metrics.ejected(action.reason)
                self._log.warning(
                    "ejected", endpoint=action.name, reason=action.reason, seconds=round(action.seconds, 3)
                )
                self._events.add("EndpointEjected", action.reason, "endpoint", action.name, "warning")
            case Readmitted():
                self._log.info("readmitted", endpoint=action.name)
                self._events.add("EndpointReadmitted", "it takes work again", "endpoint", action.name)
            case ProbeEndpoints():
                return

    # Agents

    def report(self, report: NodeReport, answer: ReportAnswer) -> None:
        """What became of a node's report."""
        self._metrics.report(answer.verdict.value)
        if answer.verdict not in (ReportVerdict.ACCEPTED, ReportVerdict.STALE):
            self._complain("ReportRefused", report.node_name, answer.verdict.value)
        for line in answer.refused:
            self._complain("EndpointRefused", report.node_name, line)

    def agent_refused(self, reason: str, detail: str) -> None:
        """A stream or report was refused: who it was from is not proven, so nothing is said about a node."""
        self._metrics.agent_refused(reason)
        if self._due("agent", reason):
            self._log.warning("agent refused", reason=reason, detail=detail)

    def _complain(self, reason: str, node: str, detail: str) -> None:
        if self._due(reason, f"{node} {detail}"):
            self._log.warning("report not taken", node=node, reason=reason, detail=detail)
            self._events.add(reason, detail, "node", node, "warning")

    # Intent

    def snapshot_refused(self, reason: str) -> None:
        """Something was offered by the control plane and not taken."""
        self._metrics.snapshot_refused(reason)
        if self._due("snapshot", reason):
            self._log.warning("snapshot refused", reason=reason)
            message = f"a snapshot, delta or section was not taken: {reason}"
            self._events.add("SnapshotRefused", message, "region", self._events.region, "warning")

    def uplink_failed(self, what: str, address: str, why: str) -> None:
        if self._due(what, why):
            self._log.warning("control plane away", stream=what, address=address, why=why)

    def fleet_file_refused(self, error: InvalidInput) -> None:
        self._metrics.config_errors.inc()
        self._log.error("fleet file refused, the old one stays in force", errors=[str(e) for e in error.errors])

    def corrupt_snapshot(self, why: str) -> None:
        self._metrics.config_errors.inc()
        self._log.error("snapshot on disk refused", why=why)
        self._events.add(
            "SnapshotCorrupt", "the snapshot on disk was damaged and put aside", "router", "router", "error"
        )

    def disk_failed(self, error: OSError) -> None:
        if self._due("disk", error.strerror or type(error).__name__):
            self._log.error("the snapshot cannot be written to disk", error=error.strerror)

    def intent_applied(self, version: tuple[int, int], unread: list[str]) -> None:
        self._log.info("intent applied", epoch=version[0], version=version[1])
        if unread:
            self._metrics.config_errors.inc(len(unread))
            self._log.error("parts of the intent could not be read and are left out", parts=unread[:20])

    def intent_failed(self, version: tuple[int, int], error: Exception) -> None:
        """A version that is held could not be put into use; it is tried again, and the one before stays in force."""
        self._metrics.fault("intent")
        if self._due("intent", f"{version} {type(error).__name__}"):
            self._log.error("intent not applied", epoch=version[0], version=version[1], exc_info=error)
            message = f"version {version[0]}/{version[1]} could not be put into use: {type(error).__name__}; it is tried again"
            self._events.add("IntentNotApplied", message, "region", self._events.region, "error")

    def fault(self, part: str, error: BaseException | None) -> None:
        """A part of the router failed, or ended by itself, and is started again: a fault of ours."""
        self._metrics.fault(part)
        if self._due("fault", part):
            self._log.error("part failed, it is started again", part=part, exc_info=error)

    def shared_state(self, ok: bool, why: str) -> None:
        self._metrics.shared_connected.set(ok)
        if ok:
            self._log.info("shared state reached")
        else:
            self._log.warning("shared state away, siblings' load is unknown", why=why)

    def geo(self, message: str, ok: bool) -> None:
        if ok:
            self._log.info("geo", message=message)
        else:
            self._metrics.config_errors.inc()
            self._log.error("geo", message=message)

    def _due(self, kind: str, what: str) -> bool:
        """True when this was not told within the last half minute. What is remembered is bounded."""
        key, now = (kind, what[:200]), self._clock.monotonic()
        if now - self._told.get(key, -QUIET_SECONDS) < QUIET_SECONDS:
            return False
        if len(self._told) >= _MAX_COMPLAINTS:
            self._told.clear()
        self._told[key] = now
        return True
