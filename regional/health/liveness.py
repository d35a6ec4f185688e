"""Life and death: leases lapse, engines are asked directly, and only silence of both is death.

A node's states, as seen by one router:

    READY --lease lapses--> SUSPECT --some engine answers--> DEGRADED --none does any more--> DEAD
      ^                        |                                 ^                              |
      |                        +------ no engine answers --------|----------------------------> +
      +---- a newer report, from any state                       +------ an engine answers -----+

A node that said it restarts its agent goes to DEGRADED without suspicion. A closed report stream, a failed connection and a
hang are no verdicts, but reasons to ask the engines at once; an endpoint that does not answer and makes no progress is dead.

All of it allows for our own lateness (``lateness.py``): a probe that ran out of time while this router stood still is asked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fleet.report import AgentPhase, NodeReport
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.node import Node, NodeState
from regional.fleetview.view import FleetView
from regional.health.actions import (
    Action,
    DeclareAlive,
    DeclareDead,
    DeclareDegraded,
    DeclareSuspect,
    ProbeEndpoints,
    ProbeOutcome,
    ProbeTarget,
)
from regional.health.judge import Judge
from regional.health.lateness import Lateness
from regional.health.settings import HealthSettings

_SILENT_STATES = (NodeState.SUSPECT, NodeState.DEGRADED, NodeState.DEAD)
_COUNTED = (NodeState.READY, NodeState.DRAINING, NodeState.SUSPECT)
QUIET_SHARE = 0.5
"""Of its lease: a node that has not reported for so long has fallen quiet."""
ANSWER_SECONDS = 5.0
"""A probe that the shell has not answered by then is asked for again."""
UNSEEN_SECONDS = 1.0
"""A declared endpoint that nobody has reported by then is asked directly."""


@dataclass(slots=True)
class _Watch:
    """An endpoint under direct observation."""

    endpoint: Endpoint
    next_at: float
    asked_at: float | None = None
    allowed: float = 0.0
    """Lateness of ours that the present probe allows for, in seconds; below zero it is no evidence in any case."""
    judged_at: float = -1e18
    """When the last outcome came in."""
    misses: int = 0
    rounds: int = 0
    """Unanswered probes in a row while its node reported as ever."""
    silent_since: float | None = None
    """When the first of the probes was sent that have in a row not been answered."""


class Liveness:
    """Leases of nodes and direct probes of endpoints. Every method returns what is to be done and told now."""

    def __init__(
        self,
        view: FleetView,
        settings: HealthSettings | None = None,
        judge: Judge | None = None,
        lateness: Lateness | None = None,
    ) -> None:
        self.settings = settings or HealthSettings()
        self._lateness = lateness or Lateness(self.settings)
        self._view = view
        self._judge = judge or Judge(view, self.settings)
        self._watches: dict[str, _Watch] = {}
        self._suspected_at: dict[str, float] = {}
        """By uid of a node that is SUSPECT: since when."""
        self._unseen_looked_at = -1e18
        self._silent_at: dict[str, float] = {}
        """By uid of a node that reports as ever: when one of its endpoints last left a probe without an answer."""

    def on_report(self, report: NodeReport, now: float) -> tuple[Action, ...]:
        """A report that the view has accepted: the node's lease is renewed."""
        node = self._view.nodes.get(report.node_uid)
        if node is None:
            return ()
        came_from, node.came_from = node.came_from, node.state
        self._suspected_at.pop(node.uid, None)
        for endpoint in node.endpoints.values():
            if endpoint.silent and endpoint.uid not in self._watches:
                self.ask(endpoint, now)
        if came_from not in _SILENT_STATES:
            return ()
        for endpoint in node.endpoints.values():
            watch = self._watches.get(endpoint.uid)
            if watch is not None:  # what is under way was asked of a node that was out of reach
                watch.rounds, watch.silent_since, watch.allowed = 0, None, -inf
        self._view.node_changed(node)
        return (DeclareAlive("node", node.name, node.zone),)

    def on_stream_closed(self, node_uid: str, now: float) -> tuple[Action, ...]:
        """The node's report stream ended: no verdict, but a reason to ask its engines at once."""
        node = self._view.nodes.get(node_uid)
        if node is None or not node.reported:
            return ()
        node.stream_closed = True
        for endpoint in node.endpoints.values():
            self.ask(endpoint, now)
        told: tuple[Action, ...] = ()
        if self._restarts(node, now) and node.state not in _SILENT_STATES:
            told = self._degrade(node, now)
        return (*told, *self._due(now))

    def ask(self, endpoint: Endpoint, now: float) -> None:
        """Ask an endpoint at the next occasion, if it is not being asked already."""
        watch = self._watches.get(endpoint.uid)
        if watch is None:
            self._watches[endpoint.uid] = _Watch(endpoint, now)
        elif watch.asked_at is None:
            watch.next_at = min(watch.next_at, now)

    def on_probe(self, endpoint_uid: str, outcome: ProbeOutcome, now: float) -> tuple[Action, ...]:
        """The outcome of one probed endpoint, all tries together."""
        endpoint = self._view.endpoints.get(endpoint_uid)
        watch = self._watches.get(endpoint_uid)
        if endpoint is None or endpoint.gone:
            self._watches.pop(endpoint_uid, None)
            return ()
        asked_at = now
        if watch is not None:
            asked_at = now if watch.asked_at is None else watch.asked_at
            watch.asked_at = None
            if outcome is not ProbeOutcome.SILENT:
                watch.silent_since, watch.rounds = None, 0
            elif watch.silent_since is None:
                watch.silent_since = asked_at
            if not self._evidence(endpoint, watch, outcome, now):
                watch.next_at = now + self.settings.down_probe_interval_seconds
                return ()
            answered = outcome is ProbeOutcome.ANSWERED
            watch.judged_at = now
            watch.misses = 0 if answered else watch.misses + 1
            watch.next_at = now + self._interval(watch, answered)
        actions: list[Action] = []
        if outcome is ProbeOutcome.ANSWERED:
            self._answered(endpoint, now, actions)
        elif not self._progressed(endpoint, outcome, asked_at, now):
            self._unanswered(endpoint, outcome, now, actions)
        self._judge_node(endpoint.node, now, actions)
        return tuple(actions)

    def _evidence(self, endpoint: Endpoint, watch: _Watch, outcome: ProbeOutcome, now: float) -> bool:
        """Whether the outcome says anything about the endpoint, and not about us."""
        match outcome:
            case ProbeOutcome.ANSWERED | ProbeOutcome.REFUSED:
                return True
            case ProbeOutcome.UNASKED:
                return False
        if self._lateness.seconds(now) > watch.allowed + self.settings.late_grain_seconds:
            return False  # later than the probe allowed for: the answer may have been there
        node = endpoint.node
        if endpoint.dead or endpoint.silent or node.stream_closed or not node.reported or node.state in _SILENT_STATES:
            return True
        # Its node reports as ever, so only a hang is in question; and that takes patience.
        if self._lateness.strained(now):
            return False
        watch.rounds += 1
        self._silent_at[node.uid] = now
        if not self._progressed(endpoint, outcome, now, now):
            endpoint.suspect_until = max(endpoint.suspect_until, now + self.settings.quiet_seconds)
            self._view.changed(endpoint)
        if watch.rounds < self.settings.hang_rounds:
            return False
        since = now if watch.silent_since is None else watch.silent_since
        return now - since >= self.settings.crowd_patience_seconds or not self._in_company(node, now)

    def _in_company(self, node: Node, now: float) -> bool:
        """Whether engines of other nodes, whose agents are well too, are silent at the same time."""
        recent = now - self.settings.crowd_seconds
        self._silent_at = {uid: at for uid, at in self._silent_at.items() if at >= recent}
        return any(uid != node.uid for uid in self._silent_at)

    def _progressed(self, endpoint: Endpoint, outcome: ProbeOutcome, asked_at: float, now: float) -> bool:
        """Whether it has shown life while it was asked, or, when it is only silent, shortly before. Busy is not dead."""
        shown_at = max(endpoint.progress_at, endpoint.last_ok_at)
        if outcome is ProbeOutcome.SILENT:
            asked_at = min(asked_at, now - self.settings.quiet_seconds - self._lateness.patience(now))
        return shown_at > asked_at

    def tick(self, now: float) -> tuple[Action, ...]:
        """Lapsed leases, endpoints due for a probe, ejections that end. Ten to twenty times a second."""
        actions: list[Action] = []
        for node in self._lapsed(now):
            actions.extend(self._lapse(node, now))
        if now - self._unseen_looked_at > UNSEEN_SECONDS:
            self._unseen_looked_at = now
            for endpoint in self._view.endpoints.values():
                unseen = endpoint.declared and not endpoint.reported and not endpoint.gone
                if unseen and now - endpoint.seen_at > UNSEEN_SECONDS:
                    self.ask(endpoint, now)
        for node_uid in list(self._suspected_at):
            suspect = self._view.nodes.get(node_uid)
            if suspect is None:
                del self._suspected_at[node_uid]
            else:
                self._judge_node(suspect, now, actions)
        self._watch_progress(now, actions)
        self._judge.tick(now)
        actions.extend(self._due(now))
        actions.extend(self._judge.told())
        return tuple(actions)

    # A node falls silent

    def _lapsed(self, now: float) -> list[Node]:
        """Nodes whose leases lapse now. When nearly all do at once, that is more likely us, or what is between: they get longer."""
        s = self.settings
        reckoned = now - self._lateness.patience(now)
        nodes = self._view.nodes.values()
        found = [n for n in nodes if n.lease is not None and n.state not in _SILENT_STATES and n.lease.lapsed(reckoned)]
        if found:
            # They need not lapse in the same instant: those that are well into their leases count as well.
            shares = [
                n.lease.age_seconds(reckoned) / n.lease.duration_seconds
                for n in nodes
                if n.lease and n.state in _COUNTED
            ]
            quiet = sum(share > QUIET_SHARE for share in shares)
            if quiet >= s.crowd_nodes and quiet >= s.crowd_share * len(shares):
                reckoned = now - s.patience_max_seconds
                found = [n for n in found if n.lease is not None and n.lease.lapsed(reckoned)]
        return found

    def _lapse(self, node: Node, now: float) -> tuple[Action, ...]:
        for endpoint in node.endpoints.values():
            self.ask(endpoint, now)
        if self._restarts(node, now):
            return self._degrade(node, now)
        node.state = NodeState.SUSPECT
        self._suspected_at[node.uid] = now
        self._view.node_changed(node)
        return (DeclareSuspect(node.uid, node.name, node.zone, node.silent_seconds(now)),)

    def _restarts(self, node: Node, now: float) -> bool:
        """Its agent said that it goes away for a while, and the while is not over."""
        return node.phase is AgentPhase.RESTARTING and now <= node.restart_until

    def _degrade(self, node: Node, now: float) -> tuple[Action, ...]:
        node.state = NodeState.DEGRADED
        self._suspected_at.pop(node.uid, None)
        self._view.node_changed(node)
        return (DeclareDegraded(node.uid, node.name, node.zone),)

    def _judge_node(self, node: Node, now: float, actions: list[Action]) -> None:
        """A silent node is what its engines are: all dead, it is dead; one answers, it is degraded."""
        endpoints = list(node.endpoints.values())
        if node.state is NodeState.SUSPECT:
            since = self._suspected_at.get(node.uid, now)
            judged = [e for e in endpoints if (w := self._watches.get(e.uid)) is not None and w.judged_at >= since]
            if any(not e.dead for e in judged):
                actions.extend(self._degrade(node, now))
            elif len(judged) == len(endpoints) and (endpoints or now > since):
                self._bury(node, now, actions)
        elif node.state is NodeState.DEGRADED or (node.stream_closed and node.state is not NodeState.DEAD):
            if endpoints and all(e.dead for e in endpoints):
                self._bury(node, now, actions)
        elif node.state is NodeState.DEAD and any(not e.dead for e in endpoints):
            actions.extend(self._degrade(node, now))

    def _bury(self, node: Node, now: float, actions: list[Action]) -> None:
        node.state = NodeState.DEAD
        self._suspected_at.pop(node.uid, None)
        self._view.node_changed(node)
        uids = tuple(node.endpoints)
        actions[:] = [a for a in actions if not (isinstance(a, DeclareDead) and set(a.endpoint_uids) <= set(uids))]
        actions.append(
            DeclareDead("node", node.name, node.zone, uids, f"silent for {node.silent_seconds(now):.1f} s, engines too")
        )

    # An endpoint is asked

    def _answered(self, endpoint: Endpoint, now: float, actions: list[Action]) -> None:
        endpoint.answered_at = now
        endpoint.suspect_until = 0.0
        endpoint.silent = False
        if endpoint.dead:
            endpoint.dead = False
            endpoint.slow_start_from = now
            actions.append(DeclareAlive("endpoint", endpoint.name, endpoint.zone))
        self._view.changed(endpoint)

    def _unanswered(self, endpoint: Endpoint, outcome: ProbeOutcome, now: float, actions: list[Action]) -> None:
        """It neither answered nor made progress meanwhile."""
        node = endpoint.node
        alone = node.state not in _SILENT_STATES and not node.stream_closed
        endpoint.dead_cause = "endpoint" if alone else "node"
        if endpoint.dead:
            return
        endpoint.dead = True
        endpoint.dead_since = now
        self._view.lose((endpoint,), "endpoint" if alone else "node")
        reason = "does not answer" if outcome is ProbeOutcome.SILENT else "turns probes down"
        actions.append(
            DeclareDead("endpoint", endpoint.name, endpoint.zone, (endpoint.uid,), f"{reason} and makes no progress")
        )

    def _interval(self, watch: _Watch, answered: bool) -> float:
        """Seconds to the next probe; with many endpoints under observation each is asked more rarely."""
        s = self.settings
        crowd = max(1.0, len(self._watches) / s.quick_watches)
        if answered:
            return s.probe_interval_seconds * crowd
        slower = 2.0 ** min(max(0, watch.misses - s.quick_probes), 10)
        return min(max(s.dead_probe_interval_seconds, crowd), s.down_probe_interval_seconds * slower * crowd)

    def _watched(self, endpoint: Endpoint, now: float) -> bool:
        """Whether there is still a reason to ask it directly."""
        return (
            endpoint.dead
            or endpoint.silent
            or endpoint.suspect_until > now
            or endpoint.node.state in _SILENT_STATES
            or endpoint.node.stream_closed
            or (endpoint.declared and not endpoint.reported)
        )

    def _due(self, now: float) -> list[Action]:
        targets: list[ProbeTarget] = []
        allowed, patience = self._lateness.seconds(now), self._lateness.probe_patience(now)
        for uid, watch in list(self._watches.items()):
            endpoint = watch.endpoint
            if watch.asked_at is not None:
                if now - watch.asked_at < ANSWER_SECONDS:
                    continue
            elif now < watch.next_at:
                continue
            elif endpoint.gone or (watch.judged_at > 0 and not self._watched(endpoint, now)):
                del self._watches[uid]
                continue
            watch.asked_at = now
            watch.allowed = allowed
            zone = self._view.intent.zones.get(endpoint.zone)
            ranges = zone.endpoint_ranges if zone is not None else ()
            targets.append(ProbeTarget(uid, endpoint.url, endpoint.kind.value, endpoint.api_key, ranges))
        if not targets:
            return []
        timeout = self.settings.probe_timeout_seconds + patience
        return [ProbeEndpoints(tuple(targets), self.settings.probe_tries, timeout)]

    # An endpoint makes no progress

    def _watch_progress(self, now: float, actions: list[Action]) -> None:
        """Engine hang: work in flight, no progress, probe unanswered. Busy is not dead: progress of any kind counts."""
        s = self.settings
        patience, strained = self._lateness.patience(now), self._lateness.strained(now)
        for endpoint in list(self._view.active.values()):
            if not endpoint.pending or endpoint.dead:
                continue
            oldest = next(iter(endpoint.pending))
            still = now - max(endpoint.progress_at, oldest.sent_at) - patience
            if still <= s.hang_after_seconds + s.hang_patience * oldest.expected_seconds:
                continue
            self.ask(endpoint, now)
            frozen = still > s.hang_eject_seconds + s.hang_patience * oldest.expected_seconds
            if frozen and not strained and self._stands(endpoint, now) and self._judge.on_hang(endpoint, now):
                self._view.lose((endpoint,), "endpoint")

    def _stands(self, endpoint: Endpoint, now: float) -> bool:
        """Its counters, which do move when it works, have stood still although it says it runs requests (case-E01)."""
        fresh = endpoint.sampled_at is not None and now - endpoint.sampled_at < self.settings.hang_sample_seconds
        return fresh and endpoint.counters_move and bool(endpoint.sample.running)
