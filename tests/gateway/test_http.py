"""The front door's HTTP: framing, order, limits, time, closing."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from fleet.clock import SystemClock
from regional.gateway.server import Gateway
from regional.gateway.settings import GatewaySettings
from regional.metrics import RouterMetrics
from regional.request.steps import Outcome
from tests.edges.certificates import Authority
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import (
    DONE,
    KEY,
    OK_JSON,
    ListCore,
    NoOrigins,
    RawClient,
    Wire,
    chat,
    intent_with,
    post,
    to,
    token,
    until,
)


async def test_requests_on_one_connection_are_answered_in_order(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        number = wire.request.json["n"]
        await asyncio.sleep(0.05 if number == 0 else 0)  # the first is the slowest
        await wire.json(b'{"n":%d}' % number)

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    client = await run.client()
    await client.send(b"".join(post(chat(n=n)) for n in range(4)))
    for n in range(4):
        assert json.loads((await client.reply()).body) == {"n": n}


async def test_pipelining_is_bounded_and_nothing_is_lost(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.json(b'{"n":%d}' % wire.request.json["n"])

    engine = await upstream(script)
    run = await start_gateway(to(engine), pipelined=2)
    client = await run.client()
    for n in range(40):
        client.writer.write(post(chat(n=n)))
    for n in range(40):
        assert json.loads((await client.reply()).body) == {"n": n}


async def test_a_request_may_arrive_byte_by_byte(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    raw = post(chat())
    client = await run.client()
    for i in range(len(raw)):
        client.writer.write(raw[i : i + 1])
        await asyncio.sleep(0)
    assert (await client.reply()).body == OK_JSON
    assert engine.requests[0].json == chat()


async def test_a_chunked_body_reaches_the_engine_with_one_length(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    body = json.dumps(chat()).encode()
    head = post(b"", length=False, extra=b"Transfer-Encoding: chunked\r\n")
    pieces = [b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:7], body[7:8], body[8:])]
    reply = await run.ask(head, *pieces, b"0\r\nX-Trailer: 1\r\n\r\n")
    assert reply.status == 200
    assert engine.requests[0].body == body
    assert engine.requests[0].header(b"content-length") == [str(len(body)).encode()]
    assert engine.requests[0].header(b"transfer-encoding") == []
    assert engine.requests[0].header(b"x-trailer") == []


async def test_http_1_0_clients_get_no_chunks_and_a_closed_connection(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        for one in (token("a"), token("", "stop"), DONE):
            await wire.chunk(one)
        await wire.last_chunk()

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    reply = await run.ask(post(chat(stream=True), version=b"1.0"))
    assert reply.header("transfer-encoding") is None
    assert reply.body == token("a") + token("", "stop") + DONE


async def test_http_1_0_keep_alive_is_kept(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()
    for _ in range(2):
        await client.send(post(chat(), version=b"1.0", extra=b"Connection: keep-alive\r\n"))
        reply = await client.reply()
        assert reply.header("connection") == "keep-alive"
        assert reply.body == OK_JSON


async def test_connection_close_is_obeyed(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    run = await start_gateway(to(await upstream()))
    client = await run.client()
    await client.send(post(chat(), extra=b"Connection: close\r\n"))
    assert (await client.reply()).header("connection") == "close"
    assert await client.at_end()


@pytest.mark.parametrize("body", ["length", "chunked"])
async def test_an_offer_to_upgrade_is_declined_and_the_request_served(
    start_gateway: StartGateway, upstream: StartUpstream, body: str
) -> None:
    """Java's HTTP client offers h2c on its first request, with a body."""
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    raw = json.dumps(chat()).encode()
    if body == "length":
        await client.send(post(raw, extra=offer))
    else:
        head = post(b"", length=False, extra=offer + b"Transfer-Encoding: chunked\r\n")
        await client.send(head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw))
    assert (await client.reply()).body == OK_JSON
    assert engine.requests[0].body == raw
    assert engine.requests[0].header(b"upgrade") == []
    assert engine.requests[0].header(b"http2-settings") == []
    await client.send(post(chat()))
    assert (await client.reply()).status == 200


# case-B05


@pytest.mark.parametrize("key", [KEY, "sk-wrong-key"])
async def test_case_b05_expect_100_continue(start_gateway: StartGateway, upstream: StartUpstream, key: str) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    body = json.dumps(chat(padding="x" * 2_000_000)).encode()
    request = post(body, key=key, extra=b"Expect: 100-continue\r\n")
    head, _, rest = request.partition(b"\r\n\r\n")
    client = await run.client()
    await client.send(head + b"\r\n\r\n")
    if key == KEY:
        assert await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(rest)
        assert (await client.reply()).status == 200
        assert engine.requests[0].body == body
        assert engine.requests[0].header(b"expect") == []
    else:
        reply = await asyncio.wait_for(client.reply(), 5)  # without a byte of the body
        assert reply.status == 401
        assert reply.error["code"] == "invalid_api_key"
        assert await client.at_end()
        assert engine.requests == []


# case-B03


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
async def test_case_b03_sizes_up_to_the_limit_pass_on_every_path(
    start_gateway: StartGateway, upstream: StartUpstream, path: str
) -> None:
    engine = await upstream()
    limit = 3_500_000
    run = await start_gateway(to(engine), body_bytes=limit)
    client = await run.client()
    for size in (33 * 1024, 200 * 1024, 3 * 1024 * 1024, limit):
        frame = b'{"model":"m","input":"%b"}'
        body = frame % (b"a" * (size - len(frame % b"")))
        assert len(body) == size
        await client.send(post(body, path=path))
        assert (await client.reply()).status == 200
        assert engine.requests[-1].body == body
    contacts = len(engine.requests)
    await client.send(post(b'{"model":"m","input":"%b"}' % (b"a" * limit), path=path))
    reply = await client.reply()
    assert reply.status == 413
    assert reply.error["code"] == "request_too_large"
    assert len(engine.requests) == contacts


async def test_case_b03_a_chunked_body_over_the_limit_is_refused_as_it_comes(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine), body_bytes=100_000)
    client = await run.client()
    await client.send(post(b"", length=False, extra=b"Transfer-Encoding: chunked\r\n"))
    for _ in range(20):
        client.writer.write(b"2710\r\n" + b"a" * 10_000 + b"\r\n")
    reply = await client.reply()
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert run.gateway.held_bytes == 0
    assert engine.requests == []


async def test_case_b03_an_upload_without_a_key_is_refused_and_not_held(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()
    raw = post(b"a" * 20_000_000, key=None)
    await client.send(raw[:100_000])
    reply = await asyncio.wait_for(client.reply(), 5)
    assert reply.status == 401
    assert run.gateway.held_bytes == 0
    assert engine.requests == []


async def test_bodies_held_over_all_connections_are_bounded(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    run = await start_gateway(to(await upstream()), buffered_bytes=150_000)
    first = await run.client()
    half = post(b"a" * 120_000)
    await first.send(half[:110_000])
    await until(lambda: not (run.gateway.held_bytes < 100_000))
    reply = await run.ask(post(b"b" * 120_000))
    assert (reply.status, reply.error["code"]) == (503, "overloaded")
    assert reply.header("retry-after") is not None
    first.reset()
    await until(lambda: not (run.gateway.held_bytes))


# rel-S2

_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"
SMUGGLING = {
    "cl.te": _HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "te.cl": _HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": _HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "two equal lengths": _HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length list": _HEAD + b"Content-Length: 2, 2\r\n\r\n{}",
    "signed length": _HEAD + b"Content-Length: +2\r\n\r\n{}",
    "space before colon": _HEAD + b"Content-Length : 2\r\n\r\n{}",
    "obs-fold": _HEAD + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "te gzip": _HEAD + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "te gzip, chunked": _HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "te twice": _HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "te xchunked": _HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "te in 1.0": _HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk lf": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n",
    "chunk too long": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX\r\n0\r\n\r\n",
    "chunk 0x": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "chunk overflow": _HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff2\r\n{}\r\n0\r\n\r\n",
    "length in trailer": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
    "bare lf": _HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}",
    "bare cr": _HEAD + b"X: a\rContent-Length: 2\r\n\r\n{}",
    "nul": _HEAD + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    "empty name": _HEAD + b": a\r\nContent-Length: 2\r\n\r\n{}",
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "two hosts": _HEAD + b"Host: b\r\nContent-Length: 2\r\n\r\n{}",
    "two authorizations": _HEAD + b"Authorization: Bearer other-key\r\nContent-Length: 2\r\n\r\n{}",
    "http 0.9": b"GET /v1/models\r\n\r\n",
    "http 2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_rel_s2_ambiguous_framing_is_refused(
    start_gateway: StartGateway, upstream: StartUpstream, name: str
) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()
    await client.send(SMUGGLING[name] + post(chat()))
    reply = await asyncio.wait_for(client.reply(), 5)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    await asyncio.wait_for(client.reader.read(), 5)  # nothing that follows is served
    assert engine.requests == []


async def test_an_answer_under_way_is_finished_before_malformed_bytes_are_refused(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await asyncio.sleep(0.05)
        await wire.json()

    run = await start_gateway(to(await upstream(script)))
    client = await run.client()
    await client.send(post(chat()) + b"\x00\x01 nonsense\r\n\r\n")
    assert (await client.reply()).body == OK_JSON
    assert (await client.reply()).status == 400
    assert await client.at_end()


async def test_heads_are_bounded(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    run = await start_gateway(to(await upstream()), head_bytes=8192)
    long_value = await run.client()
    await long_value.send(b"POST / HTTP/1.1\r\nHost: a\r\nX: ", *[b"a" * 1000] * 9)
    reply = await long_value.reply()
    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
    many = await run.ask(post(chat(), extra=b"".join(b"X-%d: 1\r\n" % i for i in range(250))))
    assert many.status == 431
    trailer = await run.client()
    await trailer.send(
        post(b"", length=False, extra=b"Transfer-Encoding: chunked\r\n"), b"0\r\nX: ", *[b"a" * 1000] * 9
    )
    assert (await trailer.reply()).status == 400


@pytest.mark.parametrize("target", ["/livez", "/readyz", "/v1/models", "/v1/models/none"])
async def test_bodies_of_what_is_answered_here_are_not_held(start_gateway: StartGateway, target: str) -> None:
    """Otherwise anyone who may ask whether we live could use up the room for bodies."""
    run = await start_gateway(buffered_bytes=1000)
    client = await run.client()
    for _ in range(5):
        await client.send(post(b"x" * 600, path=target).replace(b"POST", b"GET", 1))
        assert (await client.reply()).status in (200, 404)
        assert run.gateway.held_bytes == 0


@pytest.mark.parametrize(
    "target",
    [
        "/v1/other",
        "/",
        "//v1/chat/completions",
        "/v1/chat/completions/",
        "/V1/chat/completions",
        "/v1/..%2fv1/models",
        "/metrics",
        "/docs",
        "/_headrace/peer",
        "*",
    ],
)
async def test_case_v05_unknown_paths(start_gateway: StartGateway, upstream: StartUpstream, target: str) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    for request in (post(chat(), path=target), b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target.encode()):
        reply = await run.ask(request)
        assert (reply.status, reply.error["code"]) == (404, "unknown_path")
    assert engine.requests == []


async def test_paths_in_absolute_form_and_with_a_query(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    assert (await run.ask(post(chat(), path="http://elsewhere/v1/chat/completions?a=b"))).status == 200
    assert engine.requests[0].request_line == b"POST /v1/chat/completions HTTP/1.1"
    wrong = await run.ask(b"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (wrong.status, wrong.header("allow")) == (405, "POST")


async def test_health_paths_are_bare(start_gateway: StartGateway) -> None:
    run = await start_gateway()
    client = await run.client()
    for path in ("livez", "readyz", "startupz", "healthz", "health", "health/readiness", "health/liveliness"):
        await client.send(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode())
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, b"ok\n")
    await client.send(b"HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    status, headers = await client.head()
    assert (status, dict(headers)["content-length"]) == (200, "3")
    await client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await client.reply()).body == b"ok\n"


# rel-R20


async def test_rel_r20_slow_senders_are_closed(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    run = await start_gateway(to(await upstream()), client_seconds=0.5)

    async def drip(raw: bytes) -> int:
        client = await run.client()
        reply = asyncio.ensure_future(client.reply())
        for i in range(len(raw)):
            if reply.done():
                break
            client.writer.write(raw[i : i + 1])
            await asyncio.sleep(0.05)
        return (await reply).status

    whole = post(chat(padding="x" * 500))
    body_only = whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    async def slow_body() -> int:
        client = await run.client()
        await client.send(body_only)
        reply = asyncio.ensure_future(client.reply())
        while not reply.done():
            client.writer.write(b" ")
            await asyncio.sleep(0.05)
        return (await reply).status

    assert await asyncio.wait_for(asyncio.gather(drip(whole), slow_body()), 20) == [408, 408]


async def test_rel_r20_unread_answers_are_cut_and_the_engine_is_held_back(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    written = 0

    async def script(wire: Wire) -> None:
        nonlocal written
        await wire.stream_head()
        piece = token("x" * 60_000)
        while True:
            await wire.chunk(piece)
            written += len(piece)

    engine = await upstream(script)
    run = await start_gateway(to(engine), client_seconds=0.5)
    client = await run.client()
    client.writer.transport.pause_reading()
    await client.send(post(chat(stream=True)))
    await until(lambda: engine.connections)
    await asyncio.wait_for(engine.all_closed.wait(), 20)
    assert written < 40_000_000  # what sockets' own buffers take, not what the engine would send
    await until(lambda: run.records)
    assert run.records[0].outcome is Outcome.ABORTED


async def test_idle_connections_are_closed(start_gateway: StartGateway) -> None:
    run = await start_gateway(keepalive_seconds=0.2)
    client = await run.client()
    assert await asyncio.wait_for(client.at_end(), 10)


async def test_connections_are_bounded(start_gateway: StartGateway) -> None:
    run = await start_gateway(connections=2)
    first, second = await run.client(), await run.client()
    for client in (first, second):
        await client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.reply()).status == 200
    third = await run.client()
    assert (await third.reply()).status == 503


# Shutting down


async def test_draining_finishes_what_runs_and_closes_what_idles(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        await go_on.wait()
        for one in (token("", "stop"), DONE):
            await wire.chunk(one)
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)), shutdown_delay_seconds=0.2, shutdown_grace_seconds=10.0)
    idle, busy = await run.client(), await run.client()
    await busy.send(post(chat(stream=True)))
    await busy.head()
    assert await busy.chunk() == token("a")
    draining = asyncio.ensure_future(run.gateway.drain())
    await idle.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await idle.reply()).status == 200  # still served during the delay
    assert await asyncio.wait_for(idle.at_end(), 5)
    with pytest.raises(ConnectionRefusedError):
        await RawClient.open(run.port)
    assert not draining.done()
    go_on.set()
    assert await busy.chunk() == token("", "stop")
    assert await busy.chunk() == DONE
    assert await busy.chunk() == b""
    assert await busy.at_end()
    await asyncio.wait_for(draining, 5)


async def test_after_the_grace_running_requests_are_broken_off_in_band(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        await wire.closed_by_peer()

    run = await start_gateway(to(await upstream(script)), shutdown_grace_seconds=0.1)
    client = await run.client()
    await client.send(post(chat(stream=True)))
    await client.head()
    await client.chunk()
    await asyncio.wait_for(run.gateway.drain(), 5)
    rest = await client.reader.read()
    assert b'"error"' in rest
    assert b"[DONE]" not in rest


async def test_tls(upstream: StartUpstream, tmp_path: Path) -> None:
    authority = Authority.create("test CA")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.issue(cert, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=authority.write(tmp_path / "ca.pem"))
    engine = await upstream()
    gateway = Gateway(
        ListCore(to(engine)),
        intent_with,
        NoOrigins(),
        GatewaySettings(region="here"),
        RouterMetrics("here", "t"),
        clock=SystemClock(),
    )
    ((_, port),) = await gateway.serve("127.0.0.1", 0, context)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    client = RawClient(reader, writer)
    for _ in range(2):
        await client.send(post(chat()))
        assert (await client.reply()).body == OK_JSON
    client.close()
    await gateway.close()
