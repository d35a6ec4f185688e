"""A router with nothing but a fleet file."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from fleet.clock import SystemClock
from fleet.errors import HeadraceError, InvalidInput
from regional.main import run
from regional.settings import RouterSettings
from regional.standalone import FleetFile, StandaloneSecrets, standalone_keys
from tests.router.engines import BareEngine
from tests.router.routers import RunningRouter, fleet_file, router
from tests.router.waiting import until

TENANT = "kind: tenant\nname: acme\nspec: {}\n---\nkind: key\nname: k\nspec: {tenant: acme, secret: hr-test-key-0001}"


def standalone(path: Path, **more: object) -> RouterSettings:
    return RouterSettings.embedded(fleet=str(path), **more)


async def test_an_endpoint_is_routable_within_a_second_of_start(tmp_path: Path) -> None:
    """Mock backends that have nothing but health and a model list are enough."""
    async with BareEngine("one", model="whatever-it-says").serving() as one:
        started = time.monotonic()
        async with router(standalone(fleet_file(tmp_path / "f.yaml", ("one", one.url)))) as running:
            await until(running.serves)
            assert time.monotonic() - started < 2.0  # a second, and as much again for a busy machine
            status, headers, body = await running.chat()
            assert status == 200
            assert body["choices"][0]["message"]["content"] == "from one"
            assert headers["x-headrace-endpoint"] == "one"
            assert headers["x-headrace-gpu"].startswith("GPU-")


async def test_changes_of_the_file_are_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    async with BareEngine("one").serving() as one, BareEngine("two").serving() as two:
        fleet_file(path, ("one", one.url))
        async with router(standalone(path)) as running:
            await until(running.serves)
            before = await _version(running)
            path.write_text(path.read_text() + "\n---\nkind: endpoint\nname: bad\nspec: {nonsense: 1}")
            await until(lambda: _config_errors(running))
            assert await _version(running) == before
            assert await running.serves()
            fleet_file(path, ("two", two.url))
            await until(lambda: _answered_by(running, "two"))
            assert await _version(running) > before
            path.unlink()
            await asyncio.sleep(0.7)
            assert await running.serves(), "a file that is gone is no fleet without endpoints"


async def test_sighup_reads_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    async with BareEngine("one").serving() as one:
        fleet_file(path, ("one", one.url))
        async with router(standalone(path)) as running:
            before = await _version(running)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: _newer(running, before))


async def _version(running: RunningRouter) -> int:
    return int((await running.page("/debug/snapshot"))["version"])


async def _newer(running: RunningRouter, than: int) -> bool:
    return await _version(running) > than


async def _config_errors(running: RunningRouter) -> bool:
    return bool(await running.metric("headrace_config_errors_total"))


async def _answered_by(running: RunningRouter, name: str) -> bool:
    status, headers, _ = await running.chat()
    return status == 200 and headers["x-headrace-endpoint"] == name


async def test_keys_are_wanted_as_soon_as_there_are_tenants(tmp_path: Path) -> None:
    async with BareEngine("one").serving() as one:
        path = fleet_file(tmp_path / "f.yaml", ("one", one.url), more=TENANT)
        async with router(standalone(path)) as running:
            await until(lambda: running.serves("hr-test-key-0001"))
            assert (await running.chat())[0] == 401
            assert (await running.chat("hr-test-key-0002"))[0] == 401


# What cannot work is said in one line, before anything is served


async def refused(settings: RouterSettings) -> str:
    with pytest.raises(HeadraceError) as error:
        async with asyncio.timeout(10):
            await run(settings, stop=asyncio.Event(), environ={})
    return str(error.value)


async def test_a_fleet_without_tenants_is_served_on_loopback_only(tmp_path: Path) -> None:
    path = fleet_file(tmp_path / "f.yaml")
    said = await refused(standalone(path, host="0.0.0.0", insecure=True))
    assert "tenant" in said
    assert "loopback" in said


async def test_off_loopback_wants_tls_or_a_clear_word(tmp_path: Path) -> None:
    path = fleet_file(tmp_path / "f.yaml", more=TENANT)
    assert "HEADRACE_INSECURE" in await refused(standalone(path, host="0.0.0.0"))


async def test_a_router_needs_a_source_of_intent_and_a_region(tmp_path: Path) -> None:
    assert "--fleet" in await refused(RouterSettings())
    assert "region" in await refused(RouterSettings(controlplane=["x"]))
    assert "HEADRACE_ROUTER_TOKEN" in await refused(RouterSettings(controlplane=["x"], region="eu"))
    two = fleet_file(tmp_path / "f.yaml", regions=("eu", "us"))
    assert "eu, us" in await refused(standalone(two))
    assert "asia" in await refused(standalone(two, region="asia"))
    with pytest.raises(ValueError, match="not both"):
        RouterSettings(fleet="f", controlplane=["x"])


async def test_a_bad_file_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("kind: region\nname: eu\nspec: {colour: blue}\n")
    said = await refused(standalone(path))
    assert f"{path}:3" in said
    assert "colour" in said


@pytest.mark.parametrize(
    ("name", "flag"), [("port", "--port"), ("grpc_port", "--grpc-port"), ("admin_port", "--admin-port")]
)
async def test_a_taken_port_is_one_line(tmp_path: Path, name: str, flag: str) -> None:
    path = fleet_file(tmp_path / "f.yaml")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = await refused(standalone(path, **{name: taken.getsockname()[1]}))
    assert "taken" in said
    assert flag in said


async def test_two_routers_cannot_share_a_state_directory(tmp_path: Path) -> None:
    path = fleet_file(tmp_path / "f.yaml")
    async with router(standalone(path, state_dir=str(tmp_path / "s"))):
        assert "in use" in await refused(standalone(path, state_dir=str(tmp_path / "s")))


# Secrets


def test_secrets_are_kept_private_and_stay_the_same(tmp_path: Path) -> None:
    first = standalone_keys([], tmp_path)
    assert standalone_keys([], tmp_path) == first
    assert (tmp_path / "secret-key").stat().st_mode & 0o777 == 0o600
    assert standalone_keys([], None) != first
    (tmp_path / "secret-key").chmod(0o644)
    with pytest.raises(InvalidInput, match="600"):
        standalone_keys([], tmp_path)
    with pytest.raises(InvalidInput, match="16"):
        standalone_keys(["short"], None)
    assert "b'" not in repr(StandaloneSecrets.of(first))


def test_a_control_plane_with_the_same_secret_key_derives_the_same_secrets() -> None:
    from controlplane.secrets import DeploymentSecrets

    key = "a secret key that is long enough"
    theirs, ours = DeploymentSecrets.of([key]), StandaloneSecrets.of([key])
    assert ours.peppers == theirs.peppers()
    assert ours.hop_keys == theirs.hop_keys()
    assert ours.identity_keys == theirs.identity_keys()


async def test_a_content_that_could_not_be_taken_in_is_handed_over_again(tmp_path: Path) -> None:
    path = fleet_file(tmp_path / "f.yaml")
    file = FleetFile(path, "eu", StandaloneSecrets.of(["a root key of this test"]), {}, SystemClock(), loopback=True)
    file.load()
    path.write_text(path.read_text() + "\n")
    taken: list[int] = []

    def take(_intent: object) -> None:
        taken.append(1)
        if len(taken) == 1:
            raise KeyError("once")

    with pytest.raises(KeyError):
        await file.watch(take, lambda error: None)
    again = asyncio.create_task(file.watch(take, lambda error: None))  # as its supervisor does
    await until(lambda: len(taken) == 2)
    again.cancel()


def test_versions_rise_over_reloads_and_restarts(tmp_path: Path) -> None:
    path, secrets = fleet_file(tmp_path / "f.yaml"), StandaloneSecrets.of(["a root key of this test"])

    def fresh() -> FleetFile:
        return FleetFile(path, "eu", secrets, {}, SystemClock(), loopback=True)

    file = fresh()
    versions = [file.load().at.version, file.load().at.version, fresh().load().at.version]
    assert versions == sorted(versions)
    assert versions[0] < versions[1]
