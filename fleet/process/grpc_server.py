"""gRPC servers and channels with options that belong together.

Both sides' keepalive values stand here because one without the other gets connections closed as abuse (case-X13): clients
ping after 30 s without data, servers permit a ping every 20 s, with or without a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import _async as aio_health
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.process.health import Readiness
from fleet.process.serve import bind, bind_error
from fleet.process.tls import TlsFiles

MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
CLIENT_PING_SECONDS = 30
CLIENT_PING_TIMEOUT_SECONDS = 10
SERVER_PERMITS_PING_SECONDS = 20
CONNECTION_AGE_SECONDS = 30 * 60
CONNECTION_AGE_GRACE_SECONDS = 5 * 60

_Options = list[tuple[str, Any]]

_LIMITS: _Options = [
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
]


def server_options(*, reuse_port: bool = False) -> _Options:
    """Options of every server. Connections are renewed every half hour, so that load spreads and certificates rotate."""
    return [
        *_LIMITS,
        ("grpc.http2.min_ping_interval_without_data_ms", SERVER_PERMITS_PING_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", CLIENT_PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", CLIENT_PING_TIMEOUT_SECONDS * 1000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_connection_age_ms", CONNECTION_AGE_SECONDS * 1000),
        ("grpc.max_connection_age_grace_ms", CONNECTION_AGE_GRACE_SECONDS * 1000),
        ("grpc.so_reuseport", int(reuse_port)),
    ]


def channel_options() -> _Options:
    """Options of every channel. Reconnection starts fast and stays below 5 s; callers add jitter across a fleet."""
    return [
        *_LIMITS,
        ("grpc.keepalive_time_ms", CLIENT_PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", CLIENT_PING_TIMEOUT_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 2000),  # gRPC's name for how long a connection may take to come about
        ("grpc.max_reconnect_backoff_ms", 5000),
        ("grpc.dns_min_time_between_resolutions_ms", 5000),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


class Server:
    """A grpc.aio server with ``grpc.health.v1.Health`` that follows a Readiness."""

    def __init__(self, server: grpc.aio.Server, port: int, servicer: aio_health.HealthServicer) -> None:
        self.raw = server
        self.port = port
        """The port in use, also when 0 was asked for."""
        self._health = servicer
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Future[None] | None = None
        self._stopping: asyncio.Future[None] | None = None

    async def serve(self, stop: asyncio.Event, *, grace_seconds: float = 5.0) -> None:
        """Serve until ``stop`` is set, then let calls end for at most ``grace_seconds``."""
        # A start that is cancelled half-way leaves gRPC's own loop broken, so it is always let finish.
        self._starting = asyncio.ensure_future(self.raw.start())
        try:
            await asyncio.shield(self._starting)
            await stop.wait()
        finally:
            await self.stop(grace_seconds)

    async def stop(self, grace_seconds: float) -> None:
        """Say NOT_SERVING, take no new calls, end the running ones.

        May be called more than once, also while a call is under way: gRPC itself cannot be shut down twice.
        """
        await self._health.enter_graceful_shutdown()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self.raw.stop(grace_seconds))
        await asyncio.shield(self._stopping)
        for task in list(self._tasks):
            task.cancel()

    def follow(self, readiness: Readiness, services: Iterable[str]) -> None:
        """Answer health checks for the server as a whole and for ``services`` as ``readiness`` says. Needs a running loop."""
        names = ("", *services)

        async def tell(ready: bool) -> None:
            state = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
            for name in names:
                await self._health.set(name, state)

        def flipped(ready: bool) -> None:
            task = asyncio.get_running_loop().create_task(tell(ready))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        readiness.subscribe(flipped)


def make_server(
    register: Callable[[grpc.aio.Server], None],
    *,
    host: str,
    port: int,
    tls: TlsFiles | None = None,
    readiness: Readiness | None = None,
    services: Sequence[str] = (),
    interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
    reuse_port: bool = False,
    flag: str = "--grpc-port",
    max_concurrent_rpcs: int | None = None,
) -> Server:
    """A bound, not yet started server; ``register`` adds the servicers. Raises BindError."""
    server = grpc.aio.server(
        options=server_options(reuse_port=reuse_port),
        interceptors=list(interceptors),
        maximum_concurrent_rpcs=max_concurrent_rpcs,
    )
    servicer = aio_health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    register(server)
    address = grpc_address(host, port)
    if not reuse_port:
        bind(host, port, flag=flag).close()  # for a clear error: gRPC would only say that it failed
    try:
        if tls is not None and tls.serves:
            bound = server.add_secure_port(address, tls.grpc_server_credentials())
        else:
            bound = server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise bind_error(host.strip("[]"), port, flag, None)
    made = Server(server, bound, servicer)
    if readiness is not None:
        made.follow(readiness, services)
    return made


def make_channel(
    address: str,
    *,
    tls: TlsFiles | None = None,
    server_name: str | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Channel:
    """A channel to ``host:port`` or ``[addr]:port``; every address of a DNS name is tried, and names are resolved again.

    ``https://`` or ``grpcs://`` before it demands TLS, ``http://`` or ``grpc://`` clear text; without either, TLS is used when
    ``tls`` has a CA. ``server_name`` overrides the name that the certificate must carry.
    """
    scheme, mark, rest = address.partition("://")
    target = (rest if mark else address).rstrip("/")
    everything: _Options = [*channel_options(), ("grpc.service_config", _ROUND_ROBIN), *options]
    secure = scheme in {"https", "grpcs"} if mark else tls is not None and tls.secures_channels
    if not secure:
        return grpc.aio.insecure_channel(target, options=everything)
    if server_name is not None:
        everything.append(("grpc.ssl_target_name_override", server_name))
    credentials = grpc.ssl_channel_credentials() if tls is None else tls.grpc_channel_credentials()
    return grpc.aio.secure_channel(target, credentials, options=everything)


_ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'


def grpc_address(host: str, port: int) -> str:
    """``host:port`` with brackets where IPv6 wants them."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
