"""One regional router, built in one place: the only file of this tier that names implementations."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version as distribution_version
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import uvloop

from fleet.capacity import RegionObserved
from fleet.clock import Clock, SystemClock
from fleet.errors import HeadraceError
from fleet.geo.resolver import OriginResolver
from fleet.intent import Intent
from fleet.process.grpc_server import Server, make_channel, make_server
from fleet.process.health import Readiness
from fleet.process.incarnation import hold_state_directory, next_incarnation
from fleet.process.logs import setup
from fleet.process.serve import bind, bind_error, serve_http
from fleet.process.settings import secret_reader
from fleet.process.supervisor import Supervisor
from fleet.process.tls import TlsFiles
from fleet.wire.headrace.v1 import agent_pb2_grpc
from regional import pages
from regional.admin import router_admin
from regional.advertised import Advertised, advertised
from regional.fleetview.peers import PeerProbe
from regional.fleetview.settings import ViewSettings
from regional.fleetview.view import FleetView
from regional.gateway.server import Gateway
from regional.gateway.settings import GatewaySettings
from regional.gauges import Gauges
from regional.intake.admission import StreamAdmission
from regional.intake.directives import Directives
from regional.intake.embedded import EmbeddedAgent, EmbeddedAgentFactory
from regional.intake.joins import ForwardedJoins, Joins, LocalJoins
from regional.intake.probes import Prober
from regional.intake.pulse import Pulse
from regional.intake.service import AgentServicer, IdentityKeys, IntakeEvents
from regional.metrics import RouterMetrics
from regional.process import check, on_sighup, once, router_uid
from regional.request.core import Core
from regional.request.settings import RequestSettings
from regional.request.steps import RequestRecord
from regional.settings import RouterSettings
from regional.shared.base import SharedState
from regional.shared.memory import MemoryHub, MemoryShared
from regional.shared.redis import RedisShared
from regional.shared.siblings import Myself, Siblings
from regional.standalone import FleetFile, StandaloneSecrets, standalone_keys
from regional.sync.addresses import Target
from regional.sync.demand import DemandMeter
from regional.sync.events import EventOutbox
from regional.sync.held import HeldSnapshot
from regional.sync.keeper import SnapshotKeeper
from regional.sync.loading import IntentLoader
from regional.sync.peers import Peers, peer_status
from regional.sync.present import PresentIntent
from regional.sync.report import Reporter, ReportSources
from regional.sync.snapshot_file import SnapshotFile
from regional.sync.uplink import Uplink
from regional.sync.watch import Freshness, RouterIdentity, Watch
from regional.tell import Teller
from regional.workers import run_workers, stop_with_parent

AGENT_SERVICE = "headrace.v1.AgentService"

OnBound = Callable[[str, int], None]
"""Told (``http``, ``grpc`` or ``admin``, port) as each port is taken, for whoever asked for port 0."""


async def run(
    settings: RouterSettings,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None] | None = None,
    embedded_agent_factory: EmbeddedAgentFactory | None = None,
    on_bound: OnBound | None = None,
    shared: SharedState | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Serve until ``stop`` is set, then finish what runs and release everything.

    ``ready`` is called once it is ready for requests; ``shared`` stands in for Redis; ``environ`` fills ``${NAME}`` in a fleet
    file. Raises InvalidInput or BindError, in words for the user, when it cannot start.
    """
    check(settings)
    if settings.workers > 1:
        if settings.fleet:  # one deployment, one set of secrets
            state = Path(settings.state_dir) if settings.state_dir else None
            settings = settings.model_copy(update={"secret_key": standalone_keys(settings.secret_key, state)})
        main = partial(_worker_main, factory=embedded_agent_factory)
        await run_workers(settings, main, stop=stop, ready=ready)
        return
    async with AsyncExitStack() as stack:
        state_dir = Path(settings.state_dir) if settings.state_dir else None
        if state_dir is not None:
            stack.enter_context(hold_state_directory(state_dir))
        router = _Router(
            settings, state_dir, embedded_agent_factory, shared, os.environ if environ is None else environ
        )
        await router.serve(stop, ready, on_bound)


class _Router:
    """One router's parts, wired. Built before anything is served; everything it opens is closed by :meth:`serve`."""

    def __init__(
        self,
        settings: RouterSettings,
        state_dir: Path | None,
        factory: EmbeddedAgentFactory | None,
        shared: SharedState | None,
        environ: Mapping[str, str],
    ) -> None:
        self.clock: Clock = SystemClock()
        self.rng = random.Random()  # noqa: S311  # spreads load and retries; nothing rests on its being hard to guess
        self.tls = TlsFiles(settings.tls)
        wall = self.clock.wall()
        incarnation = next_incarnation(state_dir, wall_seconds=wall) if state_dir is not None else int(wall)
        self.fleet_file: FleetFile | None = None
        first: Intent | None = None
        if settings.fleet:
            secrets = StandaloneSecrets.of(standalone_keys(settings.secret_key, state_dir))
            self.fleet_file = FleetFile(
                Path(settings.fleet), settings.region, secrets, environ, self.clock, loopback=settings.loopback
            )
            first = self.fleet_file.load()
            settings = settings.model_copy(update={"region": first.region})
        self.settings = settings
        region, software = settings.region, distribution_version("headrace")
        self.who = RouterIdentity(router_uid(state_dir), incarnation, region, software)
        self.readiness = Readiness("intent", "listening")
        self.metrics = RouterMetrics(region, software)
        self.events = EventOutbox(region, self.clock)
        self.tell = Teller(self.metrics, self.events, self.clock)
        self.intent = PresentIntent(region)
        self.held = HeldSnapshot(region)
        self.freshness = Freshness(self.clock)
        self.view = FleetView(region, ViewSettings(lease_min_seconds=settings.agent_lease_seconds))
        self.core = Core(self.view, self.rng, _request_settings(settings))
        self.demand = DemandMeter()
        self.router_token = secret_reader(settings, "router_token")
        self.origins = OriginResolver(settings.geoip_db or None, on_event=self.tell.geo)
        self.peers = Peers(self.intent, self._peer_probed, self.clock, self.rng, self.tls.client_context)
        self.pulse = Pulse(self.core, Prober(self.tls.client_context), self.clock, self.tell.action, self.tell.fault)
        self.where = Advertised("", "")
        self.siblings = self._make_siblings(shared)
        self.directives = Directives(
            lambda: self.intent().at, self.view.wanted, self._region_routers, settings.agent_interval_seconds
        )
        self.intake = self._make_intake()
        self.file = SnapshotFile(state_dir / "snapshot") if state_dir is not None else None
        self.keeper = (
            SnapshotKeeper(self.file, self.held, self.freshness, self.tell.disk_failed)
            if self.file is not None
            else None
        )
        self.loader = IntentLoader(
            self.held,
            self.freshness,
            self.intent,
            self.file,
            self.keeper,
            self.tell.intent_applied,
            self.tell.corrupt_snapshot,
            self.tell.intent_failed,
        )
        self.embedded: EmbeddedAgent | None = None
        if factory is not None:
            self.embedded = factory(
                incarnation=incarnation,
                interval_seconds=settings.agent_interval_seconds,
                clock=self.clock,
                sink=self.intake.take_embedded,
            )
        self.gateway = self._make_gateway()
        self.intent.subscribe(self._intent_changed)
        if first is not None:
            self.intent.replace(first)

    # Building

    def _make_siblings(self, shared: SharedState | None) -> Siblings:
        if shared is None:
            url = self.settings.redis_url
            shared = RedisShared(url, self.who.region) if url else MemoryShared(MemoryHub(), self.clock)
        me = Myself(self.who.uid, self.who.incarnation, lambda: [self.where.grpc], lambda: [self.where.http])
        return Siblings(
            shared,
            me,
            self.view,
            self.core.placing,
            self.clock,
            self.rng,
            lambda: self.directives.changed(),
            self.tell.shared_state,
        )

    def _make_intake(self) -> AgentServicer:
        joins: Joins
        if self.fleet_file is not None:
            joins = LocalJoins(
                self.fleet_file.secrets.identity_private_keys[0],
                self.fleet_file.secrets.identity_keys,
                secret_reader(self.settings, "join_token"),
                self.intent,
                self.clock,
            )
        else:
            joins = ForwardedJoins(
                self.settings.controlplane, self._channel, self.router_token, self.who.region, self.rng
            )
        return AgentServicer(
            self.who.region,
            self.core,
            self.pulse,
            joins,
            self.directives,
            self._identity_keys,
            StreamAdmission(self.settings.agent_streams_per_second, self.rng),
            self.clock,
            IntakeEvents(self.tell.report, self.tell.agent_refused),
        )

    def _make_gateway(self) -> Gateway:
        standalone = self.fleet_file is not None
        return Gateway(
            self.core,
            self.intent,
            self.origins,
            GatewaySettings.of(self.settings, anonymous=standalone and self.settings.loopback),
            self.metrics,
            clock=self.clock,
            peer_status=self._peer_status,
            ready=lambda: self.readiness.ready,
            discovered_models=lambda: frozenset(self.view.pools),
            upstream_tls=self.tls.client_context,
            on_record=self._request_over,
        )

    # Serving

    async def serve(self, stop: asyncio.Event, ready: Callable[[], None] | None, on_bound: OnBound | None) -> None:
        """Start everything in the order in which it is needed; stop in the order in which it can be spared."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            stack.callback(self.origins.close)
            tasks = Supervisor(self.tell.fault)
            stack.push_async_callback(tasks.close)
            if self.fleet_file is None:
                await self.loader.restore()
            http_port = await self._open_gateway()
            stack.push_async_callback(self.gateway.close)
            server = self._make_server()
            self.where = advertised(settings, tls=self.tls.serves, port=http_port, grpc_port=server.port)
            admin = bind(settings.host, settings.admin_port, flag="--admin-port")
            stack.callback(admin.close)
            admin_stop = asyncio.Event()
            tasks.start_vital("admin", partial(self._serve_admin, admin, admin_stop))
            stack.push_async_callback(tasks.ended, "admin")
            stack.callback(admin_stop.set)
            self._start_tasks(tasks)
            await server.raw.start()
            stack.push_async_callback(server.stop, 0.5)
            for name, port in (("http", http_port), ("grpc", server.port), ("admin", admin.getsockname()[1])):
                if on_bound is not None:
                    on_bound(name, port)
            self.readiness.set("listening", True)
            if ready is not None:
                self.readiness.subscribe(once(ready))
            with on_sighup(self.fleet_file.reload_now if self.fleet_file is not None else None):
                await tasks.wait(stop)
            self.readiness.draining()
            self.intake.stop()
            await self.gateway.drain()
            if self.keeper is not None:
                await self.keeper.flush()

    async def _open_gateway(self) -> int:
        settings = self.settings
        context = self.tls.server_context() if self.tls.serves else None
        try:
            bound = await self.gateway.serve(
                settings.host, settings.port, context, reuse_port=settings.worker_index is not None
            )
        except OSError as error:
            raise bind_error(settings.host, settings.port, "--port", error) from None
        return bound[0][1]

    def _make_server(self) -> Server:
        def register(server: grpc.aio.Server) -> None:
            agent_pb2_grpc.add_AgentServiceServicer_to_server(self.intake, server)  # type: ignore[no-untyped-call]

        return make_server(
            register,
            host=self.settings.host,
            port=self.settings.grpc_port,
            tls=self.tls,
            readiness=self.readiness,
            services=(AGENT_SERVICE,),
        )

    async def _serve_admin(self, sock: socket.socket, stop: asyncio.Event) -> None:
        app = router_admin(
            self.readiness,
            self.metrics,
            pages.router_pages(
                self.view, self.intent, self.freshness, self.held, self.peers, self.siblings, self.intake, self.clock
            ),
            token=self.settings.admin_token,
            open_without_token=self.settings.loopback,
        )
        host, port = sock.getsockname()[:2]
        await serve_http(app, host=host, port=port, stop=stop, tls=self.tls, sock=sock, grace_seconds=1.0)

    def _start_tasks(self, tasks: Supervisor) -> None:
        tasks.start("pulse", self.pulse.run)
        tasks.start("siblings", self.siblings.run)
        tasks.start("peers", self.peers.run)
        tasks.start("gauges", self._gauges().run)
        if self.embedded is not None:
            tasks.start_vital("embedded-agent", self.embedded.run)
        if self.fleet_file is not None:
            tasks.start(
                "fleet-file", partial(self.fleet_file.watch, self._fleet_file_changed, self.tell.fleet_file_refused)
            )
            return
        if self.keeper is not None:
            tasks.start("keeper", self.keeper.run)
        tasks.start("intent", self.loader.run)
        watch = Watch(
            self.who,
            self.held,
            self.freshness,
            self.router_token,
            self.loader.changed,
            self._observed,
            self.tell.snapshot_refused,
        )
        tasks.start("watch", partial(self._uplink("watch").run, watch.session))
        reporter = Reporter(self.who, self._report_sources(), self.events, self.router_token, self.clock)
        tasks.start("report", partial(self._uplink("report").run, reporter.session))

    # Wires between parts

    def _uplink(self, what: str) -> Uplink:
        return Uplink(self.settings.controlplane, self._channel, self.rng, partial(self.tell.uplink_failed, what))

    def _channel(self, target: Target) -> grpc.aio.Channel:
        address = f"{target.scheme}://{target.address}" if target.scheme else target.address
        return make_channel(address, tls=self.tls, server_name=target.name)

    def _gauges(self) -> Gauges:
        return Gauges(
            self.metrics,
            self.view,
            self.intent,
            self.freshness,
            self.peers,
            self.events,
            lambda: len(self.siblings.routers()),
            self.core.lateness.seconds,
            self.tls,
            self.clock,
        )

    def _report_sources(self) -> ReportSources:
        return ReportSources(
            rows=self.view.capacity_rows,
            inventory=self.view.inventory,
            demand=self.demand.rows,
            peer_rtts=self.peers.rtts,
            ready=lambda: self.readiness.ready,
            applied=lambda: self.loader.applied,
            rejections=lambda: [str(r) for r in self.held.rejections],
            http_addresses=lambda: [self.where.http],
            grpc_addresses=lambda: [self.where.grpc],
        )

    def _intent_changed(self, intent: Intent) -> None:
        self.view.set_intent(intent, self.clock.monotonic())
        self.metrics.set_models(intent.models)
        self.directives.changed()
        if self.embedded is not None:
            self.embedded.set_intent(intent)
        if self.fleet_file is not None:
            self.freshness.confirmed()
        self.readiness.set("intent", True)

    def _fleet_file_changed(self, intent: Intent) -> None:
        self.intent.replace(intent)
        self.tell.intent_applied(intent.at.order, [])

    def _observed(self, observed: RegionObserved) -> None:
        self.view.set_region_observed(observed, self.clock.monotonic())
        self.peers.note_observed(observed)

    def _peer_probed(self, region: str, probe: PeerProbe) -> None:
        self.view.set_peer_probe(region, probe, self.clock.monotonic())

    def _peer_status(self) -> dict[str, object]:
        rows = self.view.capacity_rows(self.clock.monotonic())
        return peer_status(self.who.region, self.who.uid, self.readiness.ready, rows)

    def _region_routers(self) -> list[str]:
        siblings = (address for load in self.siblings.routers() for address in load.grpc_addresses)
        return list(dict.fromkeys((self.where.grpc, *self.where.workers, *siblings)))

    def _identity_keys(self) -> IdentityKeys:
        in_touch = self.fleet_file is not None or self.freshness.connected
        return IdentityKeys(self.intent().secrets.identity_keys, None if in_touch else self.freshness.heard_wall)

    def _request_over(self, record: RequestRecord) -> None:
        if record.entry_region == self.who.region:  # what came by a hop counts where it entered
            self.demand.add(record, self.clock.monotonic())


def _request_settings(settings: RouterSettings) -> RequestSettings:
    return RequestSettings(
        connect_timeout_seconds=settings.timeout_connect_seconds,
        first_byte_timeout_seconds=settings.timeout_first_byte_seconds,
        total_timeout_seconds=settings.timeout_total_seconds,
        retry_max=settings.retry_max,
        retry_budget=settings.retry_budget,
    )


def _worker_main(settings: RouterSettings, pipe: Connection, factory: EmbeddedAgentFactory | None) -> None:
    """One of several worker processes; started by :func:`~regional.workers.run_workers`."""
    setup(f"router-{settings.worker_index}", level=settings.log.level)

    async def serve() -> None:
        stop = asyncio.Event()
        stop_with_parent(stop)
        await run(settings, stop=stop, ready=lambda: pipe.send(True), embedded_agent_factory=factory)

    try:
        uvloop.run(serve())
    except HeadraceError as error:
        pipe.send(str(error))
