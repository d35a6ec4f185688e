"""The router's own watch over engines without an agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fleet.accelerator import DeviceHealth
from fleet.clock import SystemClock
from fleet.endpoint import EndpointPhase, EngineKind, ServedModel
from fleet.intent import DeclaredGpus, EndpointIntent, Intent, NodeIntent
from fleet.locality import Zone
from fleet.report import NodeReport
from headrace.embedded_agent import create, declared_devices
from tests.router.engines import BareEngine
from tests.router.waiting import until

NODE = NodeIntent("uid-n1", "n1", "eu-a", (DeclaredGpus("h100-sxm-80", 2, 80.0), DeclaredGpus("a100-sxm-80", 1)))
FAR = NodeIntent("uid-n2", "n2", "us-a")


def intent(*engines: BareEngine, node: NodeIntent = NODE, gpus: tuple[str, ...] = ("0", "2")) -> Intent:
    endpoints = {
        e.name: EndpointIntent(
            e.name, e.name, node.name, e.url, EngineKind.OPENAI, (ServedModel("m", "served-m"),), gpus
        )
        for e in engines
    }
    zones = {"eu-a": Zone("z1", "eu-a", "eu"), "us-a": Zone("z2", "us-a", "us")}
    return Intent(region="eu", zones=zones, nodes={"n1": NODE, "n2": FAR}, endpoints=endpoints)


@contextlib.asynccontextmanager
async def watching(first: Intent) -> AsyncIterator[tuple[list[NodeReport], object]]:
    reports: list[NodeReport] = []
    agent = create(incarnation=7, interval_seconds=0.1, clock=SystemClock(), sink=reports.append)
    agent.set_intent(first)
    task = asyncio.create_task(agent.run())
    try:
        yield reports, agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def phases(reports: list[NodeReport]) -> list[EndpointPhase]:
    return [e.phase for e in reports[-1].endpoints] if reports else []


async def test_engines_of_this_region_are_reported_under_their_node() -> None:
    async with BareEngine("one").serving() as one, watching(intent(one)) as (reports, _):
        await until(lambda: phases(reports) == [EndpointPhase.READY])
        report = reports[-1]
        assert (report.node_uid, report.zone, report.incarnation) == ("uid-n1", "eu-a", 7)
        (endpoint,) = report.endpoints
        assert endpoint.models == (ServedModel("m", "served-m"),), "what was written down beats what the engine lists"
        assert endpoint.gpu_uuids == (report.gpus[0].uuid, report.gpus[2].uuid)
        assert endpoint.gpus_known
        assert [r.sequence for r in reports] == sorted({r.sequence for r in reports})


async def test_engines_of_other_regions_are_not_watched() -> None:
    async with BareEngine("far").serving() as far, watching(intent(far, node=FAR)) as (reports, _):
        await asyncio.sleep(0.4)
        assert reports == []
        assert far.probes == 0


async def test_a_change_of_intent_is_followed_and_a_removal_is_said() -> None:
    async with (
        BareEngine("one").serving() as one,
        BareEngine("two").serving() as two,
        watching(intent(one)) as (reports, agent),
    ):
        await until(lambda: phases(reports) == [EndpointPhase.READY])
        agent.set_intent(intent(two))  # type: ignore[attr-defined]
        await until(lambda: reports[-1].endpoints and reports[-1].endpoints[0].name == "two")
        agent.set_intent(intent())  # type: ignore[attr-defined]
        await until(lambda: reports[-1].endpoints == ())
        said = len(reports)
        await asyncio.sleep(0.3)
        assert len(reports) == said, "a node without endpoints of ours is not ours to report"


async def test_an_engine_that_is_refused_is_unreachable_at_once() -> None:
    async with BareEngine("one").serving() as one, watching(intent(one)) as (reports, _):
        await until(lambda: phases(reports) == [EndpointPhase.READY])
        await one.kill()
        await until(lambda: phases(reports) == [EndpointPhase.UNREACHABLE], 3.0)
        await one.start()
        await until(lambda: phases(reports) == [EndpointPhase.READY], 3.0)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_rel_s8_nothing_outside_the_zones_ranges_is_even_looked_at(host: str) -> None:
    """A name or an address: no connection is made, so nobody learns what is there."""
    async with BareEngine("one").serving() as one:
        url = one.url.replace("127.0.0.1", host)

        def within(*ranges: str) -> Intent:
            made = intent(one)
            zone = replace(made.zones["eu-a"], endpoint_ranges=ranges)
            endpoint = replace(made.endpoints["one"], url=url)
            return replace(made, zones=made.zones | {"eu-a": zone}, endpoints={"one": endpoint})

        async with watching(within("10.2.0.0/16")) as (reports, agent):
            await asyncio.sleep(0.5)  # several rounds
            assert EndpointPhase.READY not in phases(reports)
            assert one.probes == 0
            agent.set_intent(within("10.2.0.0/16", "127.0.0.0/8", "::1/128"))  # type: ignore[attr-defined]
            await until(lambda: phases(reports) == [EndpointPhase.READY])
            agent.set_intent(within("10.2.0.0/16"))  # type: ignore[attr-defined]
            await until(
                lambda: phases(reports) != [EndpointPhase.READY], what="the open connection was not used either"
            )


def test_declared_devices_have_stable_uuids_and_unknown_readings() -> None:
    devices = declared_devices(NODE)
    assert [d.product for d in devices] == ["h100-sxm-80", "h100-sxm-80", "a100-sxm-80"]
    assert [d.memory_total_mib for d in devices] == [81920, 81920, None]
    assert len({d.uuid for d in devices}) == 3
    assert declared_devices(NODE) == devices
    other = declared_devices(NodeIntent("uid-n9", "n1", "eu-a", NODE.gpus))
    assert not {d.uuid for d in other} & {d.uuid for d in devices}
    assert all(d.health is DeviceHealth.UNKNOWN and d.utilisation is None for d in devices)
