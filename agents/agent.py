"""The agent of one node: reads devices and engines, and tells every router of its region.

agent = Agent(settings, devices=SimulatedDevices("4xh100-sxm-80", node=settings.node), engines=[EngineSettings(...)])
await agent.run(stop)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agents import processes
from agents.accelerators.base import Devices
from agents.devicehealth import DeviceHistory, judge_devices
from agents.engines.base import EngineTarget
from agents.engines.watcher import EngineWatcher
from agents.lifecycle import GpuBinding, bind_gpus, idle, process_gpus
from agents.membership import Joining, Membership
from agents.report import NodeIdentityWords, build_report
from agents.settings import AgentSettings, EngineSettings
from agents.state import DEVICES, PINS, StateFiles, boot_id, own_addresses
from agents.uplink import Uplink
from fleet.accelerator import AcceleratorState
from fleet.clock import Clock, SystemClock
from fleet.endpoint import EndpointPhase, ServedModel
from fleet.process.health import Readiness
from fleet.process.incarnation import next_incarnation
from fleet.process.insecure import is_loopback
from fleet.process.logs import get_logger
from fleet.process.secret_file import SecretFile
from fleet.process.settings import secret_reader
from fleet.process.tls import TlsFiles
from fleet.report import AgentPhase, NodeDirective, NodeReport

log = get_logger("agents.agent")

HOUSEKEEPING_SECONDS = 5.0
FIRST_LOOK_SECONDS = 1.0
"""By then devices have been read for the first time, and who uses them can be told."""
SAVE_EVERY_SECONDS = 600.0
SPACING_SECONDS = 0.05
"""Urgent reports are at least this far apart, so that a burst of changes is one report."""


class Agent:
    """All parts of one node's agent, without its admin port. Everything runs on one event loop."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        devices: Devices,
        state_dir: Path,
        engines: Sequence[EngineSettings] | None = None,
        readiness: Readiness | None = None,
        tls: TlsFiles | None = None,
        clock: Clock | None = None,
        version: str = "",
        dial: Callable[[str], str] | None = None,
    ) -> None:
        """``engines`` replaces those of ``settings``; ``dial`` as in ``Uplink``. ``state_dir`` must exist and be held by this
        process alone.

        Raises InvalidInput when a secret file cannot be read.
        """
        self._settings = settings
        self._clock = clock or SystemClock()
        self._files = StateFiles(state_dir)
        self._state_dir = state_dir
        self._engines = {e.name: e for e in (settings.engines if engines is None else engines)}
        self._keys = {n: SecretFile(Path(e.api_key_file)) for n, e in self._engines.items() if e.api_key_file}
        self._readiness = readiness or Readiness()
        self._version = version
        self.devices = devices
        self.watcher = EngineWatcher(
            interval_seconds=settings.interval_seconds,
            timeout_seconds=settings.engine_timeout_seconds,
            clock=self._clock,
            on_change=self.wake,
        )
        self.membership = Membership(
            Joining(settings.node, settings.zone, settings.region),
            self._files,
            join_token=secret_reader(settings, "join_token"),
            gpu_uuids=lambda: [g.uuid for g in self.gpus() if not g.parent_uuid],
            routers=lambda: self.uplink.addresses(),
            clock=self._clock,
            tls=tls,
            backoff_max_seconds=settings.reconnect_max_seconds,
        )
        self.uplink = Uplink(
            settings.routers,
            self.membership,
            clock=self._clock,
            on_directive=self._obey,
            tls=tls,
            backoff_max_seconds=settings.reconnect_max_seconds,
            dial=dial,
        )
        self.phase = AgentPhase.RUNNING
        self._boot_id = boot_id()
        self._history = DeviceHistory.load(
            self._files.read(DEVICES), self._clock.monotonic(), self._clock.wall(), self._boot_id
        )
        self._saved_history: tuple[object, ...] = ()
        self._saved_at = float("-inf")
        self._pins = _pins(self._files.read(PINS))
        self._from_processes: dict[str, tuple[str, ...]] = {}
        self._bindings: dict[str, GpuBinding] = {}
        self._addresses: tuple[str, ...] = ()
        self._incarnation = 0
        self._sequence = 0
        self._draining_by_directive = False
        self._wake = asyncio.Event()

    # What others look at

    def wake(self) -> None:
        """Something happened that routers should hear at once."""
        self._wake.set()

    def gpus(self) -> tuple[AcceleratorState, ...]:
        """Every device with its verdict, as of now."""
        now = self._clock.monotonic()
        reading = self.devices.latest()
        self._history = self._history.after(reading, now)
        stale_after = max(3 * self._settings.interval_seconds, 2.0)
        return judge_devices(reading, self._history, self._settings.xid, now, stale_after)

    def report(self) -> NodeReport | None:
        """The next report; None before the node has joined. Each has a sequence of its own."""
        identity = self.membership.identity
        if identity is None:
            return None
        gpus = self.gpus()
        self._bind(gpus)
        self._sequence += 1
        who = NodeIdentityWords(
            identity.node_uid,
            self._settings.node,
            self._settings.zone,
            self._incarnation,
            self._addresses,
            self._version,
        )
        return build_report(
            who,
            self._sequence,
            self._effective_phase(),
            self.interval_seconds,
            gpus,
            self.devices.latest().error,
            self.watcher.reports(),
            self._bindings,
            restart_grace_seconds=self._settings.restart_grace_seconds,
        )

    @property
    def interval_seconds(self) -> float:
        """What the directive in force asks for, else what is set."""
        directive = self.uplink.directive
        asked = directive.report_interval_seconds if directive is not None else None
        return min(max(asked, 0.05), 60.0) if asked else self._settings.interval_seconds

    def clear_device(self, uuid: str) -> None:
        """An operator says that ``uuid`` was reset: its errors no longer count."""
        self._history = self._history.cleared(uuid, self._clock.monotonic())
        self.wake()

    # Running

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> None:
        """Report until ``stop`` is set, then leave as ``on_term`` says. Raises what went wrong in a part of it."""
        self._incarnation = next_incarnation(self._state_dir, wall_seconds=self._clock.wall())
        await self._look_around()
        self.devices.start(self.wake)
        parts: list[Coroutine[Any, Any, None]] = [
            self.watcher.run(),
            self.membership.run(),
            self.uplink.run(),
            self._report(),
            self._housekeep(),
        ]
        tasks: list[asyncio.Task[None]] = [asyncio.get_running_loop().create_task(p) for p in parts]
        stopping = asyncio.get_running_loop().create_task(stop.wait())
        log.info("agent_started", node=self._settings.node, incarnation=self._incarnation, engines=len(self._engines))
        if ready is not None:
            ready()
        try:
            await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                await self._leave(tasks)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            stopping.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            await self.devices.aclose()
            await self._save(force=True)

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        """Say how we leave, wait for engines to finish if the node goes away, and say goodbye."""
        self._readiness.draining()
        if self._settings.on_term == "drain":
            self.phase = AgentPhase.DRAINING
            self.wake()
            await self._drained(tasks)
        else:
            self.phase = AgentPhase.RESTARTING
        last = self.report()
        if last is not None:
            await self.uplink.finish(last)

    async def _drained(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until no engine has work in two looks one after the other, or the deadline has passed, or a part has failed."""
        loop_deadline = self._clock.monotonic() + self._settings.drain_deadline_seconds
        pause = max(2 * self._settings.interval_seconds, 0.5)
        quiet = 0
        while quiet < 2 and self._clock.monotonic() < loop_deadline and not any(t.done() for t in tasks):
            await asyncio.sleep(min(pause, max(0.0, loop_deadline - self._clock.monotonic())))
            quiet = quiet + 1 if self._idle() else 0
        log.info("drained" if quiet >= 2 else "drain_deadline", node=self._settings.node)

    def _idle(self) -> bool:
        """True when every engine that answers is known to have nothing to do."""
        working = (EndpointPhase.READY, EndpointPhase.WARMING, EndpointPhase.DRAINING)
        return all(idle(e.load, e.metrics_fresh) is True for e in self.watcher.reports() if e.phase in working)

    async def _report(self) -> None:
        while True:
            self._wake.clear()
            report = self.report()
            if report is not None:
                self.uplink.publish(report)
            self._state_readiness()
            published = self._clock.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.interval_seconds):
                    await self._wake.wait()
            await asyncio.sleep(max(0.0, published + SPACING_SECONDS - self._clock.monotonic()))

    def _effective_phase(self) -> AgentPhase:
        if self.phase is AgentPhase.RUNNING and self._draining_by_directive:
            return AgentPhase.DRAINING
        return self.phase

    def _obey(self, directive: NodeDirective) -> None:
        if directive.draining != self._draining_by_directive:
            self._draining_by_directive = directive.draining
            log.info("drain_directive", draining=directive.draining, epoch=directive.epoch, version=directive.version)
            self.wake()

    def _state_readiness(self) -> None:
        self._readiness.set("identity", self.membership.identity is not None, self.membership.problem)
        connected = bool(self.uplink.connected)
        self._readiness.set("routers", connected, "no router takes reports; engines go on serving")

    # What is looked at now and then

    async def _housekeep(self) -> None:
        pause = FIRST_LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            await self._look_around()
            await self._save()
            pause = HOUSEKEEPING_SECONDS

    async def _look_around(self) -> None:
        """Own addresses, engine keys, and which processes use which devices."""
        found = await asyncio.to_thread(own_addresses, self._settings.advertise, self.uplink.addresses())
        self._addresses = found or self._addresses
        self.watcher.set_targets([self._target(e) for e in self._engines.values()])
        self._from_processes = await asyncio.to_thread(self._gpus_by_process)

    def _target(self, engine: EngineSettings) -> EngineTarget:
        key = self._keys[engine.name].value() if engine.name in self._keys else engine.api_key
        return EngineTarget(
            uid=engine.name,  # the real one is made from the node's uid when reporting
            name=engine.name,
            kind=engine.kind,
            url=engine.url,
            advertise=engine.advertise or self._advertised(engine.url),
            models=tuple(ServedModel(ours, theirs) for theirs, ours in engine.models.items()),
            api_key=key,
            tensor_parallel=engine.tensor_parallel,
            max_inflight=engine.max_inflight,
            kv_tokens=engine.kv_tokens,
            context_tokens=engine.context_tokens,
            warmup_requests=self._settings.warmup_requests,
        )

    def _advertised(self, url: str) -> str:
        """Where routers reach an engine that we reach over loopback: at the address they are reached from."""
        parts = urlsplit(url)
        own = next((a for a in self._addresses if not is_loopback(a)), "")
        if not own or not is_loopback(parts.hostname or ""):
            return url
        host = f"[{own}]" if ":" in own else own
        return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"

    def _gpus_by_process(self) -> dict[str, tuple[str, ...]]:
        """Engine name to devices by the driver's process list, for engines whose devices nobody wrote down. Reads /proc."""
        pids = {s.uuid: s.pids for s in self.devices.latest().samples if s.pids}
        ports = {
            name: urlsplit(e.url).port or 80
            for name, e in self._engines.items()
            if not e.gpus
            and (urlsplit(e.url).hostname in self._addresses or is_loopback(urlsplit(e.url).hostname or ""))
        }
        if not pids or not ports:
            return {}
        listening, parents = processes.listeners(ports.values()), processes.parents()
        return {name: process_gpus(listening.get(port, set()), parents, pids) for name, port in ports.items()}

    def _bind(self, gpus: Sequence[AcceleratorState]) -> None:
        for name, engine in self._engines.items():
            pinned = {i: u for i, u in self._pins.get(name, {}).items() if i in engine.gpus}
            binding, pins = bind_gpus(engine.gpus, gpus, pinned, self._from_processes.get(name, ()))
            self._bindings[name] = binding
            if pins != self._pins.get(name, {}):
                self._pins[name] = pins

    async def _save(self, *, force: bool = False) -> None:
        """Keep what must outlive the process. A disk that does not take it is reported, and costs only what was to be kept."""
        now = self._clock.monotonic()
        history = (self._history.xids, tuple(self._history.known), {n: dict(p) for n, p in self._pins.items()})
        if not force and history == self._saved_history and now - self._saved_at < SAVE_EVERY_SECONDS:
            return
        document = self._history.dump(now, self._clock.wall(), self._boot_id)
        try:
            await asyncio.to_thread(self._files.write, DEVICES, document)
            await asyncio.to_thread(self._files.write, PINS, history[2])
        except OSError as error:
            log.error("state_not_kept", reason=error.strerror)
            return
        self._saved_history, self._saved_at = history, now


def _pins(document: object) -> dict[str, dict[str, str]]:
    if not isinstance(document, dict):
        return {}
    return {
        str(name): {str(i): str(u) for i, u in pins.items()}
        for name, pins in document.items()
        if isinstance(pins, dict)
    }
