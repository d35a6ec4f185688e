"""The embedded agent: a router's own watch over engines that have no agent, as one report flow with those that have.

Endpoints of a fleet file, or written through the API, are watched by the same code that node agents use. Their nodes are
reported by the router itself; what cannot be seen from outside (temperatures, memory, errors) stays unknown.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from agents.engines.base import EngineTarget
from agents.engines.watcher import EngineWatcher
from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.clock import Clock
from fleet.endpoint import EndpointReport
from fleet.intent import EndpointIntent, Intent, NodeIntent
from fleet.report import AgentPhase, NodeReport
from regional.fleetview.bounds import url_problem
from regional.gateway.dialling import places_of

_DECLARED_GPUS = uuid.UUID("6a9c9d0e-6a0b-5a53-93a5-0d6f3f1c7c52")


class EmbeddedAgent:
    """Watches the agentless endpoints of one region. All methods are for one event loop."""

    def __init__(
        self, *, incarnation: int, interval_seconds: float, clock: Clock, sink: Callable[[NodeReport], None]
    ) -> None:
        self._incarnation = incarnation
        self._interval = interval_seconds
        self._sink = sink
        self._sequence = 0
        self._changed = asyncio.Event()
        self._watcher = EngineWatcher(
            interval_seconds=interval_seconds, clock=clock, on_change=self._changed.set, places=places_of
        )
        self._nodes: dict[str, NodeIntent] = {}
        self._endpoints: dict[str, EndpointIntent] = {}
        """By uid."""

    def set_intent(self, intent: Intent) -> None:
        """Watch exactly the agentless endpoints of this intent's region from now on."""
        zones = {zone.name for zone in intent.zones.values() if zone.region == intent.region}
        nodes = {name: node for name, node in intent.nodes.items() if node.zone in zones}
        ranges = {name: intent.zones[node.zone].endpoint_ranges for name, node in nodes.items()}
        # An address outside its zone's ranges is not even looked at: looking would tell what is there.
        self._endpoints = {
            uid: e
            for uid, e in intent.endpoints.items()
            if e.node in nodes and not url_problem(e.url, ranges[e.node], (), declared=True)
        }
        used = {endpoint.node for endpoint in self._endpoints.values()}
        # A node that has just lost its last endpoint here says so once more, with none.
        self._nodes = {name: node for name, node in nodes.items() if name in used or name in self._nodes}
        self._watcher.set_targets(_target(e, ranges[e.node]) for e in self._endpoints.values())
        self._changed.set()

    async def run(self) -> None:
        """Watch and report until cancelled: at once when something changed, else every interval."""
        watching = asyncio.ensure_future(self._watcher.run())
        try:
            while True:
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    done, _ = await asyncio.wait(
                        (watching, changed), timeout=self._interval, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    changed.cancel()
                if watching in done:
                    watching.result()
                self._changed.clear()
                for report in self._reports():
                    self._sink(report)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _reports(self) -> Iterator[NodeReport]:
        seen = {report.uid: report for report in self._watcher.reports()}
        by_node: dict[str, list[EndpointReport]] = {}
        for uid, endpoint in self._endpoints.items():
            if uid in seen:
                by_node.setdefault(endpoint.node, []).append(self._placed(seen[uid], endpoint))
        self._sequence += 1
        for name, node in list(self._nodes.items()):
            yield NodeReport(
                node_uid=node.uid,
                node_name=name,
                zone=node.zone,
                incarnation=self._incarnation,
                sequence=self._sequence,
                phase=AgentPhase.RUNNING,
                interval_seconds=self._interval,
                gpus=declared_devices(node),
                endpoints=tuple(by_node.get(name, ())),
                device_error="seen from outside only: no agent runs there",
            )
            if name not in by_node:
                del self._nodes[name]

    def _placed(self, report: EndpointReport, endpoint: EndpointIntent) -> EndpointReport:
        """The report with the devices that the operator says it uses."""
        node = self._nodes.get(endpoint.node)
        uuids = tuple(_device_uuids(node, endpoint.gpus)) if node is not None else ()
        return replace(report, gpu_uuids=uuids, gpus_known=bool(uuids))


def create(
    *, incarnation: int, interval_seconds: float, clock: Clock, sink: Callable[[NodeReport], None]
) -> EmbeddedAgent:
    """What ``regional.main.run`` takes as ``embedded_agent_factory``; a plain function so that workers can be handed it."""
    return EmbeddedAgent(incarnation=incarnation, interval_seconds=interval_seconds, clock=clock, sink=sink)


def declared_devices(node: NodeIntent) -> tuple[AcceleratorState, ...]:
    """The devices written down for a node: product and memory known, everything that only a driver could tell unknown.

    Their uuids are made from the node's uid and the index, so they are stable and never those of another node's devices.
    """
    devices: list[AcceleratorState] = []
    for group in node.gpus:
        memory = None if group.memory_gib is None else round(group.memory_gib * 1024)
        for _ in range(group.count):
            index = len(devices)
            devices.append(
                AcceleratorState(
                    uuid=device_uuid(node.uid, index),
                    index=index,
                    product=group.product,
                    memory_total_mib=memory,
                    health=DeviceHealth.UNKNOWN,
                    health_reason="no agent reads it",
                )
            )
    return tuple(devices)


def device_uuid(node_uid: str, index: int) -> str:
    """The uuid of a declared device whose real one nobody can read."""
    return f"GPU-{uuid.uuid5(_DECLARED_GPUS, f'{node_uid}/{index}')}"


def _device_uuids(node: NodeIntent, gpus: Iterable[str]) -> Iterator[str]:
    """Indices become the uuids of declared devices; uuids and MIG ids stay as they are."""
    for gpu in gpus:
        yield device_uuid(node.uid, int(gpu)) if gpu.isdigit() else gpu


def _target(endpoint: EndpointIntent, ranges: tuple[str, ...]) -> EngineTarget:
    return EngineTarget(
        uid=endpoint.uid,
        name=endpoint.name,
        kind=endpoint.engine,
        url=endpoint.url,
        models=endpoint.models,
        api_key=endpoint.api_key,
        ranges=ranges,
        tensor_parallel=endpoint.tensor_parallel,
        max_inflight=endpoint.max_inflight,
        kv_tokens=endpoint.kv_tokens,
    )
