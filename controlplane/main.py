"""The control plane process: everything is built, wired and released here, and only here are implementations named."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import grpc

from controlplane.api.app import build_api
from controlplane.api.context import ApiContext
from controlplane.api.fleet.endpoints import FleetSources, fleet_router
from controlplane.dashboard.index import IndexPage
from controlplane.faults import Faults
from controlplane.identity import Joins
from controlplane.intake.intake import Intake
from controlplane.intake.router_tokens import RouterTokens
from controlplane.intake.service import SERVICE as REGION_SERVICE
from controlplane.intake.service import RegionService
from controlplane.metrics import MetricSources, registry_of
from controlplane.publish.publisher import Publisher
from controlplane.publish.service import SERVICE as SNAPSHOT_SERVICE
from controlplane.publish.service import SnapshotService
from controlplane.publish.source import StoreFeed
from controlplane.secrets import MIN_SECRET_CHARS, DeploymentSecrets, secrets_for
from controlplane.settings import ControlPlaneSettings
from controlplane.startup import prepare, say_how_to_get_in
from controlplane.store.database import Database
from controlplane.store.housekeeping import keep_house
from controlplane.store.intent import IntentFeed
from fleet.clock import Clock, SystemClock
from fleet.errors import FieldError, HeadraceError, InvalidInput, Unavailable
from fleet.geo.client_address import TrustedProxies
from fleet.geo.resolver import OriginResolver
from fleet.process.admin import add_health, add_metrics, admin_app
from fleet.process.grpc_server import make_server
from fleet.process.health import Readiness
from fleet.process.insecure import require_safe
from fleet.process.logs import get_logger
from fleet.process.serve import announce_stop, serve_http
from fleet.process.supervisor import Supervisor
from fleet.process.tls import TlsFiles
from fleet.snapshot import IntentObject

_log = get_logger("controlplane")

Bound = Callable[[str, int], None]
"""Told (``http``, ``grpc`` or ``admin``, port) as each port is taken."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The parts of one process, wired. Building opens nothing but the geo database; :func:`run` gives them life."""

    secrets: DeploymentSecrets
    database: Database
    feed: IntentFeed
    publisher: Publisher
    intake: Intake
    tokens: RouterTokens
    readiness: Readiness
    resolver: OriginResolver
    snapshots: SnapshotService
    regions: RegionService
    faults: Faults


def build(settings: ControlPlaneSettings, clock: Clock) -> ControlPlane:
    """Raises InvalidInput for settings that cannot work."""
    database = Database(settings.database())
    sqlite_file = None if database.postgres else Path(str(database.url.database))
    secrets = secrets_for(settings.secret_key, sqlite_file)
    feed = IntentFeed(
        database, secrets, clock, direct_url=settings.database_direct_url, poll_seconds=settings.feed_poll_seconds
    )
    readiness = Readiness("database", "intent")

    def intent_health(ok: bool, why: str) -> None:
        readiness.set("intent", ok, why)

    publisher = Publisher(StoreFeed(feed), secrets.published(), clock, on_health=intent_health)

    def names(kind: str) -> Mapping[str, str]:
        return publisher.catalogue.names(kind) if publisher.catalogue else {}

    faults = Faults(clock)
    intake = Intake(
        database,
        clock,
        faults,
        report_interval_seconds=settings.report_interval_seconds,
        regions=lambda: names("region"),
        declared_endpoints=lambda: names("endpoint"),
        publish=publisher.publish_observed,
    )
    tokens = RouterTokens(database, secrets, clock)
    return ControlPlane(
        secrets,
        database,
        feed,
        publisher,
        intake,
        tokens,
        readiness,
        OriginResolver(settings.geoip_db or None, on_event=lambda message, _ok: _log.info("geo", message=message)),
        SnapshotService(publisher, tokens, intake.record, clock),
        RegionService(intake, Joins(database, feed, secrets, clock), tokens, clock),
        faults,
    )


async def run(
    settings: ControlPlaneSettings,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None] | None = None,
    on_bound: Bound | None = None,
    clock: Clock | None = None,
) -> None:
    """Serve until ``stop`` is set, then let streams and requests end and release everything.

    ``ready`` is called once, when all ports answer and intent has been read. Raises a HeadraceError with one plain line for
    whatever a user can mend.
    """
    clock = clock or SystemClock()
    bound = on_bound or (lambda name, port: None)
    tls = TlsFiles(settings.tls)
    require_safe(settings.host, tls=tls.serves, auth=True, insecure=settings.insecure, what="the control plane")
    if 0 < len(settings.bootstrap_admin_token) < MIN_SECRET_CHARS:
        reason = (
            f"must have at least {MIN_SECRET_CHARS} characters; it opens everything: openssl rand -hex 24 makes one"
        )
        raise InvalidInput([FieldError("bootstrap_admin_token", reason)])
    parts = build(settings, clock)
    async with AsyncExitStack() as release:
        release.push_async_callback(parts.database.close)
        release.push_async_callback(parts.feed.close)
        release.callback(parts.resolver.close)
        server = make_server(
            lambda raw: _register(parts, raw),
            host=settings.host,
            port=settings.grpc_port,
            tls=tls,
            readiness=parts.readiness,
            services=(SNAPSHOT_SERVICE, REGION_SERVICE),
        )
        release.push_async_callback(server.stop, 0)
        bound("grpc", server.port)
        registry = registry_of(_metric_sources(parts, tls))
        context = ApiContext(parts.database, parts.feed, parts.secrets, clock, settings.bootstrap_admin_token)
        api = build_api(context, [fleet_router(_fleet_sources(parts, settings, clock))])
        add_health(api, "controlplane", parts.readiness)
        add_metrics(api, registry)
        closing = asyncio.Event()
        grace = settings.shutdown_grace_seconds
        try:
            async with asyncio.TaskGroup() as group:
                serving = [
                    group.create_task(
                        serve_http(
                            IndexPage(api),
                            host=settings.host,
                            port=settings.port,
                            stop=closing,
                            tls=tls,
                            on_bound=lambda _host, port: bound("http", port),
                            grace_seconds=grace,
                        )
                    ),
                    group.create_task(server.serve(closing, grace_seconds=grace)),
                ]
                if settings.admin_port is not None:
                    serving.append(
                        group.create_task(
                            serve_http(
                                admin_app("controlplane", parts.readiness, registry),
                                host=settings.host,
                                port=settings.admin_port,
                                stop=closing,
                                tls=tls,
                                flag="--admin-port",
                                on_bound=lambda _host, port: bound("admin", port),
                                grace_seconds=grace,
                            )
                        )
                    )
                working = group.create_task(_work(parts, settings, clock, ready))
                await announce_stop(stop, parts.readiness, settings.shutdown_delay_seconds)
                parts.tokens.stop()
                closing.set()
                await asyncio.gather(*serving)
                working.cancel()
        except* HeadraceError as errors:
            raise _first(errors) from None
    _log.info("stopped")


def _first(group: BaseExceptionGroup[HeadraceError]) -> HeadraceError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


async def _work(
    parts: ControlPlane, settings: ControlPlaneSettings, clock: Clock, ready: Callable[[], None] | None
) -> None:
    """Everything that goes on beside serving, once the database is there.

    Raises only what keeps the process from ever working. A part that fails later is told and started again: the others, and
    the requests that do without it, go on.
    """
    url = settings.database_direct_url or settings.database()
    await prepare(parts.database, url, parts.secrets, parts.readiness, upgrade=settings.migrate)
    await say_how_to_get_in(parts.database, bool(settings.bootstrap_admin_token))
    if ready is not None:
        _once_ready(parts.readiness, ready)
    tasks = Supervisor(parts.faults)
    try:
        tasks.start("publisher", parts.publisher.run)
        tasks.start("router-tokens", parts.tokens.run)
        tasks.start("intake", parts.intake.run)
        tasks.start("database-probe", partial(_probe, parts))
        tasks.start("housekeeping", partial(keep_house, parts.database, uuid4().hex, clock))
        await tasks.wait(asyncio.Event())  # until cancelled
    finally:
        await tasks.close()


def _once_ready(readiness: Readiness, ready: Callable[[], None]) -> None:
    told = False

    def flipped(is_ready: bool) -> None:
        nonlocal told
        if is_ready and not told:
            told = True
            _log.info("ready")
            ready()

    readiness.subscribe(flipped)


async def _probe(parts: ControlPlane) -> None:
    """A database that answers reads but refuses writes (a demoted primary, case-D01) makes this copy unready."""
    while True:
        try:
            await parts.database.probe_write()
            parts.readiness.set("database", True)
        except Unavailable as error:
            parts.readiness.set("database", False, str(error))
        except Exception:
            parts.readiness.set("database", False, "whether it can be written cannot be told")
            raise
        await asyncio.sleep(2.0)


def _register(parts: ControlPlane, raw: grpc.aio.Server) -> None:
    parts.snapshots.register(raw)
    parts.regions.register(raw)


def _fleet_sources(parts: ControlPlane, settings: ControlPlaneSettings, clock: Clock) -> FleetSources:
    def catalogue_objects() -> Mapping[tuple[str, str], IntentObject]:
        catalogue = parts.publisher.catalogue
        if catalogue is None:
            raise Unavailable("the control plane has not read its intent yet")
        return catalogue.objects

    return FleetSources(
        live=parts.intake.live,
        objects=catalogue_objects,
        snapshot=parts.publisher.snapshot,
        signing_keys=parts.secrets.jwks,
        locate=parts.resolver.locate,
        trusted=TrustedProxies(settings.trusted_proxies),
        monotonic=clock.monotonic,
    )


def _metric_sources(parts: ControlPlane, tls: TlsFiles) -> MetricSources:
    return MetricSources(
        version=importlib.metadata.version("headrace"),
        head=lambda: parts.publisher.head,
        feed_age_seconds=parts.publisher.feed_age_seconds,
        watchers=lambda: parts.publisher.watchers,
        live=parts.intake.live,
        rejected_reports=lambda: parts.intake.rejected,
        connections=parts.database.checked_out,
        certificate_expiry=tls.expiry,
        faults=parts.faults.by_part,
    )
