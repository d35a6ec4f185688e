"""Small fleets for tests of decisions, built through the same doors as real ones: intent and node reports."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, EngineLoad, ServedModel
from fleet.intent import Hold, HoldState, Intent, Model, PolicyIntent
from fleet.locality import Coordinates, Link, Origin, Region, Zone
from fleet.report import AgentPhase, NodeReport
from fleet.request import RequestFacts, Task
from fleet.snapshot import IntentVersion
from fleet.tenancy import Residency
from regional.fleetview.view import FleetView
from regional.health.actions import Action, ProbeEndpoints, ProbeOutcome
from regional.health.settings import HealthSettings
from regional.request.core import Core
from regional.request.settings import RequestSettings
from regional.routing.registry import builtin

MODEL = "llama-3.1-8b"
PARIS = Origin("192.0.2.1", "FR", "EU", Coordinates(48.86, 2.35), "database")
TOKYO = Origin("192.0.2.2", "JP", "AS", Coordinates(35.68, 139.69), "database")
ASHBURN = Origin("192.0.2.3", "US", "NA", Coordinates(39.04, -77.49), "database")

REGIONS = {
    "eu-west": Region("r-eu", "eu-west", Coordinates(53.35, -6.26), frozenset({"IE", "EU"}), "http://10.1.0.1:7600"),
    "us-east": Region("r-us", "us-east", Coordinates(38.9, -77.4), frozenset({"US"}), "http://10.2.0.1:7600"),
    "ap-east": Region("r-ap", "ap-east", Coordinates(35.6, 139.7), frozenset({"JP"}), "http://10.3.0.1:7600"),
}
ZONES = {
    f"{region}-{letter}": Zone(f"z-{region}-{letter}", f"{region}-{letter}", region, place.jurisdictions)
    for region, place in REGIONS.items()
    for letter in "abc"
}


def intent(version: int = 1, region: str = "eu-west", **changes: object) -> Intent:
    """Three regions of three zones and one model; ``changes`` replace fields."""
    base = Intent(
        at=IntentVersion(1, version),
        region=region,
        regions=dict(REGIONS),
        zones=dict(ZONES),
        models={MODEL: Model("m-1", MODEL, "chat", ("Llama",), context_tokens=131072, weights_gib=15.0)},
        aliases={"Llama": MODEL},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def gpu(
    uuid: str, health: DeviceHealth = DeviceHealth.OK, product: str = "h100-sxm-80", parent: str = ""
) -> AcceleratorState:
    return AcceleratorState(uuid, product=product, health=health, parent_uuid=parent, sample_age_seconds=0.0)


def endpoint(
    uid: str,
    gpus: Iterable[str] = (),
    *,
    models: Iterable[str] = (MODEL,),
    phase: EndpointPhase = EndpointPhase.READY,
    host: str = "10.0.0.1",
    **changes: object,
) -> EndpointReport:
    base = EndpointReport(
        uid=uid,
        name=uid,
        kind=EngineKind.SIMULATED,
        url=f"http://{host}:9000",
        models=tuple(ServedModel(m, m) for m in models),
        phase=phase,
        gpu_uuids=tuple(gpus),
        gpus_known=True,
        load=EngineLoad(running=0, waiting=0, kv_usage=0.0, sample_age_seconds=0.0),
        metrics_fresh=True,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def outcome_of(answered: bool) -> ProbeOutcome:
    """A place that does not answer is silent: nothing is refused, nothing comes."""
    return ProbeOutcome.ANSWERED if answered else ProbeOutcome.SILENT


@dataclass
class Rig:
    """A core with a view, and short ways to feed it."""

    core: Core
    now: float = 1000.0
    sequences: dict[str, int] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    _probing: list[tuple[float, str]] = field(default_factory=list)
    _steps: int = 0

    @property
    def view(self) -> FleetView:
        return self.core.view

    def report(
        self,
        node: str,
        endpoints: Iterable[EndpointReport] = (),
        *,
        zone: str = "eu-west-a",
        gpus: Iterable[AcceleratorState] = (),
        phase: AgentPhase = AgentPhase.RUNNING,
        incarnation: int = 1,
        addresses: tuple[str, ...] = ("10.0.0.1",),
        accepted: bool = True,
    ) -> NodeReport:
        sequence = self.sequences[node] = self.sequences.get(node, 0) + 1
        told = NodeReport(
            node_uid=node,
            node_name=node,
            zone=zone,
            incarnation=incarnation,
            sequence=sequence,
            phase=phase,
            interval_seconds=0.4,
            gpus=tuple(gpus),
            endpoints=tuple(endpoints),
            addresses=addresses,
        )
        answer, actions = self.core.on_report(told, self.now)
        assert answer.accepted is accepted, answer
        self.actions.extend(actions)
        return told

    def beat(self, seconds: float) -> None:
        """Let time pass in steps of 0.1 s, every node reporting what it last did every 0.4 s."""
        steps = max(1, round(seconds / 0.1))
        for step in range(steps):
            if step % 4 == 0:
                for node in list(self.view.nodes.values()):
                    if node.reported:
                        reports = [e.report for e in node.endpoints.values() if e.report is not None]
                        self.report(node.uid, reports, zone=node.zone, gpus=node.gpus.values(), incarnation=9)
            self.tick(seconds / steps)

    def run(
        self,
        seconds: float,
        answered: Mapping[str, bool] | None = None,
        beating: Iterable[str] = (),
        late: float = 0.0,
    ) -> None:
        """Time passes in ticks of 50 ms, each of them ``late``. Probes are answered as said, after the time their tries take;
        the nodes of the endpoints named in ``beating`` report every 0.4 s."""
        answered = answered or {}
        for _ in range(round(seconds / 0.05)):
            self._steps += 1
            if self._steps % 8 == 0:
                for name in beating:
                    self.report(f"node-{name}", [endpoint(name, [f"GPU-{name}"])], gpus=[gpu(f"GPU-{name}")])
            for action in self.tick(0.05, late):
                if isinstance(action, ProbeEndpoints):
                    for target in action.targets:
                        good = answered.get(target.endpoint_uid, True)
                        cost = 0.005 if good else action.tries * action.timeout_seconds
                        self._probing.append((self.now + cost, target.endpoint_uid))
            for due, uid in [w for w in self._probing if w[0] <= self.now]:
                self._probing.remove((due, uid))
                self.actions += self.core.on_probe(uid, outcome_of(answered.get(uid, True)), self.now)

    def tick(self, seconds: float = 0.05, late: float = 0.0) -> tuple[Action, ...]:
        """``late``: how much of these seconds the router was late for."""
        self.now += seconds
        actions = self.core.tick(self.now, late)
        self.actions.extend(actions)
        return actions

    def probed(self, actions: Iterable[Action], answered: Mapping[str, bool]) -> list[Action]:
        """Answer every probe that ``actions`` ask for."""
        told: list[Action] = []
        for action in actions:
            if isinstance(action, ProbeEndpoints):
                for target in action.targets:
                    outcome = outcome_of(answered.get(target.endpoint_uid, True))
                    told.extend(self.core.on_probe(target.endpoint_uid, outcome, self.now))
        self.actions.extend(told)
        return told

    def inflight(self) -> dict[str, int]:
        return {e.uid: e.own for e in self.view.endpoints.values()}


def rig(
    region: str = "eu-west",
    seed: int = 1,
    settings: RequestSettings | None = None,
    health: HealthSettings | None = None,
    given: Intent | None = None,
) -> Rig:
    view = FleetView(region)
    made = Rig(Core(view, random.Random(seed), settings, health, builtin()))
    view.set_intent(given or intent(region=region), made.now)
    return made


def simple(zones: Mapping[str, int], **kwargs: object) -> Rig:
    """A rig with so many one-GPU endpoints per zone, one node each, named ``a1``, ``a2``, ``b1``... after the zone."""
    made = rig(**kwargs)  # type: ignore[arg-type]
    for zone, count in zones.items():
        for i in range(1, count + 1):
            name = f"{zone[-1]}{i}"
            made.report(f"node-{name}", [endpoint(name, [f"GPU-{name}"])], zone=zone, gpus=[gpu(f"GPU-{name}")])
    made.tick(10.0 if not zones else 0.1)
    return made


def facts(uid: str = "q", **changes: object) -> RequestFacts:
    base = RequestFacts(
        request_uid=uid,
        task=Task.CHAT,
        requested_model=MODEL,
        stream=True,
        input_tokens=100,
        max_output_tokens=100,
        tenant_uid="",
        tenant_name="",
        key_uid="",
        sla_class="standard",
        priority=300,
        session="",
        origin=Origin(),
        residency=Residency(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def hold(kind: str, target: str, state: HoldState = HoldState.CORDONED) -> dict[tuple[str, str], Hold]:
    return {(kind, target): Hold(f"h-{kind}-{target}", kind, target, state)}


def policy(algorithm: str, **parameters: object) -> dict[str, PolicyIntent]:
    return {"default": PolicyIntent("p-1", "default", algorithm, parameters)}


def link(source: str, target: str, rtt_seconds: float) -> dict[tuple[str, str], Link]:
    return {(source, target): Link(f"l-{source}-{target}", f"{source}.{target}", source, target, rtt_seconds)}


def no_revoke() -> None:
    """For requests whose revocation does not matter to the test."""
