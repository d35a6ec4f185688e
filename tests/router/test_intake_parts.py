"""Admission, merging, probing and joining: the parts of the intake that need no router around them."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import grpc
import pytest

from fleet.accelerator import AcceleratorState
from fleet.clock import ManualClock
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, ServedModel
from fleet.intent import Intent, NodeIntent
from fleet.locality import Zone
from fleet.process.grpc_server import make_channel
from fleet.report import AgentPhase, NodeReport
from fleet.snapshot import IntentVersion
from fleet.wire.headrace.v1 import region_pb2
from fleet.wire.identity import LIFETIME_SECONDS, verify_identity
from regional.health.actions import ProbeEndpoints, ProbeOutcome, ProbeTarget
from regional.intake.admission import StreamAdmission
from regional.intake.directives import Directives
from regional.intake.joins import ForwardedJoins, JoinRefused, LocalJoins
from regional.intake.merge import ReportMerge
from regional.intake.probes import Prober
from regional.standalone import StandaloneSecrets
from regional.sync.addresses import Target
from tests.router.engines import BareEngine
from tests.router.scripted_controlplane import ScriptedControlPlane

# Admission


def test_rel_r5_a_cell_that_reconnects_at_once_is_back_within_a_minute() -> None:
    """1,250 agents come at once, and again when they were told to: never more than 250 a second, all back in time."""
    admission, now = StreamAdmission(250, random.Random(7)), 1000.0
    due = [now + random.Random(i).random() * 0.05 for i in range(1250)]
    admitted: list[float] = []
    while due:
        due.sort()
        at = due.pop(0)
        refused = admission.admit(at)
        if refused is None:
            admitted.append(at)
        else:
            assert refused.retry_after_seconds >= 1.0
            due.append(at + refused.retry_after_seconds)
    assert len(admitted) == 1250
    assert admitted[-1] - now < 60.0
    for i, start in enumerate(admitted):
        assert sum(1 for t in admitted[i : i + 300] if t - start < 1.0) <= 250


def test_a_quiet_router_admits_at_once() -> None:
    admission = StreamAdmission(250, random.Random(1))
    assert all(admission.admit(1.0 + i) is None for i in range(500))


# One report per node


def endpoint(uid: str, url: str, gpus: tuple[str, ...] = ()) -> EndpointReport:
    models = (ServedModel("m", "m"),)
    return EndpointReport(
        uid, uid, EngineKind.OPENAI, url, models, EndpointPhase.READY, gpu_uuids=gpus, gpus_known=bool(gpus)
    )


def report(*endpoints: EndpointReport, gpus: tuple[AcceleratorState, ...] = (), sequence: int = 1) -> NodeReport:
    return NodeReport("n1", "n1", "z", 5, sequence, AgentPhase.RUNNING, 0.4, gpus=gpus, endpoints=endpoints)


def test_an_agents_report_is_joined_by_endpoints_written_for_its_node() -> None:
    merge = ReportMerge()
    stand_in, real = AcceleratorState("GPU-made-up", index=0), AcceleratorState("GPU-real", index=0)
    assert (
        merge.from_embedded(report(endpoint("written", "http://h:1", ("GPU-made-up",)), gpus=(stand_in,))) is not None
    )
    merged = merge.from_agent(report(endpoint("own", "http://h:2"), gpus=(real,)))
    assert [e.uid for e in merged.endpoints] == ["own", "written"]
    assert merged.endpoints[1].gpu_uuids == ("GPU-real",), "the agent knows the device by its own uuid"
    assert merge.from_embedded(report(endpoint("written", "http://h:1"), sequence=9)) is None, (
        "the node is the agent's now"
    )
    assert [e.uid for e in merge.from_agent(report(endpoint("own", "http://h:2"))).endpoints] == ["own", "written"]


def test_one_engine_known_twice_counts_once() -> None:
    merge = ReportMerge()
    merge.from_embedded(report(endpoint("written", "http://h:1")))
    assert [e.uid for e in merge.from_agent(report(endpoint("own", "http://h:1"))).endpoints] == ["own"]


def test_a_draining_node_takes_along_what_was_written_down_for_it() -> None:
    merge = ReportMerge()
    merge.from_embedded(report(endpoint("written", "http://h:1")))
    leaving = NodeReport("n1", "n1", "z", 5, 2, AgentPhase.DRAINING, 0.4)
    assert [e.phase for e in merge.from_agent(leaving).endpoints] == [EndpointPhase.DRAINING]


def test_an_endpoint_that_was_struck_out_leaves_the_agents_reports() -> None:
    merge = ReportMerge()
    merge.from_agent(report())
    merge.from_embedded(report(endpoint("written", "http://h:1")))
    assert len(merge.from_agent(report()).endpoints) == 1
    merge.from_embedded(report())
    assert merge.from_agent(report()).endpoints == ()


def test_endpoints_of_a_node_whose_agent_is_gone_are_watched_from_here_again() -> None:
    merge = ReportMerge()
    merge.from_agent(replace(report(), incarnation=9, sequence=70))
    written = report(endpoint("written", "http://h:1"))
    assert merge.from_embedded(written) is None
    first = merge.from_embedded(written, agent_gone=True, after=(9, 70))
    assert first is not None
    assert first.order == (9, 71), "it is news after the agent's last word"
    second = merge.from_embedded(written, after=first.order)
    assert second is not None
    assert second.order == (9, 72)
    back = merge.from_agent(replace(report(endpoint("own", "http://h:2")), incarnation=10))
    assert [e.uid for e in back.endpoints] == ["own", "written"]
    assert merge.from_embedded(written, after=back.order) is None, "the agent is back: the node is its own"


def test_what_is_remembered_of_agents_is_bounded() -> None:
    merge = ReportMerge()
    for number in range(500):
        merge.from_agent(replace(report(), node_uid=f"n{number}"))
        merge.keep({f"n{number}"}, 1)
    assert sum(merge.from_embedded(replace(report(), node_uid=f"n{n}")) is None for n in range(500)) <= 66


# Directives


async def test_everybody_who_waits_is_woken_by_a_change() -> None:
    version = [1]
    directives = Directives(
        lambda: IntentVersion(1, version[0]), lambda uid: (uid == "n1", False), lambda: ["r:1"], 0.4
    )
    woken: list[int] = []

    async def wait(i: int) -> None:
        await directives.wait()
        woken.append(i)

    tasks = [asyncio.create_task(wait(i)) for i in range(3)]
    await asyncio.sleep(0)
    version[0] = 2
    directives.changed()
    await asyncio.gather(*tasks)
    assert sorted(woken) == [0, 1, 2]
    told = directives.of("n1")
    assert (told.epoch, told.version, told.cordoned, told.routers) == (1, 2, True, ("r:1",))


# Probes

ANSWERED, REFUSED, SILENT = ProbeOutcome.ANSWERED, ProbeOutcome.REFUSED, ProbeOutcome.SILENT


def _no_tls() -> object:
    raise AssertionError("no probe here is over TLS")


async def probe(
    url: str, *, tries: int = 2, timeout: float = 0.15, kind: str = "openai", ranges: tuple[str, ...] = ()
) -> ProbeOutcome:
    target = ProbeTarget("e", url, kind, "key", ranges)
    return await Prober(_no_tls).ask(target, ProbeEndpoints((target,), tries, timeout))  # type: ignore[arg-type]


async def test_an_engine_that_answers_is_alive() -> None:
    async with BareEngine("a").serving() as engine:
        assert await probe(engine.url) is ANSWERED
        assert await probe(engine.url, kind="triton") is ANSWERED, "404 on another engine's path is an answer too"


async def test_rel_s8_a_name_that_leads_outside_the_zone_is_not_asked() -> None:
    async with BareEngine("a").serving() as engine:
        named = engine.url.replace("127.0.0.1", "localhost")
        assert await probe(named, timeout=1.0, ranges=("127.0.0.0/8",)) is ANSWERED
        assert await probe(named, timeout=1.0, ranges=("10.2.0.0/16",)) is REFUSED


async def test_a_dead_port_and_a_silent_engine_are_not() -> None:
    async with BareEngine("a").serving() as engine:
        engine.hanging = True
        started = time.monotonic()
        assert await probe(engine.url) is SILENT
        assert time.monotonic() - started < 2.0
        url = engine.url
    assert await probe(url) is REFUSED, "counts however late we are"


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 500 Oops\r\n\r\n", b"garbage\r\n", b"", b"HTTP/1.1 2\r\n", b"x" * 10_000]
)
async def test_an_error_or_nonsense_is_no_answer(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        assert await probe(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") is REFUSED


# Joins


SECRETS = StandaloneSecrets.of(["r" * 32])
INTENT = Intent(
    region="eu",
    zones={"eu-a": Zone("z", "eu-a", "eu"), "us-a": Zone("y", "us-a", "us")},
    nodes={"written": NodeIntent("uid-written", "written", "eu-a")},
)


def local(token: str = "") -> LocalJoins:
    clock = ManualClock()
    return LocalJoins(SECRETS.identity_private_keys[0], SECRETS.identity_keys, lambda: token, lambda: INTENT, clock)


def request(**fields: str) -> region_pb2.NodeJoinRequest:
    return region_pb2.NodeJoinRequest(**({"node_name": "n1", "zone": "eu-a"} | fields))


async def test_standalone_join_gives_an_identity_that_verifies_offline() -> None:
    answer = await local().join(request(), from_loopback=True)
    identity = verify_identity(answer.identity, SECRETS.identity_keys, ManualClock().wall())
    assert (identity.node_uid, identity.node_name, identity.zone, identity.region) == (
        answer.node_uid,
        "n1",
        "eu-a",
        "eu",
    )
    again = await local().join(request(), from_loopback=True)
    assert again.node_uid == answer.node_uid, "a node that lost its state directory is the same node"
    written = await local().join(request(node_name="written"), from_loopback=True)
    assert written.node_uid == "uid-written"


async def test_standalone_join_checks_the_token() -> None:
    joins = local("hrj_right")
    assert (await joins.join(request(join_token="hrj_right"), from_loopback=False)).identity
    for wrong in ("", "hrj_wrong", "hrj_righ", "ünïcode"):
        with pytest.raises(JoinRefused) as refused:
            await joins.join(request(join_token=wrong), from_loopback=True)
        assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(JoinRefused, match="JOIN_TOKEN"):
        await local().join(request(), from_loopback=False)


async def test_standalone_join_refuses_places_that_are_not_its_own() -> None:
    for fields in ({"zone": "us-a"}, {"zone": "nowhere"}, {"node_name": ""}, {"node_name": "written", "zone": "us-a"}):
        with pytest.raises(JoinRefused) as refused:
            await local().join(request(**fields), from_loopback=True)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_renewal_needs_the_old_identity_and_keeps_the_uid() -> None:
    joins = local("hrj_right")
    first = await joins.join(request(join_token="hrj_right"), from_loopback=False)
    renewed = await joins.join(request(identity=first.identity), from_loopback=False)
    assert renewed.node_uid == first.node_uid
    assert renewed.expires_in_seconds == round(LIFETIME_SECONDS)
    with pytest.raises(JoinRefused):
        await joins.join(request(identity=first.identity[:-4] + "AAAA"), from_loopback=False)
    joined = await joins.join(request(identity="no longer good", join_token="hrj_right"), from_loopback=False)
    assert joined.node_uid == first.node_uid


@pytest.mark.parametrize("said", ["", "a number that the agent made up"], ids=["older-agent", "agent"])
async def test_a_join_whose_answer_is_lost_is_tried_again_as_the_same_join(said: str) -> None:
    async with ScriptedControlPlane().serving() as one, ScriptedControlPlane().serving() as two:
        listed, tried = [one.address, two.address], []
        for loses in (one, two):  # one of them is asked first
            one.joins.clear()
            two.joins.clear()
            one.lose_answers = two.lose_answers = 0
            loses.lose_answers = 1
            joins = ForwardedJoins(
                listed, lambda t: make_channel(t.address), lambda: "hrr_router", "eu", random.Random(2)
            )
            assert (await joins.join(request(join_token="hrj_x", attempt=said), from_loopback=False)).identity == "i"
            tried.append([j.attempt for j in (*one.joins, *two.joins)])
        (attempts,) = [each for each in tried if len(each) == 2]
        assert attempts[0] == attempts[1], "another number would find the token spent"
        assert attempts[0] == said or (not said and len(attempts[0]) >= 32)


async def test_forwarded_joins_reach_the_control_plane_once() -> None:
    def channel(target: Target) -> grpc.aio.Channel:
        return make_channel(target.address)

    async with ScriptedControlPlane().serving() as centre:
        dead = "127.0.0.1:1"
        joins = ForwardedJoins([dead, centre.address], channel, lambda: "hrr_router", "eu", random.Random(2))
        answer = await joins.join(request(join_token="hrj_x"), from_loopback=False)
        assert answer.identity == "i"
        assert [(j.join_token, j.region) for j in centre.joins] == [("hrj_x", "eu")]
        centre.refuse_with = grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(JoinRefused) as refused:
            await joins.join(request(join_token="hrj_x"), from_loopback=False)
        assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert len(centre.joins) == 2, "a refusal is final: a token is consumed once"
    with pytest.raises(JoinRefused) as refused:
        await joins.join(request(), from_loopback=False)
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE
