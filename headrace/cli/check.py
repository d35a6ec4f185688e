"""check: tries what a process will need before it is started; a line each, ok or what to do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer

from headrace.cli.errors import CliError, lines_of
from headrace.cli.options import Config

app = typer.Typer(
    help="Try what a process needs: devices, engines, tokens, TLS, reachability.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_TIMEOUT_SECONDS = 5.0


class Report:
    """Lines of a check. ``failed`` is true once one of them is not ok."""

    def __init__(self) -> None:
        self.failed = False

    def ok(self, what: str, said: str = "") -> None:
        print(f"ok      {what}{f': {said}' if said else ''}")

    def note(self, what: str, said: str) -> None:
        print(f"note    {what}: {said}")

    def wrong(self, what: str, to_do: str) -> None:
        self.failed = True
        print(f"FAILED  {what}: {to_do}")

    async def tried(self, what: str, attempt: Callable[[], Awaitable[str]], to_do: str) -> None:
        """``attempt`` gives what to say; any failure of it is a line with ``to_do``."""
        from fleet.errors import HeadraceError

        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                self.ok(what, await attempt())
        except TimeoutError:
            self.wrong(what, f"no answer within {_TIMEOUT_SECONDS:.0f} s; {to_do}")
        except (OSError, HeadraceError, CliError) as error:
            self.wrong(what, f"{_reason(error)}; {to_do}")


@app.command()
def controlplane(config: Config = None) -> None:
    """Settings, database and its schema, ports, TLS, geo database."""
    settings, report = _begin("controlplane", config)
    if settings is not None:
        asyncio.run(_controlplane(settings, report))
    _end(report)


@app.command()
def router(config: Config = None) -> None:
    """Settings, fleet file or control planes and token, Redis, ports, TLS, geo database, state directory."""
    settings, report = _begin("router", config)
    if settings is not None:
        asyncio.run(_router(settings, report))
    _end(report)


@app.command()
def agent(config: Config = None) -> None:
    """Settings, devices, engines, routers, state directory."""
    settings, report = _begin("agent", config)
    if settings is not None:
        asyncio.run(_agent(settings, report))
    _end(report)


def _begin(process: str, config: Path | None) -> tuple[Any, Report]:
    from fleet.errors import InvalidInput
    from fleet.process import logs
    from headrace.settings import load_process

    logs.setup(process, level="critical")  # the report says it all; a part's own log would be between its lines
    report = Report()
    try:
        settings = load_process(process, config_file=config).settings
    except InvalidInput as error:
        for line in lines_of(error):
            report.wrong("settings", line)
        return None, report
    report.ok("settings")
    return settings, report


def _end(report: Report) -> None:
    if report.failed:
        raise typer.Exit(1)


async def _controlplane(settings: Any, report: Report) -> None:
    from controlplane.settings import SQLITE_FILE
    from controlplane.store import migrate

    async def database() -> str:
        url = settings.database_direct_url or settings.database()
        if not settings.database_url and not (Path(settings.state_dir) / SQLITE_FILE).exists():
            return "SQLite file is made at the first start"
        revision = await asyncio.to_thread(migrate.current, url)
        if revision == migrate.head():
            return f"schema {revision}"
        return f"schema {revision or 'not made yet'}; `headrace db upgrade` or the next start brings it to {migrate.head()}"

    await report.tried("database", database, "check DATABASE_URL and that the server runs")
    if not settings.secret_key:
        report.note("SECRET_KEY", "not set; one is made in the state directory, which copies cannot share")
    _state_directory(settings.state_dir, report)
    _ports(settings.host, [("--port", settings.port), ("--grpc-port", settings.grpc_port)], report)
    _tls(settings, report)
    _geo(settings.geoip_db, report)
    _proxies(settings.trusted_proxies, report)


async def _router(settings: Any, report: Report) -> None:
    from fleet.errors import InvalidInput

    if settings.fleet:
        import os

        from fleet.resources.file import load

        try:
            report.ok("fleet file", f"{len(load(Path(settings.fleet), os.environ))} resources")
        except InvalidInput as error:
            for line in lines_of(error):
                report.wrong("fleet file", line)
    for address in settings.controlplane:
        await report.tried(f"control plane {address}", partial(_reach, address), "check CONTROLPLANE and the network")
        if settings.router_token and settings.region:
            await report.tried(
                f"token at {address}", partial(_token, address, settings), "make one with `headrace token create`"
            )
    if settings.controlplane and not settings.router_token:
        report.wrong("ROUTER_TOKEN", "not set; `headrace token create NAME --role router --region REGION` makes one")
    if settings.controlplane and not settings.region:
        report.wrong("REGION", "not set; a router with a control plane must say which region it serves")
    if not settings.fleet and not settings.controlplane:
        report.wrong("intent", "neither CONTROLPLANE nor --fleet is given; a router needs one of them")
    if settings.redis_url:
        await report.tried("redis", lambda: _redis(settings.redis_url), "check REDIS_URL; routers go on without it")
    _state_directory(settings.state_dir, report)
    ports = [("--port", settings.port), ("--grpc-port", settings.grpc_port), ("--admin-port", settings.admin_port)]
    _ports(settings.host, ports, report)
    _tls(settings, report)
    _geo(settings.geoip_db, report)
    _proxies(settings.trusted_proxies, report)


async def _agent(settings: Any, report: Report) -> None:
    await report.tried("devices", lambda: _devices(settings), "check the driver, or set --devices")
    for engine in settings.engines:
        await report.tried(f"engine {engine.name}", partial(_models, engine), "check its url, and that it runs")
    if not settings.engines:
        report.note("engines", "none configured; the node's GPUs are reported and nothing is served")
    for address in settings.routers:
        await report.tried(f"router {address}", partial(_reach, address), "check ROUTERS and the network")
    if not settings.routers:
        report.wrong("ROUTERS", "not set; an agent needs the gRPC address of a router of its region")
    if not settings.join_token:
        report.note("JOIN_TOKEN", "not set; the node must have joined before, with the same state directory")
    if not settings.zone:
        report.wrong("ZONE", "not set; an agent must say which zone its node is in")
    _state_directory(settings.state_dir, report)
    _ports(settings.host, [("--port", settings.port)], report)
    _tls(settings, report)


async def _reach(address: str) -> str:
    host, port = _host_and_port(address)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    reader, writer = await asyncio.open_connection(host, port)
    writer.close()
    await writer.wait_closed()
    del reader
    return f"reachable ({', '.join(addresses)})"


async def _token(address: str, settings: Any) -> str:
    """Ask for the snapshot as the router would, and hang up when it begins to come."""
    import grpc

    from fleet.process.grpc_server import make_channel
    from fleet.process.settings import TlsSettings
    from fleet.process.tls import TlsFiles
    from fleet.wire.headrace.v1 import snapshot_pb2, snapshot_pb2_grpc

    request = snapshot_pb2.WatchRequest(router_uid="check", region=settings.region)
    async with make_channel(address, tls=TlsFiles(TlsSettings.of(settings))) as channel:
        stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Watch(request, metadata=(("authorization", f"Bearer {settings.router_token}"),))
        try:
            await call.read()
            code, detail = (await call.code(), await call.details()) if call.done() else (grpc.StatusCode.OK, "")
        except grpc.aio.AioRpcError as error:
            code, detail = error.code(), error.details()
        call.cancel()
    if code is not grpc.StatusCode.OK:
        raise CliError(f"refused: {detail or code.name}")
    return f"good for region {settings.region}"


async def _redis(url: str) -> str:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        client = Redis.from_url(url, socket_connect_timeout=2.0, socket_timeout=2.0)
    except ValueError as error:
        raise CliError(str(error)) from None
    try:
        info = await client.info("server")
        return f"version {info.get('redis_version', 'unknown')}"
    except RedisError as error:
        raise CliError(type(error).__name__) from None
    finally:
        await client.aclose()


async def _devices(settings: Any) -> str:
    from agents.accelerators.open import open_accelerators

    source = open_accelerators(settings)
    sample = await asyncio.to_thread(source.read)
    return f"{len(sample.devices)} devices" + (f" ({sample.error})" if sample.error else "")


async def _models(engine: Any) -> str:
    import httpx2

    headers = {"authorization": f"Bearer {engine.api_key}"} if engine.api_key else {}
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS) as client:
            answer = await client.get(f"{engine.url}/v1/models", headers=headers)
    except httpx2.HTTPError as error:
        raise CliError(str(error) or type(error).__name__) from None
    if answer.status_code in (401, 403):
        raise CliError("it refuses the api_key")
    if answer.status_code != 200:
        raise CliError(f"/v1/models answers {answer.status_code}")
    try:
        names = [str(model["id"]) for model in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        raise CliError("/v1/models does not answer like an OpenAI-compatible server") from None
    return f"serves {', '.join(names) or 'no model'}"


def _host_and_port(address: str) -> tuple[str, int]:
    bare = address.partition("://")[2] or address
    host, colon, port = bare.rstrip("/").rpartition(":")
    if not colon or not port.isdigit():
        raise CliError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def _ports(host: str, ports: list[tuple[str, int]], report: Report) -> None:
    from fleet.process.serve import BindError, bind

    for flag, port in ports:
        try:
            bind(host, port, flag=flag).close()
        except BindError as error:
            report.wrong(f"port {port}", str(error))
        else:
            report.ok(f"port {port}", f"free on {host}")


def _tls(settings: Any, report: Report) -> None:
    import time

    from fleet.errors import InvalidInput
    from fleet.process.insecure import is_loopback
    from fleet.process.settings import TlsSettings
    from fleet.process.tls import TlsFiles

    try:
        files = TlsFiles(TlsSettings.of(settings))
    except InvalidInput as error:
        for line in lines_of(error):
            report.wrong("TLS", line)
        return
    expiry = files.expiry()
    if expiry is not None:
        days = (expiry - time.time()) / 86400
        (report.ok if days > 0 else report.wrong)("TLS certificate", f"expires in {days:.0f} days")
    elif not is_loopback(settings.host) and not settings.insecure:
        report.wrong("TLS", f"{settings.host} is not loopback; set TLS_CERT and TLS_KEY, or INSECURE=true")


def _geo(path: str, report: Report) -> None:
    from fleet.geo.resolver import OriginResolver

    if not path:
        report.note("GEOIP_DB", "not set; clients are taken to be where the router is")
        return
    resolver = OriginResolver(path)
    if resolver.available:
        report.ok("geo database", path)
    else:
        report.wrong("geo database", resolver.error)
    resolver.close()


def _proxies(cidrs: list[str], report: Report) -> None:
    from fleet.errors import InvalidInput
    from fleet.geo.client_address import TrustedProxies

    try:
        TrustedProxies(cidrs)
    except InvalidInput as error:
        report.wrong("TRUSTED_PROXIES", str(error))


def _state_directory(path: str, report: Report) -> None:
    from fleet.errors import InvalidInput
    from fleet.process.incarnation import hold_state_directory

    if not path:
        report.note("STATE_DIR", "not set; a restart begins with nothing")
        return
    if not Path(path).exists():
        report.note("state directory", f"{path} is made at the first start")
        return
    try:
        with hold_state_directory(Path(path)):
            report.ok("state directory", path)
    except InvalidInput as error:
        report.wrong("state directory", error.errors[0].reason)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
