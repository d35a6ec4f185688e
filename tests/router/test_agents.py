"""Nodes that join, report, fall silent, die, leave and come back; and those that lie."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from fleet.accelerator import DeviceHealth
from fleet.endpoint import EngineLoad
from fleet.report import AgentPhase, NodeReport
from fleet.wire.identity import NodeIdentity, sign_identity
from fleet.wire.reports import node_report_to_wire
from regional.settings import RouterSettings
from regional.standalone import StandaloneSecrets, standalone_keys
from tests.router.engines import BareEngine
from tests.router.routers import RunningRouter, fleet_file, router
from tests.router.scripted_agent import ScriptedAgent
from tests.router.waiting import until


def all_ok(answers: list[tuple[int, dict[str, str], Any]]) -> bool:
    return all(status == 200 for status, _, _ in answers)


class Region:
    """A router with two nodes, each one engine."""

    def __init__(self, running: RunningRouter, agents: list[ScriptedAgent]) -> None:
        self.router = running
        self.agents = agents

    async def all_ready(self) -> None:
        async def ready() -> bool:
            rows = (await self.router.page("/debug/capacity"))["rows"]
            return sum(row["endpoints_ready"] for row in rows) == len(self.agents)

        await until(ready)

    async def node_state(self, name: str) -> str:
        nodes = (await self.router.page("/debug/endpoints"))["nodes"]
        return next((n["state"] for n in nodes if n["name"] == name), "absent")


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(BareEngine(n).serving()) for n in ("one", "two")]
        settings = RouterSettings.embedded(
            fleet=str(fleet_file(tmp_path / "f.yaml")), state_dir=str(tmp_path / "state")
        )
        running = await stack.enter_async_context(router(settings))
        agents = [ScriptedAgent(running.grpc, f"node-{e.name}", e) for e in engines]
        for agent in agents:
            await stack.enter_async_context(agent.running())
        made = Region(running, agents)
        await made.all_ready()
        yield made


async def test_a_node_that_dies_is_out_within_two_seconds_and_takes_no_request_with_it(region: Region) -> None:
    one, two = region.agents
    one.engine.hold.clear()
    requests = [asyncio.create_task(region.router.chat()) for _ in range(12)]
    await until(lambda: one.engine.waiting > 0)
    one.engine.hanging = True  # what is sent there from now on is swallowed
    died = time.monotonic()
    await one.vanish()
    answers = await asyncio.gather(*requests)
    assert time.monotonic() - died < 2.5
    assert {status for status, _, _ in answers} == {200}
    assert {headers["x-headrace-endpoint"] for _, headers, _ in answers} == {"two"}
    assert await region.node_state("node-one") == "dead"
    seen = one.engine.requests
    assert all_ok(await asyncio.gather(*(region.router.chat() for _ in range(10))))
    assert one.engine.requests == seen
    assert (await region.router.metric("headrace_failovers_total", scope="node") or 0) >= 1
    assert two.engine.requests >= 22


async def test_a_node_in_a_swallowed_zone_is_out_within_two_seconds(region: Region) -> None:
    """Nothing is refused and no stream ends: only silence tells."""
    one = region.agents[0]
    one.engine.hanging = True
    started = time.monotonic()
    await one.fall_silent()
    await until(lambda: _state(region, "node-one", "dead"))
    assert time.monotonic() - started < 2.5


async def _state(region: Region, name: str, state: str) -> bool:
    return await region.node_state(name) == state


async def test_a_silent_agent_whose_engine_answers_is_degraded_not_dead(region: Region) -> None:
    one = region.agents[0]
    await one.fall_silent()
    await until(lambda: _state(region, "node-one", "degraded"))
    await asyncio.sleep(1.0)
    assert await region.node_state("node-one") == "degraded"
    two = region.agents[1]
    two.phase = AgentPhase.DRAINING
    await two.say()
    await until(lambda: _state(region, "node-two", "draining"))
    answers = await asyncio.gather(*(region.router.chat() for _ in range(8)))
    assert all_ok(answers)
    assert {headers["x-headrace-endpoint"] for _, headers, _ in answers} == {"one"}, "it still takes requests"
    await one.connect()
    await until(lambda: _state(region, "node-one", "ready"))


async def test_an_agent_that_restarts_keeps_its_traffic(region: Region) -> None:
    one, two = region.agents
    await one.say(phase=AgentPhase.RESTARTING, restart_grace_seconds=60.0)
    await one.vanish()
    await two.say(phase=AgentPhase.RESTARTING, restart_grace_seconds=60.0)
    await two.vanish()
    end = time.monotonic() + 2.5
    answers = []
    while time.monotonic() < end:
        answers += [s for s, _, _ in await asyncio.gather(*(region.router.chat() for _ in range(4)))]
        await asyncio.sleep(0.1)
    assert set(answers) == {200}, "routers probe the engines themselves for the grace"
    for agent in (one, two):
        agent.incarnation += 1
        agent.sequence = 0
        await agent.connect()
    await until(lambda: _state(region, "node-one", "ready"))


async def test_a_draining_node_gets_nothing_new(region: Region) -> None:
    one = region.agents[0]
    one.phase = AgentPhase.DRAINING
    await one.say()
    await until(lambda: _state(region, "node-one", "draining"))
    before = one.engine.requests
    assert all_ok(await asyncio.gather(*(region.router.chat() for _ in range(12))))
    assert one.engine.requests == before


async def test_a_failed_gpu_takes_its_endpoint_out_at_once(region: Region) -> None:
    one = region.agents[0]
    one.gpu = replace(one.gpu, health=DeviceHealth.FAILED, health_reason="XID 79")
    await one.say()
    await asyncio.sleep(0.2)
    before = one.engine.requests
    assert all_ok(await asyncio.gather(*(region.router.chat() for _ in range(12))))
    assert one.engine.requests == before


async def test_a_directive_comes_on_connect_and_on_change(region: Region, tmp_path: Path) -> None:
    one = region.agents[0]
    await until(lambda: one.directives)
    first = one.directives[0]
    assert first.routers == (region.router.grpc,)
    assert first.version > 0
    assert not first.cordoned
    path = tmp_path / "f.yaml"
    path.write_text(path.read_text() + "\n---\nkind: model\nname: another\nspec: {}")
    await until(lambda: one.directives[-1].version > first.version)


async def test_reconnecting_before_the_old_stream_ends_is_no_death(region: Region) -> None:
    one = region.agents[0]
    old = one._call
    await one.fall_silent()
    await one.connect()
    await asyncio.sleep(0.3)
    old.cancel()
    await asyncio.sleep(0.5)
    assert await region.node_state("node-one") == "ready"


# Those that lie: rel-S11, rel-S13


async def status_of(call: Any) -> grpc.StatusCode:
    """How the router ended the stream."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        async with asyncio.timeout(10):
            while await call.read() is not grpc.aio.EOF:
                pass
    return await call.code()


async def test_rel_s11_a_node_speaks_for_itself_only(region: Region) -> None:
    one, two = region.agents
    for lie in ({"node_uid": two.uid}, {"zone": "eu-b"}, {"node_uid": ""}):
        call = one.open()
        await call.write(node_report_to_wire(one.report(**lie)))
        assert await status_of(call) is grpc.StatusCode.PERMISSION_DENIED
    assert await region.node_state("node-two") == "ready"
    assert (await region.router.metric("headrace_agent_refusals_total", reason="foreign") or 0) == 3


async def test_identities_that_are_not_ours_are_refused_and_told_to_join(region: Region, tmp_path: Path) -> None:
    one = region.agents[0]
    now = time.time()
    secrets = StandaloneSecrets.of(standalone_keys([], tmp_path / "state"))
    right, wrong = secrets.identity_private_keys[0], b"x" * 32
    honest = NodeIdentity(one.uid, one.name, one.zone, "eu", now, now + 3600)
    shown = {
        "nothing": "",
        "garbage": "a.b.c",
        "another key": sign_identity(honest, wrong),
        "another region": sign_identity(replace(honest, region="us"), right),
        "expired": sign_identity(replace(honest, issued_at=now - 9000, expires_at=now - 3600), right),
        "from the future": sign_identity(replace(honest, issued_at=now + 3600, expires_at=now + 7200), right),
    }
    for why, identity in shown.items():
        call = one.open(identity)
        first = await call.read()
        assert first.rejoin, why
        assert await status_of(call) is grpc.StatusCode.UNAUTHENTICATED, why
    call = one.open(sign_identity(honest, right))
    await call.write(node_report_to_wire(one.report()))
    assert not (await call.read()).rejoin
    call.cancel()


async def test_stale_reports_change_nothing(region: Region) -> None:
    one = region.agents[0]
    await one.fall_silent()
    dead = replace(one.gpu, health=DeviceHealth.FAILED)
    for order in ({"sequence": 1}, {"incarnation": 0, "sequence": 10**6}):
        await one.say(gpus=(dead,), **order)
    await asyncio.sleep(0.3)
    assert (await region.router.metric("headrace_agent_reports_total", verdict="stale") or 0) >= 2
    nodes = (await region.router.page("/debug/endpoints"))["nodes"]
    assert [g["health"] for n in nodes if n["name"] == "node-one" for g in n["gpus"]] == ["ok"]


async def test_rel_s13_impossible_numbers_attract_no_traffic_and_break_nothing(region: Region) -> None:
    one = region.agents[0]
    await one.fall_silent()
    (endpoint,) = one.report().endpoints
    for load in (
        EngineLoad(running=0, waiting=0, kv_usage=math.nan, generated_tokens_total=math.inf, sample_age_seconds=0.0),
        EngineLoad(running=0, waiting=0, kv_usage=-math.inf, prompt_tokens_total=-1e308, sample_age_seconds=0.0),
    ):
        await one.say(endpoints=(replace(endpoint, load=load, max_inflight=2**31 - 1, kv_tokens=2**62),))
        await asyncio.sleep(0.05)
    await one.say(gpus=(replace(one.gpu, utilisation=math.nan, temperature_celsius=math.inf),))
    two = region.agents[1].engine
    one.engine.hold.clear()
    two.hold.clear()
    long = [{"role": "user", "content": "word " * 20_000}]
    requests = [asyncio.create_task(region.router.chat(messages=long)) for _ in range(20)]
    await until(lambda: one.engine.waiting + two.waiting == 20)
    assert two.waiting >= 5, "a claim of no load is bounded by what this router sent there itself"
    one.engine.hold.set()
    two.hold.set()
    assert all_ok(await asyncio.gather(*requests))


async def test_an_endpoint_outside_the_nodes_addresses_is_left_out(region: Region) -> None:
    one, two = region.agents
    (endpoint,) = one.report().endpoints
    stolen = replace(endpoint, uid="metadata", url="http://169.254.169.254")
    foreign = replace(endpoint, uid=f"{two.uid}-engine")
    await one.fall_silent()
    await one.say(endpoints=(endpoint, stolen, foreign))
    await asyncio.sleep(0.2)
    nodes = (await region.router.page("/debug/endpoints"))["nodes"]
    assert [e["uid"] for n in nodes if n["name"] == "node-one" for e in n["endpoints"]] == [endpoint.uid]
    assert [e["url"] for n in nodes if n["name"] == "node-two" for e in n["endpoints"]] == [two.engine.url]


async def test_a_report_larger_than_any_node_is_refused(region: Region) -> None:
    one = region.agents[0]
    call = one.open()
    await call.write(node_report_to_wire(one.report(gpus=(one.gpu,) * 2000)))
    assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert await region.router.serves()


async def test_too_many_streams_at_once_are_told_when_to_come_back(tmp_path: Path) -> None:
    settings = RouterSettings.embedded(fleet=str(fleet_file(tmp_path / "f.yaml")), agent_streams_per_second=3)
    async with BareEngine("one").serving() as engine, router(settings) as running:
        agent = ScriptedAgent(running.grpc, "n", engine)
        await agent.join()
        calls = [agent.open() for _ in range(10)]
        for call in calls:
            await call.write(node_report_to_wire(agent.report()))
        await asyncio.sleep(0.5)
        refused = [call for call in calls if call.done()]
        assert len(refused) >= 6
        for call in refused:
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            delays = [float(v) for k, v in await call.trailing_metadata() if k == "retry-after-ms"]
            assert delays
            assert delays[0] >= 1000
        for call in calls:
            call.cancel()


async def test_a_node_whose_agent_is_gone_is_watched_from_outside_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written down for it goes on being looked at: before, nobody did once an agent had spoken for the node."""
    monkeypatch.setattr("regional.intake.service.AGENT_GONE_SECONDS", 0.5)

    class Bare(ScriptedAgent):
        """It sees no engine of its own."""

        def report(self, **changes: Any) -> NodeReport:
            return super().report(endpoints=(), **changes)

    async with BareEngine("one").serving() as one:
        settings = RouterSettings.embedded(
            fleet=str(fleet_file(tmp_path / "f.yaml", ("one", one.url))), state_dir=str(tmp_path / "state")
        )
        async with router(settings) as running:
            await until(running.serves)
            agent = Bare(running.grpc, "eu-a-1", one)
            region = Region(running, [agent])
            async with agent.running():
                agent.incarnation = int(time.time()) + 1000  # as one that was started after this router

                async def spoken_for() -> bool:
                    nodes = (await running.page("/debug/endpoints"))["nodes"]
                    return any(g["uuid"] == agent.gpu.uuid for n in nodes for g in n["gpus"])

                await until(spoken_for)

            async def seen_from_outside() -> bool:
                return not await spoken_for() and await region.node_state("eu-a-1") == "ready"

            await until(seen_from_outside, what="its engine was not looked at again")
            assert (await running.chat())[0] == 200
