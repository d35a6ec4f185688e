"""Hops between regions: what is signed, what is believed, what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from fleet.locality import Coordinates, Origin, Region
from fleet.tenancy import Residency, Tenant
from regional.gateway import hop
from regional.gateway.settings import Expose
from regional.request.steps import Outcome, Reject, RejectReason
from tests.gateway.conftest import Running, StartGateway, StartUpstream
from tests.gateway.parts import (
    DONE,
    HOP_KEY,
    KEY,
    OK_JSON,
    Wire,
    chat,
    hop_to,
    intent_with,
    post,
    to,
    token,
    until,
    usage_event,
)

EU = frozenset({"EU"})
REGIONS = (Region("r1", "here", jurisdictions=EU), Region("r2", "there", jurisdictions=EU))


def claims(**more: object) -> hop.HopClaims:
    base = hop.HopClaims(
        f"n-{time.monotonic_ns()}",
        time.time() + 60,
        "here",
        "there",
        request="u" * 32,
        tenant="t-acme",
        key="k-1",
        sla_class="standard",
        priority=300,
        model="m",
    )
    return replace_claims(base, **more)


def replace_claims(base: hop.HopClaims, **more: object) -> hop.HopClaims:
    import msgspec

    return msgspec.structs.replace(base, **more)


async def pair(
    start_gateway: StartGateway, *there_steps: object, model: str = "m", **there: object
) -> tuple[Running, Running]:
    """An entry router whose core sends everything to region ``there``, and a router of that region."""
    target = await start_gateway(
        *there_steps,
        region="there",
        intent=there.pop("intent", None) or intent_with(region="there", regions=REGIONS),
        **there,
    )
    entry = await start_gateway(
        hop_to("there", f"http://127.0.0.1:{target.port}", model=model), intent=intent_with(regions=REGIONS)
    )
    return entry, target


async def test_a_request_is_relayed_through_a_peer(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    entry, target = await pair(start_gateway, to(engine, served_as="served", key="engine-key"), model="m-v2")
    entry.gateway.reception._locate = lambda address: Origin(address, "DE", "EU", Coordinates(52.5, 13.4), "database")
    extra = (
        b"x-session-id: s-1\r\nx-request-id: label-1\r\nx-headrace-priority: 100\r\nx-headrace-deadline-ms: 60000\r\n"
        b"X-Note: kept\r\n"
    )
    reply = await entry.ask(post(chat(), extra=extra))
    assert reply.status == 200
    assert json.loads(reply.body) == json.loads(OK_JSON)
    assert reply.header("x-headrace-region") == "there"
    assert reply.header("x-headrace-endpoint") == "engine-1"
    assert reply.header("x-headrace-attempts") == "1"
    assert reply.header("x-request-id") == "label-1"

    first, second = entry.core.life.facts, target.core.life.facts
    assert second.request_uid == first.request_uid
    assert (second.tenant_uid, second.key_uid, second.session) == (first.tenant_uid, first.key_uid, first.session)
    assert second.priority == 100
    assert second.deadline_seconds is not None
    assert 50 < second.deadline_seconds <= 60
    assert (second.hop_from, second.entry_region, second.attempts_used) == ("here", "here", 0)
    assert second.requested_model == "m-v2"
    assert second.origin == Origin("", "DE", "EU", Coordinates(52.5, 13.4), "hop")
    got = engine.requests[0]
    assert got.header(b"x-note") == [b"kept"]
    assert got.header(b"authorization") == [b"Bearer engine-key"]
    assert not [n for n, _ in got.headers if n.startswith(b"x-headrace")]
    assert got.json["model"] == "served"


async def test_the_bearer_key_is_not_forwarded(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    peer = await upstream()
    entry = await start_gateway(hop_to("there", peer.url), intent=intent_with(regions=REGIONS))
    await entry.ask(post(chat()))
    head = peer.requests[0].head
    assert KEY.encode() not in head
    assert b"authorization" not in head.lower()
    assert len(peer.requests[0].header(hop.HEADER)) == 1


async def test_streams_pass_both_routers(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        for one in (token("a", model="served"), token("", "stop", "served"), usage_event(5, 2), DONE):
            await wire.chunk(one)
        await wire.last_chunk()

    entry, target = await pair(start_gateway, to(await upstream(script), served_as="served"))
    reply = await entry.ask(post(chat(stream=True)))
    assert reply.body == token("a") + token("", "stop") + DONE
    assert entry.records[0].usage.completion_tokens == 2
    assert target.records[0].usage.completion_tokens == 2


async def test_a_client_that_leaves_is_felt_behind_two_routers(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        await wire.closed_by_peer()

    engine = await upstream(script)
    entry, target = await pair(start_gateway, to(engine))
    client = await entry.client()
    await client.send(post(chat(stream=True)))
    await client.head()
    await client.chunk()
    client.close()
    await asyncio.wait_for(engine.all_closed.wait(), 2)
    await until(lambda: not (not target.records or not entry.records))
    assert entry.records[0].outcome is target.records[0].outcome is Outcome.ABORTED


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (RejectReason.OVERLOADED, Outcome.REFUSED_SPILL),
        (RejectReason.NO_ENDPOINT, Outcome.REFUSED_SPILL),
        (RejectReason.REGION_NOT_ALLOWED, Outcome.REFUSED_SPILL),
        (RejectReason.MODEL_NOT_FOUND, Outcome.REFUSED_SPILL),
        (RejectReason.UPSTREAM_FAILED, Outcome.UPSTREAM_ERROR),
        (RejectReason.UPSTREAM_TIMEOUT, Outcome.TIMEOUT_FIRST_BYTE),
    ],
)
async def test_a_refused_spill_is_not_a_failure(
    start_gateway: StartGateway, upstream: StartUpstream, reason: RejectReason, outcome: Outcome
) -> None:
    target = await start_gateway(
        Reject(reason, "No."), region="there", intent=intent_with(region="there", regions=REGIONS)
    )
    entry = await start_gateway(
        hop_to("there", f"http://127.0.0.1:{target.port}"),
        to(await upstream(), attempt=2),
        intent=intent_with(regions=REGIONS),
    )
    assert (await entry.ask(post(chat()))).status == 200
    assert entry.core.life.results[0].outcome is outcome


async def test_case_r01_attempts_are_counted_over_both_tiers(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def failing(wire: Wire) -> None:
        await wire.json(b"{}", status=b"500 Oops")

    engine = await upstream(failing)
    entry, target = await pair(start_gateway, to(engine, attempt=1), to(engine, attempt=2))
    assert (await entry.ask(post(chat()))).status == 502
    assert len(engine.requests) == 2
    assert entry.core.life.results[0].attempts == 2
    later = await start_gateway(
        hop_to("there", f"http://127.0.0.1:{target.port}", attempt=3), intent=intent_with(regions=REGIONS)
    )
    await later.ask(post(chat()))
    assert target.core.lives[-1].facts.attempts_used == 2


async def test_another_router_of_the_region_is_tried_when_one_is_gone(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    gone = await upstream()
    await gone.stop()
    peer = await upstream()
    entry = await start_gateway(hop_to("there", gone.url, peer.url), intent=intent_with(regions=REGIONS))
    assert (await entry.ask(post(chat()))).status == 200
    assert entry.core.life.results == []


async def test_a_second_hop_is_refused(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    third = await upstream()
    entry, _target = await pair(start_gateway, hop_to("further", third.url))
    await entry.ask(post(chat()))
    assert third.requests == []
    assert entry.core.life.results[0].outcome is Outcome.REFUSED_SPILL


async def test_the_target_rechecks_residency(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    bound = Tenant("t-acme", "acme", "standard", residency=Residency(frozenset({"CH"}), relay_ingress=True))
    entry, target = await pair(
        start_gateway, to(engine), intent=intent_with(region="there", regions=REGIONS, tenant=bound)
    )
    reply = await entry.ask(post(chat()))
    assert reply.status == 502
    assert entry.core.life.results[0].outcome is Outcome.REFUSED_SPILL
    assert engine.requests == []
    assert target.core.lives == []


async def test_hops_that_are_not_believed(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine), region="there", intent=intent_with(region="there", regions=REGIONS))

    async def show(value: bytes) -> int:
        return (await run.ask(post(chat(), key=None, extra=b"x-headrace-hop: %b\r\n" % value))).status

    good = hop.sign(claims(), HOP_KEY)
    version, payload, mac = good.split(b".")
    assert await show(hop.sign(claims(), b"another key")) == 401
    assert await show(hop.sign(claims(target="elsewhere"), HOP_KEY)) == 401
    assert await show(hop.sign(claims(expires=time.time() - 1), HOP_KEY)) == 401
    assert await show(hop.sign(claims(expires=time.time() + 86_400), HOP_KEY)) == 401
    assert await show(hop.sign(claims(probe=True), HOP_KEY)) == 401
    assert await show(hop.sign(claims(tenant="t-unknown"), HOP_KEY)) == 401
    assert await show(b".".join((version, payload[:-2] + b"AA", mac))) == 401
    assert await show(b".".join((version, payload, mac[:-2] + b"AA"))) == 401
    for junk in (b"", b"v1", b"v1..", b"v1.%.%", b"v2." + payload + b"." + mac, b"a" * 9000, payload):
        assert await show(junk) == 401
    assert engine.requests == []
    assert await show(good) == 200
    assert await show(good) == 401, "a token is good for one use"
    assert run.core.life.facts.request_uid == "u" * 32


async def test_any_key_in_force_verifies_and_the_first_signs(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    old, new = b"old key", b"new key"
    intents = [intent_with(region=r, regions=REGIONS) for r in ("here", "there")]
    rotated = [
        replace(i, secrets=replace(i.secrets, hop_keys=keys))
        for i, keys in zip(intents, ((new, old), (old, new)), strict=True)
    ]
    target = await start_gateway(to(await upstream()), region="there", intent=rotated[1])
    entry = await start_gateway(hop_to("there", f"http://127.0.0.1:{target.port}"), intent=rotated[0])
    assert (await entry.ask(post(chat()))).status == 200


async def test_peers_are_probed_with_a_signature(start_gateway: StartGateway) -> None:
    run = await start_gateway(region="there", intent=intent_with(region="there", regions=REGIONS))
    token_ = hop.sign_probe("here", "there", HOP_KEY, nonce="n1", wall=time.time())
    request = b"GET /_headrace/peer HTTP/1.1\r\nHost: a\r\nx-headrace-hop: %b\r\n\r\n"
    reply = await run.ask(request % token_)
    assert (reply.status, json.loads(reply.body)) == (200, {"region": "there", "ready": True})
    assert (await run.ask(request % token_)).status == 404, "replayed"
    assert (await run.ask(request % hop.sign(claims(), HOP_KEY))).status == 404, "not a probe"
    assert (await run.ask(b"GET /_headrace/peer HTTP/1.1\r\nHost: a\r\n\r\n")).status == 404


async def test_the_entry_router_decides_what_is_exposed(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    target = await start_gateway(
        to(await upstream()), region="there", intent=intent_with(region="there", regions=REGIONS), expose=Expose.NONE
    )
    for expose, shown in ((Expose.NONE, set()), (Expose.REGION, {"x-headrace-region"})):
        entry = await start_gateway(
            hop_to("there", f"http://127.0.0.1:{target.port}"), intent=intent_with(regions=REGIONS), expose=expose
        )
        reply = await entry.ask(post(chat()))
        assert {n for n, _ in reply.headers if n.startswith("x-headrace")} == shown


def test_the_replay_guard_is_bounded() -> None:
    guard = hop.ReplayGuard()
    for n in range(1, 1000):
        assert guard.fresh(claims(nonce=str(n), expires=float(n)), wall=float(n) - 0.5)
    assert len(guard._seen) < 10
