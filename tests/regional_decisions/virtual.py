"""A small fleet on a virtual clock: the real decision code of several routers, nothing else. Same seed, same run.

Engines take some time for each request; nodes report every 0.4 s; routers tick every 50 ms and probe one another every second.
What happens to a place (``dead``, ``failed_gpus``, ``cut``) decides what its routers see.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.accelerator import DeviceHealth
from fleet.endpoint import EndpointReport, EngineLoad
from fleet.locality import Origin
from fleet.report import AgentPhase, NodeReport
from fleet.request import RequestFacts, Usage
from regional.fleetview.peers import PeerProbe
from regional.fleetview.view import FleetView
from regional.health.actions import (
    Action,
    DeclareAlive,
    DeclareDead,
    DeclareDegraded,
    DeclareSuspect,
    ProbeEndpoints,
    ProbeOutcome,
)
from regional.request.core import Core
from regional.request.life import Life
from regional.request.steps import AttemptResult, Outcome, Reject, SendToEndpoint, SendToRegion, Step, WaitFor
from regional.routing.registry import builtin
from tests.regional_decisions.fleets import REGIONS, endpoint, facts, gpu, intent

REPORT_SECONDS = 0.4
TICK_SECONDS = 0.05
PROBE_PEERS_SECONDS = 1.0
WAN_SECONDS = 0.04
LAN_SECONDS = 0.0005


@dataclass
class Node:
    """A simulated node and what has befallen it."""

    name: str
    region: str
    zone: str
    endpoints: tuple[str, ...]
    dead: bool = False
    """Its process was killed: connections are refused, running ones reset."""
    cut: bool = False
    """Its zone is cut off: nothing is refused, nothing answers."""
    failed_gpus: set[str] = field(default_factory=set)
    incarnation: int = 1
    sequence: int = 0


@dataclass(eq=False)
class Client:
    """One request from the client's side."""

    uid: str
    origin: Origin
    began_at: float
    done: bool = False
    ok: bool = False
    streaming: bool = False
    """Its first byte has come, so nothing may be tried again."""
    tries: int = 0

    @property
    def failed(self) -> bool:
        """Failed although it had got no byte."""
        return self.done and not self.ok and not self.streaming


@dataclass(eq=False)
class Attempt:
    """One attempt of a gateway, so that a revocation can break it off."""

    router: Router
    life: Life | None = None
    over: bool = False


class Router:
    def __init__(self, world: World, region: str, seed: int) -> None:
        self.world = world
        self.region = region
        self.core = Core(FleetView(region), random.Random(seed), registry=builtin())
        self.core.view.set_intent(intent(region=region), world.now)
        self.dead = False
        self.waiting: dict[Client, list[str]] = {}
        """Clients connected to it, and the routers they know."""

    def carry_out(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, ProbeEndpoints):
                for target in action.targets:
                    self._probe(target.endpoint_uid, action.tries * action.timeout_seconds)
            elif isinstance(action, DeclareSuspect | DeclareDegraded | DeclareDead | DeclareAlive):
                self.world.tell(self.region, action)

    def _probe(self, uid: str, silence: float) -> None:
        node = self.world.node_of(uid)
        outcome = ProbeOutcome.ANSWERED
        if node.cut:
            outcome = ProbeOutcome.SILENT
        elif node.dead:
            outcome = ProbeOutcome.REFUSED
        seconds = silence if node.cut else 2 * LAN_SECONDS
        self.world.after(seconds, lambda: self.carry_out(self.core.on_probe(uid, outcome, self.world.now)))


class World:
    def __init__(self, seed: int, zones: int = 2, nodes: int = 2, gpus: int = 4, service_seconds: float = 0.25) -> None:
        self.now = 1000.0
        self.rng = random.Random(seed)
        self.service_seconds = service_seconds
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.sends: list[tuple[float, str, str]] = []
        """(time, request, endpoint) of every attempt that reached the wire."""
        self.told: list[tuple[float, str, Action]] = []
        self.clients: list[Client] = []
        self.nodes: dict[str, Node] = {}
        self._of: dict[str, Node] = {}
        self.routers: dict[str, Router] = {}
        self._running: dict[str, list[Attempt]] = {}
        """Attempts an engine is at work on, by endpoint."""
        self._on_failure: dict[Attempt, Callable[[AttemptResult], None]] = {}
        for region in REGIONS:
            for letter in "abc"[:zones]:
                for n in range(1, nodes + 1):
                    name = f"{region}-{letter}{n}"
                    uids = tuple(f"{name}/{g}" for g in range(gpus))
                    node = self.nodes[name] = Node(name, region, f"{region}-{letter}", uids)
                    self._of.update(dict.fromkeys(uids, node))
        for i, region in enumerate(REGIONS):
            self.routers[region] = Router(self, region, seed + i)
        for node in self.nodes.values():
            self.after(self.rng.random() * REPORT_SECONDS, lambda node=node: self._report(node))  # type: ignore[misc]
        for router in self.routers.values():
            self.after(self.rng.random() * TICK_SECONDS, lambda router=router: self._tick(router))  # type: ignore[misc]
            self.after(self.rng.random() * 0.1, lambda router=router: self._probe_peers(router))  # type: ignore[misc]
        self.run(8.0)

    # Time

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), do))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = end

    def tell(self, region: str, action: Action) -> None:
        self.told.append((self.now, region, action))

    # The fleet

    def node_of(self, uid: str) -> Node:
        return self._of[uid]

    def kill(self, node: Node) -> None:
        """Its process dies: streams to its router close, running requests are reset."""
        node.dead = True
        router = self.routers[node.region]
        self.after(
            LAN_SECONDS,
            lambda: router.carry_out(router.core.on_stream_closed(node.name, self.now)) if not router.dead else None,
        )
        for uid in node.endpoints:
            for attempt in self._running.pop(uid, []):
                self._fail(attempt, Outcome.RESET)

    def revive(self, node: Node) -> None:
        node.dead = node.cut = False
        node.failed_gpus.clear()
        node.incarnation += 1
        node.sequence = 0

    def lose_region(self, region: str) -> None:
        """Router and nodes go dark together."""
        router = self.routers[region]
        router.dead = True
        for node in self.nodes.values():
            if node.region == region:
                node.dead = True
                for uid in node.endpoints:
                    self._running.pop(uid, None)
        waiting, router.waiting = router.waiting, {}
        for asking, routers in waiting.items():
            if asking.streaming:
                asking.done = True
            else:
                self.after(0.1, lambda asking=asking, routers=routers: self._ask(asking, routers[1:]))  # type: ignore[misc]

    def start_anew(self, region: str) -> None:
        """The region's router starts again, knowing nothing, and its nodes with it."""
        self.routers[region] = Router(self, region, 99)
        self.after(0.0, lambda: self._tick(self.routers[region]))
        self.after(0.0, lambda: self._probe_peers(self.routers[region]))
        for node in self.nodes.values():
            if node.region == region:
                self.revive(node)

    def _report(self, node: Node) -> None:
        self.after(REPORT_SECONDS, lambda: self._report(node))
        if node.dead or node.cut or self.routers[node.region].dead:
            return
        node.sequence += 1
        reports: list[EndpointReport] = []
        for uid in node.endpoints:
            running = len(self._running.get(uid, ()))
            load = EngineLoad(running=running, waiting=0, kv_usage=0.1, sample_age_seconds=0.05)
            reports.append(endpoint(uid, [f"GPU-{uid}"], load=load))
        gpus = tuple(
            gpu(f"GPU-{uid}", DeviceHealth.FAILED if uid in node.failed_gpus else DeviceHealth.OK)
            for uid in node.endpoints
        )
        told = NodeReport(
            node.name,
            node.name,
            node.zone,
            node.incarnation,
            node.sequence,
            AgentPhase.RUNNING,
            REPORT_SECONDS,
            gpus,
            tuple(reports),
            ("10.0.0.1",),
        )
        router = self.routers[node.region]
        self.after(LAN_SECONDS, lambda: router.carry_out(router.core.on_report(told, self.now)[1]))

    def _tick(self, router: Router) -> None:
        if router.dead:
            return
        self.after(TICK_SECONDS, lambda: self._tick(router))
        router.carry_out(router.core.tick(self.now))

    def _probe_peers(self, router: Router) -> None:
        if router.dead:
            return
        self.after(PROBE_PEERS_SECONDS, lambda: self._probe_peers(router))
        for name, peer in self.routers.items():
            if name == router.region:
                continue
            url = REGIONS[name].public_url
            if peer.dead:
                self._probed(router, name, PeerProbe(url, ok=False), 0.9)
                continue
            rows = peer.core.view.capacity_rows(self.now)
            self._probed(router, name, PeerProbe(url, ok=True, rtt_seconds=2 * WAN_SECONDS, rows=rows), 2 * WAN_SECONDS)

    def _probed(self, router: Router, region: str, probe: PeerProbe, seconds: float) -> None:
        self.after(seconds, lambda: router.core.view.set_peer_probe(region, probe, self.now))

    # Requests

    def client(self, uid: str, origin: Origin, routers: list[str]) -> None:
        """A client asks its nearest router; one that got no byte asks the next router, as the client library does."""
        asking = Client(uid, origin, self.now)
        self.clients.append(asking)
        self._ask(asking, routers)

    def _ask(self, asking: Client, routers: list[str]) -> None:
        asking.tries += 1
        router = self.routers[routers[0]]
        if router.dead:
            if len(routers) > 1:
                self.after(0.1, lambda: self._ask(asking, routers[1:]))
            else:
                asking.done = True
            return

        def answered(ok: bool) -> None:
            if router.waiting.pop(asking, None) is not None:
                asking.done, asking.ok = True, ok

        def first() -> None:
            asking.streaming = True

        router.waiting[asking] = routers
        given = facts(asking.uid, origin=asking.origin, input_tokens=200, max_output_tokens=40)
        self._begin(router, given, first, answered)

    def _begin(
        self, router: Router, given: RequestFacts, first: Callable[[], None], answered: Callable[[bool], None]
    ) -> None:
        attempt = Attempt(router)

        def revoke() -> None:
            current = attempts[-1]
            if not current.over:
                self.after(0.0, lambda: self._fail(current, Outcome.DECLARED_DEAD))

        attempts = [attempt]
        life, step = router.core.begin(given, self.now, revoke)
        self._carry_on(router, life, step, given, attempts, first, answered)

    def _carry_on(
        self,
        router: Router,
        life: Life,
        step: Step,
        given: RequestFacts,
        attempts: list[Attempt],
        first: Callable[[], None],
        answered: Callable[[bool], None],
    ) -> None:
        attempt = Attempt(router, life)
        attempts.append(attempt)

        def next_step(result: AttemptResult) -> None:
            after = life.on_attempt_failed(result, self.now)
            self._carry_on(router, life, after, given, attempts, first, answered)

        if router.dead:
            return
        if isinstance(step, Reject):
            life.on_end(Outcome.REJECTED, Usage(), self.now)
            answered(False)
        elif isinstance(step, WaitFor):
            self.after(
                step.seconds,
                lambda: self._carry_on(router, life, life.on_wait_over(self.now), given, attempts, first, answered),
            )
        elif isinstance(step, SendToEndpoint):
            self._send(router, life, step, given, attempt, next_step, first, answered)
        else:
            self._hop(router, life, step, given, attempt, next_step, first, answered)

    def _send(
        self,
        router: Router,
        life: Life,
        step: SendToEndpoint,
        given: RequestFacts,
        attempt: Attempt,
        next_step: Callable[[AttemptResult], None],
        first: Callable[[], None],
        answered: Callable[[bool], None],
    ) -> None:
        uid = step.target.uid
        node = self._of[uid]
        self.sends.append((self.now, given.request_uid, uid))
        self._on_failure[attempt] = next_step
        if node.dead:
            self.after(LAN_SECONDS, lambda: self._fail(attempt, Outcome.CONNECT_FAILED))
            return
        if node.cut:
            self.after(step.connect_timeout_seconds, lambda: self._fail(attempt, Outcome.TIMEOUT_CONNECT))
            return
        self._running.setdefault(uid, []).append(attempt)
        if uid in node.failed_gpus:
            return  # its engine hangs

        def begin() -> None:
            if not attempt.over and not node.cut and not router.dead:
                life.on_headers(200, self.now)
                life.on_first_byte(self.now)
                first()

        def end() -> None:
            if attempt.over or node.cut or router.dead:
                return
            self._finish(uid, attempt)
            life.on_end(Outcome.OK, Usage(200, 40, 0), self.now)
            answered(True)

        self.after(0.05, begin)
        self.after(self.service_seconds, end)

    def _hop(
        self,
        router: Router,
        life: Life,
        step: SendToRegion,
        given: RequestFacts,
        attempt: Attempt,
        next_step: Callable[[AttemptResult], None],
        first: Callable[[], None],
        answered: Callable[[bool], None],
    ) -> None:
        peer = self.routers[step.region]
        self._on_failure[attempt] = next_step
        if peer.dead:
            self.after(step.connect_timeout_seconds, lambda: self._fail(attempt, Outcome.TIMEOUT_CONNECT))
            return

        def back(ok: bool) -> None:
            if attempt.over or peer.dead or router.dead:
                return
            if not ok:
                self._fail(attempt, Outcome.REFUSED_SPILL)
                return
            attempt.over = True
            self._on_failure.pop(attempt, None)
            life.on_end(Outcome.OK, Usage(200, 40, 0), self.now)
            answered(True)

        onward = facts(
            given.request_uid, origin=given.origin, hop_from=router.region, input_tokens=200, max_output_tokens=40
        )

        def begin() -> None:
            if not attempt.over and not peer.dead and not router.dead:
                life.on_first_byte(self.now)
                first()

        self.after(
            WAN_SECONDS,
            lambda: self._begin(
                peer,
                onward,
                lambda: self.after(WAN_SECONDS, begin),
                lambda ok: self.after(WAN_SECONDS, lambda: back(ok)),
            ),
        )

    def _finish(self, uid: str, attempt: Attempt) -> None:
        attempt.over = True
        self._on_failure.pop(attempt, None)
        running = self._running.get(uid, [])
        if attempt in running:
            running.remove(attempt)

    def _fail(self, attempt: Attempt, outcome: Outcome) -> None:
        if attempt.over:
            return
        attempt.over = True
        for running in self._running.values():
            if attempt in running:
                running.remove(attempt)
        next_step = self._on_failure.pop(attempt, None)
        if next_step is not None and not attempt.router.dead:
            next_step(AttemptResult(outcome))

    # Reading

    def shares(self, since: float) -> Counter[str]:
        """Attempts by zone since a time."""
        return Counter(self._of[uid].zone for t, _, uid in self.sends if t >= since)

    def last_send_to(self, places: set[str]) -> float:
        """When the last attempt went to one of these endpoints."""
        return max((t for t, _, uid in self.sends if uid in places), default=-1.0)
