"""The whole process: how it starts, what it answers over HTTP, how it stops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from psycopg import sql
from sqlalchemy import text
from structlog.testing import capture_logs

from controlplane.api.fleet.endpoints import _shown
from controlplane.main import run
from controlplane.secrets import secrets_for
from controlplane.settings import ControlPlaneSettings
from controlplane.startup import say_how_to_get_in
from controlplane.store import migrate
from fleet.capacity import CapacityRow, DemandRow
from fleet.errors import HeadraceError, InvalidInput
from fleet.snapshot import IntentObject, IntentVersion
from tests.controlplane_feed.copies import ADMIN, SECRET_KEY, TIMEOUT, Copy, Reports, Router, Store, copy, eventually
from tests.controlplane_feed.test_reports import report


@asynccontextmanager
async def client(plane: Copy, token: str | None = ADMIN) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(base_url=plane.http, headers=headers, timeout=TIMEOUT) as made:
        yield made


async def _fails(**changes: Any) -> str:
    """The one line with which a control plane refuses to start."""
    with pytest.raises(HeadraceError) as caught:
        async with asyncio.timeout(TIMEOUT):
            await run(ControlPlaneSettings.embedded(**changes), stop=asyncio.Event())
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_embedded_it_needs_nothing(tmp_path: Path) -> None:
    """No database, no key, no token given: SQLite and a generated key in the state directory."""
    async with copy("", tmp_path / "state", secret_key=[]) as plane, client(plane) as http:
        assert (await http.get("/readyz")).status_code == 200
        created = await http.post("/api/v1/regions", json={"name": "eu-west", "spec": {}})
        assert created.status_code == 201, created.text
    assert {p.name for p in (tmp_path / "state").iterdir()} >= {
        "controlplane.sqlite3",
        "controlplane.sqlite3.secret-key",
    }
    async with copy("", tmp_path / "state", secret_key=[]) as plane, client(plane) as http:
        assert (await http.get("/api/v1/regions/eu-west")).json()["uid"] == created.json()["uid"]


async def test_a_log_line_says_how_to_get_in_when_nobody_could(sqlite_store: Store, sqlite_url: str) -> None:
    for bootstrap, told in ((True, 0), (False, 1)):
        with capture_logs() as lines:
            await say_how_to_get_in(sqlite_store.database, bootstrap)
        assert [line["event"] for line in lines].count("no_admin_token") == told


async def test_from_a_rest_write_to_a_router(database_url: str, tmp_path: Path) -> None:
    """What the API is told reaches a watch, secrets in the digest form only; and nothing of it shows in /snapshot."""
    async with copy(database_url, tmp_path) as plane, client(plane) as http:
        for path, body in [
            ("regions", {"name": "eu-west", "spec": {"latitude": 53.35, "longitude": -6.26}}),
            ("tenants", {"name": "acme", "spec": {}}),
            ("admin-tokens", {"name": "r", "spec": {"role": "router", "region": "eu-west"}}),
            ("keys", {"name": "acme-1", "spec": {"tenant": "acme"}}),
        ]:
            answer = await http.post(f"/api/v1/{path}", json=body)
            assert answer.status_code == 201, answer.text
            if path == "admin-tokens":
                token = answer.json()["secret"]
            if path == "keys":
                tenant_key = answer.json()["secret"]
        # the first token that is made ends the bootstrap token only if it is an admin's: it still works here
        router = Router(plane.channel(), token, "eu-west")
        await router.until(lambda r: r.held is not None and any(o.kind == "key" for o in r.held.objects.values()))
        assert router.held is not None
        [key] = [o for o in router.held.objects.values() if o.kind == "key"]
        assert len(bytes.fromhex(key.secrets["secret_hmac"])) == 32
        assert tenant_key not in repr(router.held) + str(key.secrets)

        shown = await http.get("/api/v1/snapshot", params={"region": "eu-west"})
        assert shown.status_code == 200
        assert {o["kind"] for o in shown.json()["objects"]} >= {"region", "tenant", "key"}
        assert "secrets" not in {o["kind"] for o in shown.json()["objects"]}
        for secret in (key.secrets["secret_hmac"], tenant_key, token, SECRET_KEY):
            assert secret not in shown.text
        only = await http.get("/api/v1/snapshot", params={"region": "eu-west", "kind": "tenant"})
        assert [o["name"] for o in only.json()["objects"]] == ["acme"]
        assert (await http.get("/api/v1/snapshot", params={"region": "nowhere"})).status_code == 404
        assert (await http.get("/api/v1/snapshot")).status_code == 422
        await router.close()


async def test_capacity_is_what_routers_report(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path) as plane, client(plane) as http:
        stream = Reports(plane.channel(), token)
        row = CapacityRow("eu-west-a", "llama", 2, 3, inflight=4)
        demand = DemandRow("FR", "llama", "interactive", 1.0, 10.0, 5.0)
        await stream.send(report(rows=(row,), demand=(demand,), rejections=("node: empty",)))

        async def capacity(**params: str) -> Any:
            return (await http.get("/api/v1/capacity", params=params)).json()

        now = await capacity()
        for _ in range(100):
            if now["items"]:
                break
            await asyncio.sleep(0.05)
            now = await capacity()
        [item] = now["items"]
        assert (item["region"], item["endpoints_ready"], item["inflight"]) == ("eu-west", 2, 4)
        assert item["waiting"] is None
        assert item["expected_wait_seconds"] is None
        assert [d["origin"] for d in now["demand"]] == ["FR"]
        regions = {r["name"]: r for r in now["regions"]}
        assert [regions["eu-west"]["connected"], regions["us-east"]["connected"]] == [True, False]
        [router] = regions["eu-west"]["routers"]
        assert router["rejections"] == ["node: empty"]
        assert router["report_age_seconds"] >= 0
        assert [r["name"] for r in (await capacity(region="us-east"))["regions"]] == ["us-east"]
        stream.close()


async def test_locate_ranks_regions_and_does_not_guess(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    async with copy(sqlite_url, tmp_path) as plane, client(plane) as http:
        answer = await http.post("/api/v1/locate", json={"address": "::ffff:10.1.2.3"})
        assert answer.status_code == 200
        body = answer.json()
        assert (body["origin"]["address"], body["origin"]["source"]) == ("10.1.2.3", "private")
        assert body["origin"]["latitude"] is None
        assert [r["expected_ms"] for r in body["regions"]] == [None, None]
        assert [r["name"] for r in body["regions"]] == ["eu-west", "us-east"]
        assert (await http.post("/api/v1/locate", json={})).json()["origin"]["address"] == "127.0.0.1"
        spoofed = await http.post("/api/v1/locate", json={}, headers={"x-forwarded-for": "8.8.8.8"})
        assert spoofed.json()["origin"]["address"] == "127.0.0.1"
        assert (await http.post("/api/v1/locate", json={"address": "x", "y": 1})).status_code == 422


async def test_locate_with_a_database(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    from mmdb_writer import MMDBWriter
    from netaddr import IPSet

    writer = MMDBWriter(ip_version=4, database_type="GeoLite2-City", languages=["en"], description="test")
    paris = {
        "country": {"iso_code": "FR"},
        "continent": {"code": "EU"},
        "location": {"latitude": 48.86, "longitude": 2.35},
    }
    writer.insert_network(IPSet(["2.0.0.0/16"]), paris)
    writer.to_db_file(str(tmp_path / "geo.mmdb"))
    async with (
        copy(sqlite_url, tmp_path, geoip_db=str(tmp_path / "geo.mmdb"), trusted_proxies=["127.0.0.0/8"]) as plane,
        client(plane) as http,
    ):
        for answer in (
            await http.post("/api/v1/locate", json={"address": "2.0.1.1"}),
            await http.post("/api/v1/locate", json={}, headers={"x-forwarded-for": "9.9.9.9, 2.0.1.1"}),
        ):
            body = answer.json()
            assert body["origin"]["country"] == "FR"
            assert [r["name"] for r in body["regions"]] == ["eu-west", "us-east"]
            near, far = (r["expected_ms"] for r in body["regions"])
            assert 0 < near < far < 500


async def test_who_may_see_what(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    router, viewer = await sqlite_store.router_token("eu-west"), await sqlite_store.viewer_token()
    paths = ["/api/v1/capacity", "/api/v1/snapshot?region=eu-west", "/api/v1/signing-keys"]
    async with copy(sqlite_url, tmp_path) as plane:
        for token, wanted in [(None, [401] * 3), ("wrong", [401] * 3), (viewer, [200] * 3), (router, [403, 403, 200])]:
            async with client(plane, token) as http:
                got = [await http.get(p) for p in paths]
                assert [g.status_code for g in got] == wanted
                for answer in got:
                    if answer.status_code >= 400:
                        assert answer.headers["content-type"] == "application/problem+json"
        async with client(plane, viewer) as http:
            keys = (await http.get("/api/v1/signing-keys")).json()["keys"]
            assert {k["crv"] for k in keys} == {"Ed25519"}
            assert "d" not in keys[0]


async def test_what_anybody_may_see(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    async with copy(sqlite_url, tmp_path, admin_port=0) as plane, client(plane, None) as http:
        index = await http.get("/")
        assert index.status_code == 200
        assert "/docs" in index.text
        assert "default-src 'none'" in index.headers["content-security-policy"]
        assert (await http.post("/")).status_code == 405
        assert (await http.get("/docs")).status_code == 200
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert {"/api/v1/capacity", "/api/v1/snapshot", "/api/v1/locate", "/api/v1/signing-keys"} <= paths.keys()
        for path in ("/livez", "/readyz", "/startupz", "/healthz", "/health"):
            assert (await http.get(path)).status_code == 200
        metrics = (await http.get("/metrics")).text
        assert 'headrace_build_info{process="controlplane"' in metrics
        assert "headrace_snapshot_version 1.0" in metrics
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{plane.ports['admin']}") as admin:
            assert (await admin.get("/readyz")).status_code == 200
            assert (await admin.get("/api/v1/regions")).status_code == 404


async def test_grpc_health_follows_readiness(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    async with copy(sqlite_url, tmp_path) as plane:
        stub = health_pb2_grpc.HealthStub(plane.channel())
        for service in ("", "headrace.v1.SnapshotService", "headrace.v1.RegionService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_case_w01_it_waits_for_a_database_that_comes_later(empty_postgres_url: str, tmp_path: Path) -> None:
    """Not one crash: unready with a reason, problem details for the API, ready by itself when the database is there."""
    name = empty_postgres_url.partition("?")[0].rpartition("/")[2]
    admin_url = empty_postgres_url.replace(name, "postgres")

    def statement(text: str) -> None:
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(sql.SQL(text).format(sql.Identifier(name)))

    await asyncio.to_thread(statement, "DROP DATABASE {}")
    stop, ready = asyncio.Event(), asyncio.Event()
    ports: dict[str, int] = {}
    settings = ControlPlaneSettings.embedded(
        database_url=empty_postgres_url, secret_key=[SECRET_KEY], bootstrap_admin_token=ADMIN, state_dir=str(tmp_path)
    )
    task = asyncio.create_task(run(settings, stop=stop, ready=ready.set, on_bound=ports.__setitem__))
    await eventually(lambda: "http" in ports or task.done())
    plane = Copy(ports, stop, task)
    async with client(plane) as http:
        assert (await http.get("/livez")).status_code == 200
        for _ in range(100):
            unready = await http.get("/readyz")
            if "not yet" not in unready.json()["reasons"].get("database", "not yet"):
                break
            await asyncio.sleep(0.1)
        assert unready.status_code == 503
        assert set(unready.json()["reasons"]) == {"database", "intent"}
        refused = await http.get("/api/v1/regions")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        capacity = await http.get("/api/v1/snapshot", params={"region": "x"})
        assert capacity.status_code == 503
        assert not ready.is_set()
        await asyncio.to_thread(statement, "CREATE DATABASE {}")
        async with asyncio.timeout(TIMEOUT):
            await ready.wait()
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.post("/api/v1/regions", json={"name": "eu-west", "spec": {}})).status_code == 201
    stop.set()
    async with asyncio.timeout(TIMEOUT):
        await task


async def test_without_migrations_it_waits_until_somebody_has_made_the_tables(
    empty_database_url: str, tmp_path: Path
) -> None:
    settings = ControlPlaneSettings.embedded(
        database_url=empty_database_url, secret_key=[SECRET_KEY], migrate=False, state_dir=str(tmp_path)
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    ports: dict[str, int] = {}
    task = asyncio.create_task(run(settings, stop=stop, ready=ready.set, on_bound=ports.__setitem__))
    await eventually(lambda: "http" in ports or task.done())
    async with client(Copy(ports, stop, task)) as http:
        for _ in range(100):
            reasons = (await http.get("/readyz")).json()["reasons"]
            if "headrace db upgrade" in reasons["database"]:
                break
            await asyncio.sleep(0.1)
    assert "run: headrace db upgrade" in reasons["database"]
    await asyncio.to_thread(migrate.upgrade, empty_database_url)
    async with asyncio.timeout(TIMEOUT):
        await ready.wait()
    stop.set()
    await task


async def test_what_cannot_work_is_one_line(sqlite_url: str, postgres_url: str, tmp_path: Path) -> None:
    common = {"database_url": sqlite_url, "secret_key": [SECRET_KEY], "state_dir": str(tmp_path)}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port} is taken" in await _fails(**common, port=port)
        assert f"127.0.0.1:{port} is taken" in await _fails(**common, grpc_port=port)
    assert "HEADRACE_INSECURE" in await _fails(**common, host="0.0.0.0")
    assert "HEADRACE_SECRET_KEY" in await _fails(database_url=postgres_url)
    assert await _fails(**common, bootstrap_admin_token="short-canary") == (
        "bootstrap_admin_token: must have at least 16 characters; it opens everything: openssl rand -hex 24 makes one"
    )
    assert "at least 16 characters" in await _fails(database_url=sqlite_url, secret_key=["short"])
    assert "not supported" in await _fails(database_url="mysql://x/y", secret_key=[SECRET_KEY])
    async with copy(sqlite_url, tmp_path):
        pass
    other = {**common, "secret_key": ["quite another secret key"]}
    assert "not the one this database was used with" in await _fails(**other)


async def test_a_router_is_told_when_the_process_stops(sqlite_store: Store, sqlite_url: str, tmp_path: Path) -> None:
    token = await sqlite_store.router_token("eu-west")
    async with copy(sqlite_url, tmp_path, shutdown_delay_seconds=0.5) as plane, client(plane) as http:
        router = Router(plane.channel(), token, "eu-west")
        await router.until_version(IntentVersion(0, 1))
        plane.stop.set()
        for _ in range(100):
            unready = await http.get("/readyz")
            if unready.status_code == 503:
                break
            await asyncio.sleep(0.01)
        assert unready.json()["reasons"] == {"draining": "the process is stopping"}
        assert (await router.ended()).name == "UNAVAILABLE"


async def test_parts_that_fail_do_not_take_the_control_plane_with_them(postgres_url: str, tmp_path: Path) -> None:
    """Whatever it is that fails, not only a database that is away: told, tried again, and the API goes on meanwhile."""
    store = Store(postgres_url)
    token = await store.router_token("eu-west")
    tables = ["admin_tokens", "intent_head", "region_reports", "leases"]

    async def renamed(before: str, after: str) -> None:
        async with store.database.write() as session:
            for table in tables:
                await session.execute(text(f"ALTER TABLE {before}{table} RENAME TO {after}{table}"))

    async def failed(http: httpx2.AsyncClient) -> set[str]:
        lines = (await http.get("/metrics")).text.splitlines()
        return {line.split('"')[1] for line in lines if line.startswith("headrace_faults_total{")}

    async with copy(postgres_url, tmp_path) as plane, client(plane) as http:
        await renamed("", "away_")
        wanted = {"publisher", "router-tokens", "intake-observe", "database-probe"}
        for _ in range(200):
            if plane.task.done() or await failed(http) >= wanted:
                break
            await asyncio.sleep(0.05)
        assert not plane.task.done()
        assert await failed(http) >= wanted
        assert (await http.get("/livez")).status_code == 200
        assert set((await http.get("/readyz")).json()["reasons"]) == {"database", "intent"}
        await renamed("away_", "")
        for _ in range(200):
            if (await http.get("/readyz")).status_code == 200:
                break
            await asyncio.sleep(0.05)
        router = Router(plane.channel(), token, "eu-west")
        await router.until(lambda r: r.held is not None)
        assert (await http.post("/api/v1/tenants", json={"name": "acme", "spec": {}})).status_code == 201
        await router.until(lambda r: r.held is not None and any(o.kind == "tenant" for o in r.held.objects.values()))
        await router.close()
    await store.close()


def test_settings_have_presets_and_keep_their_secrets_to_themselves() -> None:
    settings = ControlPlaneSettings.production(
        secret_key=["CANARY-CANARY-CANARY"], bootstrap_admin_token="CANARY", database_url="postgres://u:CANARY@h/d"
    )
    assert "CANARY" not in repr(settings)
    assert settings.shutdown_delay_seconds == 5.0
    assert ControlPlaneSettings.compose().insecure
    assert ControlPlaneSettings(state_dir="/x").database() == "sqlite:////x/controlplane.sqlite3"
    with pytest.raises(ValueError, match="prot"):
        ControlPlaneSettings.embedded(prot=1)


def test_snapshot_objects_are_shown_without_fields_their_kind_calls_secret() -> None:
    leaked = IntentObject("endpoint", "u", "n", 1, {"url": "http://x", "api_key": "CANARY"}, {}, {"api_key": "CANARY"})
    assert "CANARY" not in _shown(leaked).model_dump_json()


def test_invalid_input_names_the_field() -> None:
    with pytest.raises(InvalidInput) as caught:
        secrets_for([], None)
    assert caught.value.errors[0].pointer == "/secret_key"
