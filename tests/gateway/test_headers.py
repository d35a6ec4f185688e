"""Headers in both directions."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from fleet.locality import Origin
from regional.gateway.settings import Expose
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import KEY, OK_JSON, Wire, chat, post, to


@pytest.mark.parametrize("coding", [b"gzip", b"br"])
async def test_case_h01_coding_and_length_agree(
    start_gateway: StartGateway, upstream: StartUpstream, coding: bytes
) -> None:
    packed = gzip.compress(OK_JSON) if coding == b"gzip" else b"\x0b\x02\x80not really brotli\x03"

    async def script(wire: Wire) -> None:
        await wire.json(packed, extra=b"content-encoding: %b\r\n" % coding)

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    reply = await run.ask(post(chat(), extra=b"Accept-Encoding: gzip, br\r\n"))
    assert engine.requests[0].header(b"accept-encoding") == [b"identity"]
    assert int(reply.header("content-length") or 0) == len(reply.body)
    if coding == b"gzip":
        assert reply.header("content-encoding") is None
        assert reply.body == OK_JSON
        assert run.records[0].usage.prompt_tokens == 5
    else:
        assert reply.header("content-encoding") == "br"
        assert reply.body == packed


async def test_case_h01_a_coded_stream_passes_with_its_header(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    packed = gzip.compress(b"data: {}\n\n" * 50)

    async def script(wire: Wire) -> None:
        await wire.stream_head(b"content-encoding: gzip\r\n")
        await wire.chunk(packed)
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)))
    reply = await run.ask(post(chat(stream=True)))
    if reply.header("content-encoding") == "gzip":
        assert gzip.decompress(reply.body) == b"data: {}\n\n" * 50
    else:
        assert reply.body == b"data: {}\n\n" * 50


async def test_case_h04_hop_by_hop_headers_stop_here(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.json(
            extra=b"Connection: keep-alive, X-Back\r\nX-Back: 1\r\nKeep-Alive: timeout=5\r\nTrailer: X-T\r\n"
            b"Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nX-Engine: stays\r\n"
        )

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    reply = await run.ask(
        post(
            chat(),
            extra=b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nTrailer: X-T\r\nKeep-Alive: timeout=5\r\n"
            b"Proxy-Authorization: x\r\nUpgrade: h2c\r\nX-Stays: yes\r\nUser-Agent: me\r\n",
        )
    )
    names = {name for name, _ in engine.requests[0].headers}
    stopped = {b"connection", b"x-hop", b"te", b"trailer", b"keep-alive", b"proxy-authorization", b"upgrade"}
    assert not names & stopped
    assert engine.requests[0].header(b"x-stays") == [b"yes"]
    assert engine.requests[0].header(b"user-agent") == [b"me"]
    back = {name for name, _ in reply.headers}
    assert not back & {"connection", "x-back", "keep-alive", "trailer", "proxy-authenticate", "upgrade"}
    assert reply.header("x-engine") == "stays"


async def test_case_h05_bytes_that_are_not_ascii(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.json(extra="X-Back: 好\r\n".encode())

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    reply = await run.ask(
        post(chat(), extra=b"X-Note: \xe4\xbd\xa0\xe5\xa5\xbd\r\nX-Session-Id: \xe4\xbd\r\nX-Request-Id: \xff\r\n")
    )
    assert reply.status == 200
    assert engine.requests[0].header(b"x-note") == [b"\xe4\xbd\xa0\xe5\xa5\xbd"]
    assert reply.header("x-back") == "好".encode().decode("latin-1")
    for token in (b"\xe4\xbd\xa0\xe5\xa5\xbd", b"\xff" * 40, b"hr_\xc3\xa9"):
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\nContent-Length: 2\r\n\r\n{}"
            % token
        )
        assert (await run.ask(request)).status == 401


async def test_case_h08_forwarded_addresses_count_only_behind_a_trusted_proxy(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    cases = [
        (("10.0.0.0/8",), b"X-Forwarded-For: 198.51.100.1\r\n", "127.0.0.1"),
        (("127.0.0.0/8",), b"X-Forwarded-For: 1.1.1.1, 203.0.113.5\r\n", "203.0.113.5"),
        (("127.0.0.0/8",), b"X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 203.0.113.5\r\n", "203.0.113.5"),
        (("127.0.0.0/8",), b"X-Forwarded-For: garbage\r\n", "127.0.0.1"),
        (("127.0.0.0/8",), b"Forwarded: for=203.0.113.9;proto=https\r\n", "203.0.113.9"),
        ((), b"X-Forwarded-For: 203.0.113.5\r\n", "127.0.0.1"),
    ]
    for trusted, header, expected in cases:
        engine = await upstream()
        run = await start_gateway(to(engine), trusted_proxies=trusted)
        assert (await run.ask(post(chat(), extra=header))).status == 200
        assert run.core.life.facts.origin == Origin(address=expected)
        assert engine.requests[0].header(b"x-forwarded-for") == []
        assert engine.requests[0].header(b"forwarded") == []


async def test_case_h10_request_ids(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()

    async def ask(label: bytes) -> str:
        await client.send(post(chat(), extra=b"X-Request-Id: %b\r\n" % label))
        return (await client.reply()).header("x-request-id") or ""

    assert await ask(b"req-7:a/b") == "req-7:a/b"
    for bad in (b"a" * 10_000, b'","level":"ERROR', b"a\tb", b"a b", b""):
        shown = await ask(bad)
        assert shown == run.core.lives[-1].facts.request_uid
        assert len(shown) == 32
    uids = [life.facts.request_uid for life in run.core.lives]
    assert len(set(uids)) == len(uids), "a label is never an identity"
    assert [r.header(b"x-request-id") for r in engine.requests] == [[uid.encode()] for uid in uids]


async def test_a_tenants_credentials_and_internal_headers_stay_here(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine, key="engine-key"))
    extra = (
        b"Cookie: a=%b\r\nApi-Key: %b\r\nX-Api-Key: %b\r\nX-Headrace-Endpoint: evil\r\nX-Headrace-Attempts: 9\r\n"
        b"X-Headrace-Hop: v1.forged.token\r\nX-Headrace-Priority: 5\r\n"
    ) % ((KEY.encode(),) * 3)
    reply = await run.ask(post(chat(), extra=extra))
    assert reply.status == 200
    got = engine.requests[0]
    assert KEY.encode() not in got.head
    assert not [name for name, _ in got.headers if name.startswith(b"x-headrace-")]
    assert got.header(b"authorization") == [b"Bearer engine-key"]
    assert reply.header("x-headrace-endpoint") == "engine-1"


async def test_an_engines_internals_do_not_reach_the_client(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.json(
            extra=b"Server: internal-10.0.0.5\r\nSet-Cookie: a=b\r\nX-Headrace-Endpoint: spoofed\r\nX-Request-Id: theirs\r\n"
            b"Location: http://10.0.0.5/\r\nEndpoint-Load-Metrics: x\r\n"
        )

    run = await start_gateway(to(await upstream(script)))
    reply = await run.ask(post(chat()))
    assert "10.0.0.5" not in json.dumps(reply.headers)
    assert reply.header("set-cookie") is None
    assert reply.header("x-headrace-endpoint") == "engine-1"
    assert reply.header("x-request-id") == run.core.life.facts.request_uid


@pytest.mark.parametrize(
    ("expose", "shown"),
    [
        ("none", set()),
        ("region", {"x-headrace-region"}),
        ("all", {f"x-headrace-{n}" for n in ("region", "zone", "node", "gpu", "endpoint", "attempts")}),
    ],
)
async def test_placement_headers(
    start_gateway: StartGateway, upstream: StartUpstream, expose: str, shown: set[str]
) -> None:
    run = await start_gateway(to(await upstream()), expose=Expose(expose))
    reply = await run.ask(post(chat()))
    assert {n for n, _ in reply.headers if n.startswith("x-headrace-")} == shown


async def test_names_from_agents_cannot_break_a_header(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    step = to(await upstream())
    step = replace(step, target=replace(step.target, name="a\r\nX-Evil: 1", node="ü b"))
    run = await start_gateway(step)
    reply = await run.ask(post(chat()))
    assert reply.header("x-evil") is None
    assert reply.status == 200


async def test_routes_see_the_headers_they_match_on(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    from fleet.intent import Route, Split
    from tests.gateway.parts import intent_with

    route = Route("r", "r", "m", (Split("m", 1.0),), headers={"X-Beta": "yes", "x-request-id": "a"})
    run = await start_gateway(to(await upstream()), intent=intent_with(routes=(route,)))
    await run.ask(post(chat(), extra=b"x-BETA: yes\r\nX-Other: 1\r\nX-Request-Id: a\r\n"))
    assert dict(run.core.life.facts.route_headers) == {"x-beta": "yes", "x-request-id": "a"}
