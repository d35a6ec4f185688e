"""What processes share: health, serving and stopping, taken ports, TLS that follows its files, gRPC, incarnations."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Counter

from fleet.errors import InvalidInput
from fleet.process import grpc_server
from fleet.process.admin import admin_app
from fleet.process.grpc_server import make_channel, make_server
from fleet.process.health import HEALTH_PATHS, Readiness
from fleet.process.incarnation import hold_state_directory, next_incarnation, write_atomically
from fleet.process.insecure import require_safe
from fleet.process.serve import BindError, announce_stop, bind, serve_http
from fleet.process.settings import TlsSettings
from fleet.process.tls import TlsFiles
from tests.edges.certificates import Authority


@asynccontextmanager
async def serving(
    app: Any, tls: TlsFiles | None = None
) -> AsyncIterator[tuple[int, asyncio.Event, asyncio.Task[None]]]:
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve_http(app, host="127.0.0.1", port=0, stop=stop, tls=tls, on_bound=lambda _h, p: bound.set_result(p))
    )
    try:
        yield await asyncio.wait_for(bound, 10), stop, task
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)


def client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(trust_env=False, timeout=10)


# Health and metrics


async def test_health_paths_and_reasons() -> None:
    readiness = Readiness("snapshot", "streams")
    registry = CollectorRegistry()
    Counter("headrace_things", "x", registry=registry).inc()
    async with serving(admin_app("router", readiness, registry)) as (port, _, _), client() as http:
        url = f"http://127.0.0.1:{port}"

        async def states() -> dict[str, set[int]]:
            found: dict[str, set[int]] = {}
            for path, kind in HEALTH_PATHS.items():
                found.setdefault(kind, set()).add((await http.get(url + path)).status_code)
            return found

        assert await states() == {"live": {200}, "ready": {503}, "started": {503}}
        readiness.set("streams", ok=False, message="no agent yet")
        reasons = (await http.get(f"{url}/readyz")).json()["reasons"]
        assert reasons == {"snapshot": "not yet", "streams": "no agent yet"}
        readiness.set("snapshot", ok=True)
        readiness.set("streams", ok=True)
        assert await states() == {"live": {200}, "ready": {200}, "started": {200}}
        readiness.set("snapshot", ok=False, message="lost")
        assert await states() == {"live": {200}, "ready": {503}, "started": {200}}
        readiness.set("snapshot", ok=True)
        readiness.draining()
        assert "draining" in (await http.get(f"{url}/readyz")).json()["reasons"]
        metrics = await http.get(f"{url}/metrics")
        assert "headrace_things_total 1.0" in metrics.text
        assert metrics.headers["content-type"].startswith("text/plain")
        assert (await http.head(f"{url}/livez")).status_code == 200
        assert (await http.get(f"{url}/docs")).status_code == 404


def test_readiness_tells_only_when_it_flips() -> None:
    seen: list[bool] = []
    readiness = Readiness("a", "b")
    readiness.subscribe(seen.append)
    for key, ok in (("a", True), ("b", True), ("b", True), ("a", False), ("b", False), ("a", True), ("b", True)):
        readiness.set(key, ok)
    readiness.draining()
    readiness.set("a", True)
    assert seen == [False, True, False, True, False]


# Serving and stopping


async def test_a_running_request_is_finished_and_new_ones_are_refused() -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            return
        entered.set()
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async with serving(app) as (port, stop, task), client() as http:
        running = asyncio.ensure_future(http.get(f"http://127.0.0.1:{port}/"))
        await entered.wait()
        stop.set()
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    await asyncio.sleep(0.02)
                except ConnectionError:
                    break
        assert not task.done()
        go.set()
        assert (await running).text == "done"


async def test_balancers_get_their_delay_before_listeners_close() -> None:
    readiness, stop = Readiness(), asyncio.Event()
    closing = asyncio.ensure_future(announce_stop(stop, readiness, 0.05))
    await asyncio.sleep(0)
    assert readiness.ready
    stop.set()
    await asyncio.sleep(0.01)
    assert not readiness.ready
    assert not closing.done()
    assert (await closing).is_set()


async def test_serving_that_is_cancelled_frees_the_port_and_leaves_nothing_running() -> None:
    """A process that fails beside its server ends with its own one line, not with the server's traceback."""
    app = admin_app("router", Readiness(), CollectorRegistry())
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    before = asyncio.all_tasks()
    serving_task = asyncio.ensure_future(
        serve_http(app, host="127.0.0.1", port=0, stop=asyncio.Event(), on_bound=lambda _h, p: bound.set_result(p))
    )
    port = await bound
    async with client() as http:
        while (await http.get(f"http://127.0.0.1:{port}/livez")).status_code != 200:
            pass
    serving_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving_task
    assert not {t for t in asyncio.all_tasks() - before if "lifespan" in repr(t.get_coro()).lower()}
    bind("127.0.0.1", port).close()


def test_a_taken_port_is_one_clear_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindError) as caught:
            bind("127.0.0.1", port, flag="--admin-port")
        assert str(caught.value) == (
            f"127.0.0.1:{port} is taken by another process; choose another port with --admin-port or stop the other"
        )
        with pytest.raises(BindError, match="taken"):
            bind("127.0.0.1", port, reuse_port=True)
    with pytest.raises(BindError, match="not an address of this machine"):
        bind("192.0.2.1", 0)
    with pytest.raises(BindError, match="resolves"):
        bind("no such host", 0)


async def test_a_taken_grpc_port_is_one_clear_line() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(BindError, match="--grpc-port"):
        make_server(lambda _server: None, host="127.0.0.1", port=taken.getsockname()[1])


def test_workers_may_share_a_port_when_all_say_so() -> None:
    with bind("127.0.0.1", 0, reuse_port=True) as first:
        bind("127.0.0.1", first.getsockname()[1], reuse_port=True).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_nothing(host: str) -> None:
    require_safe(host, tls=False, auth=False, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
@pytest.mark.parametrize(("tls", "auth"), [(False, False), (True, False), (False, True)])
def test_off_loopback_needs_tls_and_authentication(host: str, tls: bool, auth: bool) -> None:
    with pytest.raises(InvalidInput, match="HEADRACE_INSECURE=true"):
        require_safe(host, tls=tls, auth=auth, insecure=False)
    require_safe(host, tls=True, auth=True, insecure=False)
    require_safe(host, tls=tls, auth=auth, insecure=True)


# TLS


class Pki:
    """An authority, a server's certificate and a client's, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create("first")
        self.ca = self.authority.write(folder / "ca.pem")
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.serial = self.authority.issue(self.cert, self.key)

    def settings(self, *, client_ca: bool = False) -> TlsSettings:
        return TlsSettings(cert=self.cert, key=self.key, ca=self.ca, client_ca=self.ca if client_ca else None)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


async def serial_at(port: int, context: ssl.SSLContext) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:80]
    return x509.load_der_x509_certificate(certificate).serial_number


async def test_new_connections_get_the_certificate_that_is_on_disk_now(pki: Pki, tmp_path: Path) -> None:
    tls = TlsFiles(pki.settings())
    trusting = ssl.create_default_context(cafile=str(pki.ca))
    async with serving(admin_app("x", Readiness(), CollectorRegistry()), tls) as (port, _, _):
        assert await serial_at(port, trusting) == pki.serial
        renewed = pki.authority.issue(pki.cert, pki.key)
        assert await serial_at(port, trusting) == renewed
        pki.cert.write_text("broken")
        assert await serial_at(port, trusting) == renewed, "a set that does not load leaves the old one in force"
        assert "cert" in tls.error
        again = pki.authority.issue(pki.cert, pki.key)
        assert await serial_at(port, trusting) == again
        assert tls.error == ""
    assert tls.expiry() is not None


async def test_clients_without_the_right_certificate_are_refused(pki: Pki, tmp_path: Path) -> None:
    tls = TlsFiles(pki.settings(client_ca=True))
    anonymous = ssl.create_default_context(cafile=str(pki.ca))
    stranger = ssl.create_default_context(cafile=str(pki.ca))
    Authority.create("other").issue(tmp_path / "c.pem", tmp_path / "k.pem")
    stranger.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    async with serving(admin_app("x", Readiness(), CollectorRegistry()), tls) as (port, _, _):
        assert await serial_at(port, TlsFiles(pki.settings()).client_context()) == pki.serial
        for context in (anonymous, stranger):
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await serial_at(port, context)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": None}, "cert and key are wanted together"),
        ({"cert": None}, "cert and key are wanted together"),
        ({"cert": Path("/none.pem")}, "/none.pem: no such file"),
        ({"key": Path("/none.pem")}, "/none.pem: no such file"),
        ({"ca": Path("/none.pem")}, "/none.pem"),
        ({"cert": None, "key": None, "client_ca": Path("/x")}, "wants tls.cert"),
    ],
)
def test_wrong_tls_settings_are_named(pki: Pki, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        TlsFiles(pki.settings().model_copy(update=change))
    other = Authority.create("x")
    other.issue(pki.cert.parent / "o.pem", pki.cert.parent / "ok.pem")
    with pytest.raises(InvalidInput, match="KEY_VALUES_MISMATCH"):
        TlsFiles(pki.settings().model_copy(update={"key": pki.cert.parent / "ok.pem"}))


# gRPC


async def health(channel: grpc.aio.Channel, service: str = "") -> str:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10, wait_for_ready=True)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def test_grpc_health_follows_readiness_for_the_server_and_each_service() -> None:
    readiness = Readiness("snapshot")
    server = make_server(
        lambda _server: None, host="127.0.0.1", port=0, readiness=readiness, services=("headrace.v1.AgentService",)
    )
    stop = asyncio.Event()
    task = asyncio.ensure_future(server.serve(stop, grace_seconds=0.1))
    async with make_channel(f"127.0.0.1:{server.port}") as channel:
        for service in ("", "headrace.v1.AgentService"):
            assert await health(channel, service) == "NOT_SERVING"
        readiness.set("snapshot", ok=True)
        await asyncio.sleep(0)
        assert await health(channel, "headrace.v1.AgentService") == "SERVING"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(channel, "unknown")
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        readiness.draining()
        await asyncio.sleep(0)
        assert await health(channel) == "NOT_SERVING"
    stop.set()
    await asyncio.wait_for(task, 10)


async def test_grpc_with_tls_follows_its_files(pki: Pki) -> None:
    tls = TlsFiles(pki.settings(client_ca=True))
    server = make_server(lambda _server: None, host="127.0.0.1", port=0, tls=tls)
    await server.raw.start()
    try:
        for _ in range(2):
            async with make_channel(f"localhost:{server.port}", tls=TlsFiles(pki.settings())) as channel:
                assert await health(channel) == "SERVING"
            pki.authority.issue(pki.cert, pki.key)
        nobody = TlsFiles(TlsSettings(ca=pki.ca))
        async with make_channel(f"https://localhost:{server.port}", tls=nobody) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=3)
    finally:
        await server.stop(0)


def options(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(pairs)


def test_case_x13_both_sides_of_keepalive_belong_together() -> None:
    server, channel = options(grpc_server.server_options()), options(grpc_server.channel_options())
    assert channel["grpc.keepalive_time_ms"] >= server["grpc.http2.min_ping_interval_without_data_ms"] + 5000
    assert channel["grpc.http2.max_pings_without_data"] == 0
    for name in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert server[name] == channel[name] == 16 * 1024 * 1024
    assert server["grpc.so_reuseport"] == 0
    assert channel["grpc.enable_http_proxy"] == 0


async def test_case_x13_pings_on_an_idle_stream_are_not_punished(monkeypatch: pytest.MonkeyPatch) -> None:
    # The real pair, thirty times faster: 1 s between pings, 0.67 s permitted. A server with the stock options would answer the
    # third ping with too_many_pings and close the stream.
    monkeypatch.setattr(grpc_server, "CLIENT_PING_SECONDS", 1)
    fast_server = [
        (name, 667 if name.endswith("min_ping_interval_without_data_ms") else value)
        for name, value in grpc_server.server_options()
    ]
    monkeypatch.setattr(grpc_server, "server_options", lambda **_: fast_server)
    server = make_server(lambda _server: None, host="127.0.0.1", port=0, readiness=Readiness())
    await server.raw.start()
    async with make_channel(f"127.0.0.1:{server.port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        ended = asyncio.ensure_future(watch.read())
        done, _ = await asyncio.wait([ended], timeout=5.0)
        assert not done, "the idle stream was closed"
        ended.cancel()
    await server.stop(0)


async def test_messages_above_four_megabytes_pass() -> None:
    server = make_server(lambda _server: None, host="127.0.0.1", port=0)
    await server.raw.start()
    async with make_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(channel, "x" * (6 << 20))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND, "read, and no such service"
    await server.stop(0)


# State


def test_incarnations_only_rise(tmp_path: Path) -> None:
    first = next_incarnation(tmp_path, wall_seconds=1000.0)
    assert first == 1000
    assert next_incarnation(tmp_path, wall_seconds=1000.0) == 1001
    assert next_incarnation(tmp_path, wall_seconds=10.0) == 1002, "a clock that went back lowers nothing"
    assert next_incarnation(tmp_path, wall_seconds=5000.5) == 5000
    for damage in ("", "x", "-5", "9" * 30, "\xff"):
        (tmp_path / "incarnation").write_bytes(damage.encode("latin-1"))
        assert next_incarnation(tmp_path, wall_seconds=6000.0) == 6000
    assert (tmp_path / "incarnation").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["incarnation"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def _hold(path: str, held: Any, release: Any) -> None:
    with hold_state_directory(Path(path)):
        held.set()
        release.wait(30)


def test_a_state_directory_belongs_to_one_process(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    held, release = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(str(tmp_path / "s"), held, release))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(InvalidInput, match="in use by another process"), hold_state_directory(tmp_path / "s"):
            pass
    finally:
        release.set()
        other.join(30)
    with hold_state_directory(tmp_path / "s") as path:
        assert path.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="state_dir"), hold_state_directory(tmp_path / "file"):
        pass


def test_port_zero_gives_a_real_port_for_both_families() -> None:
    with bind("127.0.0.1", 0) as four:
        assert four.getsockname()[1] > 0
    if socket.has_ipv6:
        with bind("[::1]", 0) as six:
            assert six.family == socket.AF_INET6
