"""Regions that are peers: probed every second, and one signed hop from one to the other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from regional.settings import RouterSettings
from tests.router.engines import BareEngine
from tests.router.routers import RunningRouter, fleet_file, router
from tests.router.waiting import until
from tests.services import free_port

SECRET = ["a key that both regions share"]


class Pair:
    """Two regions, one router each; engines where the test puts them."""

    def __init__(self, tmp_path: Path) -> None:
        self.ports = {"eu": free_port(), "us": free_port()}
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        self._tmp_path = tmp_path

    def settings(self, region: str, *engines: tuple[str, str], secret: list[str] | None = None) -> RouterSettings:
        path = fleet_file(
            self._tmp_path / f"{region}.yaml", *engines, region=region, regions=("eu", "us"), public_urls=self.urls
        )
        return RouterSettings.embedded(
            fleet=str(path), region=region, port=self.ports[region], secret_key=secret or SECRET
        )


@pytest.fixture
async def us_engine() -> AsyncIterator[BareEngine]:
    async with BareEngine("us-one").serving() as engine:
        yield engine


async def _sees(running: RunningRouter, region: str) -> bool:
    return region in (await running.page("/debug/peers"))["rtt_seconds"]


async def _measured(running: RunningRouter, region: str) -> bool:
    """Gauges are brought up to date once a second."""
    return (await running.metric("headrace_peer_rtt_seconds", region=region) or 0) > 0


async def test_a_request_hops_once_to_the_region_that_can_serve_it(tmp_path: Path, us_engine: BareEngine) -> None:
    pair = Pair(tmp_path)
    async with (
        router(pair.settings("us", ("us-one", us_engine.url))) as us,
        router(pair.settings("eu")) as eu,
    ):
        await until(us.serves)
        await until(lambda: _sees(eu, "us"))
        await until(eu.serves)
        status, headers, body = await eu.chat()
        assert status == 200
        assert headers["x-headrace-region"] == "us"
        assert headers["x-headrace-endpoint"] == "us-one"
        assert body["choices"][0]["message"]["content"] == "from us-one"
        await until(lambda: _measured(eu, "us"))


async def test_a_dead_region_is_known_within_three_seconds(tmp_path: Path, us_engine: BareEngine) -> None:
    pair = Pair(tmp_path)
    async with (
        BareEngine("eu-one").serving() as eu_engine,
        router(pair.settings("eu", ("eu-one", eu_engine.url))) as eu,
    ):
        async with router(pair.settings("us", ("us-one", us_engine.url))) as us:
            await until(us.serves)
            await until(lambda: _sees(eu, "us"))
            await eu_engine.kill()
            await until(lambda: _served_in(eu, "us"))
            gone = time.monotonic()
        # With its own engine dead and the peer gone, requests are refused quickly instead of waiting for either.
        await until(lambda: _status(eu, 503))
        assert time.monotonic() - gone < 5.0
        await eu_engine.start()
        await until(lambda: _served_in(eu, "eu"))


async def _served_in(running: RunningRouter, region: str) -> bool:
    status, headers, _ = await running.chat()
    return status == 200 and headers["x-headrace-region"] == region


async def _status(running: RunningRouter, wanted: int) -> bool:
    return (await running.chat())[0] == wanted


async def test_a_region_of_another_deployment_is_no_peer(tmp_path: Path, us_engine: BareEngine) -> None:
    pair = Pair(tmp_path)
    foreign = pair.settings("us", ("us-one", us_engine.url), secret=["a key of somebody else entirely"])
    async with router(foreign) as us, router(pair.settings("eu")) as eu:
        await until(us.serves)
        await until(lambda: _status(eu, 503))
        assert not await _sees(eu, "us")


async def test_the_probe_wants_a_signature(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    async with router(pair.settings("eu")) as eu, aiohttp.ClientSession() as session:
        for headers in ({}, {"x-headrace-hop": "v1.e30.AAAA"}):
            async with session.get(eu.url + "/_headrace/peer", headers=headers) as answer:
                assert answer.status in (401, 403, 404)
                assert "rows" not in await answer.text()
