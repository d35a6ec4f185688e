"""The engines' side: connections, time limits, failures before the first byte."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from pathlib import Path

import pytest

from fleet.locality import Zone
from regional.gateway.server import Gateway
from regional.gateway.settings import GatewaySettings
from regional.metrics import RouterMetrics
from regional.request.steps import Outcome, Reject, RejectReason
from tests.edges.certificates import Authority
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import (
    DONE,
    OK_JSON,
    ListCore,
    NoOrigins,
    RawClient,
    RawUpstream,
    Wire,
    chat,
    intent_with,
    post,
    to,
    token,
    until,
    wait,
)


async def test_connections_are_kept_and_reused(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()
    for _ in range(20):
        await client.send(post(chat()))
        assert (await client.reply()).body == OK_JSON
    assert engine.connections == 1


async def test_idle_connections_expire(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine), upstream_idle_seconds=0.1)
    await run.ask(post(chat()))
    await asyncio.wait_for(engine.all_closed.wait(), 10)


async def test_nodelay_on_both_sides(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    held = asyncio.Event()

    async def script(wire: Wire) -> None:
        await held.wait()
        await wire.json()

    run = await start_gateway(to(await upstream(script)))
    client = await run.client()
    await client.send(post(chat()))
    await until(lambda: run.gateway.exchanges)
    (exchange,) = run.gateway.exchanges
    await until(lambda: exchange._attempt.upstream is not None)
    for transport in (exchange._client.transport, exchange._attempt.upstream.transport):
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    held.set()
    assert (await client.reply()).status == 200


async def test_case_r10_connections_closed_while_idle(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    """The engine closes a kept connection at about the moment it is used again, over and over."""

    async def script(wire: Wire) -> None:
        await wire.json()
        wire.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
        asyncio.get_running_loop().call_later(0.01, wire.close)

    engine = await upstream(script)
    run = await start_gateway(to(engine), to(engine, attempt=2))
    client = await run.client()
    for _ in range(100):
        await client.send(post(chat()))
        assert (await client.reply()).status == 200
        await asyncio.sleep(0.01)
    outcomes = {r.outcome for life in run.core.lives for r in life.results}
    assert outcomes <= {Outcome.STALE_CONNECTION}


async def test_case_r10_a_stale_connection_is_told_as_such(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        if wire.request.json.get("n") == 2 and wire.request.connection == 0:
            wire.reset()  # as if it had been closed just before
        else:
            await wire.json()

    engine = await upstream(script)
    run = await start_gateway(to(engine), to(engine, attempt=2))
    client = await run.client()
    for n in (1, 2):
        await client.send(post(chat(n=n)))
        assert (await client.reply()).status == 200
    assert [r.outcome for r in run.core.lives[1].results] == [Outcome.STALE_CONNECTION]
    assert engine.connections == 2


async def test_a_fresh_connection_that_is_reset_is_not_stale(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        wire.reset()

    run = await start_gateway(to(await upstream(script)), to(await upstream(), attempt=2))
    assert (await run.ask(post(chat()))).status == 200
    assert [r.outcome for r in run.core.life.results] == [Outcome.RESET]


async def test_case_r02_refused_connections_move_on(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    gone = await upstream()
    await gone.stop()
    engine = await upstream()
    run = await start_gateway(to(gone), to(engine, attempt=2))
    replies = await asyncio.gather(*(run.ask(post(chat())) for _ in range(50)))
    assert {r.status for r in replies} == {200}
    assert all(len(life.results) == 1 for life in run.core.lives)
    assert replies[0].header("x-headrace-attempts") == "2"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", ["nothing", "interim", "head"])
async def test_case_r12_a_hung_engine_costs_the_first_byte_limit_and_nobody_else(
    start_gateway: StartGateway, upstream: StartUpstream, said: str, stream: bool
) -> None:
    async def hang(wire: Wire) -> None:
        if said == "interim":
            await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if said == "head":
            await wire.stream_head()
        await wire.closed_by_peer()

    async def script(wire: Wire) -> None:
        if stream:
            await wire.stream_head()
            await wire.chunk(token("", "stop") + DONE)
            await wire.last_chunk()
        else:
            await wire.json()

    hung, good = await upstream(hang), await upstream(script)
    run = await start_gateway(to(hung, first=0.3), to(good, attempt=2))
    other = await start_gateway(to(good))
    slow = [asyncio.ensure_future(run.ask(post(chat(stream=stream)))) for _ in range(20)]
    await asyncio.sleep(0.05)
    for _ in range(10):
        assert (await asyncio.wait_for(other.ask(post(chat(stream=stream))), 2)).status == 200
    for reply in await asyncio.wait_for(asyncio.gather(*slow), 10):
        assert reply.status == 200
    assert {r.outcome for life in run.core.lives for r in life.results} == {Outcome.TIMEOUT_FIRST_BYTE}
    await asyncio.wait_for(hung.all_closed.wait(), 5)
    alone = await start_gateway(to(hung, first=0.2))
    reply = await alone.ask(post(chat(stream=stream)))
    assert (reply.status, reply.error["code"]) == (504, "upstream_timeout")


async def test_connecting_is_bounded(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    # A listener whose backlog is full does not answer a further SYN.
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    address = full.getsockname()
    plugs = []
    for _ in range(8):
        plug = socket.socket()
        plug.setblocking(False)
        plug.connect_ex(address)
        plugs.append(plug)
    await asyncio.sleep(0.05)
    run = await start_gateway(to(f"http://127.0.0.1:{address[1]}", connect=0.2), to(await upstream(), attempt=2))
    assert (await asyncio.wait_for(run.ask(post(chat())), 5)).status == 200
    assert run.core.life.results[0].outcome is Outcome.TIMEOUT_CONNECT
    for sock in (*plugs, full):
        sock.close()


async def test_the_total_limit_and_the_callers_deadline(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def hang(wire: Wire) -> None:
        await wire.closed_by_peer()

    async def endless(wire: Wire) -> None:
        await wire.stream_head()
        while True:
            await wire.chunk(token("a"))
            await asyncio.sleep(0.02)

    run = await start_gateway(to(await upstream(hang)))
    reply = await asyncio.wait_for(run.ask(post(chat(), extra=b"x-headrace-deadline-ms: 200\r\n")), 5)
    assert reply.status == 504
    assert run.core.life.results[0].outcome is Outcome.TIMEOUT_TOTAL
    run = await start_gateway(to(await upstream(endless)))
    reply = await asyncio.wait_for(run.ask(post(chat(stream=True), extra=b"x-headrace-deadline-ms: 300\r\n")), 5)
    assert b'"upstream_timeout"' in reply.body
    assert not reply.complete
    assert run.records[0].outcome is Outcome.TIMEOUT_TOTAL


@pytest.mark.parametrize("when", ["connecting", "waiting", "head"])
async def test_case_e09_a_revoked_attempt_goes_elsewhere_at_once(
    start_gateway: StartGateway, upstream: StartUpstream, when: str
) -> None:
    begun = asyncio.Event()

    async def hang(wire: Wire) -> None:
        if when == "head":
            await wire.stream_head()
        begun.set()
        await wire.closed_by_peer()

    hung = await upstream(hang)
    run = await start_gateway(to(hung, first=60.0), to(await upstream(), attempt=2))
    asking = asyncio.ensure_future(run.ask(post(chat())))
    if when == "connecting":
        await until(lambda: run.core.revokes)
    else:
        await begun.wait()
        await asyncio.sleep(0.05)
    run.core.revokes[0]()
    run.core.revokes[0]()  # told twice
    assert (await asyncio.wait_for(asking, 5)).status == 200
    assert [r.outcome for r in run.core.life.results] == [Outcome.DECLARED_DEAD]
    run.core.revokes[0]()  # and once more after the end
    await asyncio.sleep(0.01)
    assert run.core.life.calls.count("end") == 1


async def test_a_revoke_after_the_first_byte_changes_nothing(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        await go_on.wait()
        await wire.chunk(token("", "stop") + DONE)
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)), to(await upstream(), attempt=2))
    client = await run.client()
    await client.send(post(chat(stream=True)))
    await client.head()
    assert await client.chunk() == token("a")
    run.core.revokes[0]()
    await asyncio.sleep(0.02)
    go_on.set()
    assert await client.chunk() == token("", "stop") + DONE


async def test_waiting_for_a_place(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    run = await start_gateway(wait(0.02), wait(0.02), to(await upstream()))
    assert (await run.ask(post(chat()))).status == 200
    assert run.core.life.calls[:2] == ["wait_over", "wait_over"]


async def test_case_f05_a_client_that_leaves_while_waiting_never_reaches_an_engine(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    engine = await upstream()
    run = await start_gateway(wait(0.2), to(engine))
    client = await run.client()
    await client.send(post(chat()))
    await until(lambda: run.core.lives)
    client.close()
    await until(lambda: run.records)
    assert run.records[0].outcome is Outcome.ABORTED
    await asyncio.sleep(0.3)
    assert engine.connections == 0


async def test_case_f01_every_way_to_fail_releases_once(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def before_headers(wire: Wire) -> None:
        wire.reset()

    async def mid_stream(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        wire.reset()

    async def hang(wire: Wire) -> None:
        await wire.closed_by_peer()

    for script in (before_headers, mid_stream, hang):
        run = await start_gateway(to(await upstream(script), first=0.2))
        await asyncio.gather(*(run.ask(post(chat(stream=True))) for _ in range(10)))
        assert run.core.inflight == 0
    run = await start_gateway(to(await upstream(hang)))
    for _ in range(10):
        client = await run.client()
        await client.send(post(chat()))
        await asyncio.sleep(0.002)
        client.reset()
    await until(lambda: not (len(run.records) < len(run.core.lives) or run.gateway.exchanges))
    assert run.core.inflight == 0


@pytest.mark.parametrize(
    ("status", "outcome", "answered"),
    [
        (b"401 Unauthorized", Outcome.AUTH_FAILED, 502),
        (b"429 Too Many Requests", Outcome.OVERLOADED, 429),
        (b"500 Internal Server Error", Outcome.UPSTREAM_ERROR, 502),
        (b"502 Bad Gateway", Outcome.UPSTREAM_ERROR, 502),
        (b"302 Found", Outcome.BAD_RESPONSE, 502),
    ],
)
async def test_statuses_that_do_not_pass(
    start_gateway: StartGateway, upstream: StartUpstream, status: bytes, outcome: Outcome, answered: int
) -> None:
    async def script(wire: Wire) -> None:
        await wire.json(
            b'{"error":"key sk-CANARY at 10.0.0.5"}', status=status, extra=b"location: http://10.0.0.5/\r\n"
        )

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    reply = await run.ask(post(chat()))
    assert reply.status == answered
    assert run.core.life.results[0].outcome is outcome
    assert "10.0.0.5" not in reply.body.decode() + json.dumps(reply.headers)
    assert b"CANARY" not in reply.body
    assert len(engine.requests) == 1, "redirects are not followed"
    moved = await start_gateway(to(engine), to(await upstream(), attempt=2))
    assert (await moved.ask(post(chat()))).status == 200


@pytest.mark.parametrize("reason", list(RejectReason))
async def test_every_reject_reason_has_an_answer(start_gateway: StartGateway, reason: RejectReason) -> None:
    run = await start_gateway(Reject(reason, "Because.", 3.0 if reason is RejectReason.NO_ENDPOINT else None))
    reply = await run.ask(post(chat()))
    assert reply.error["message"] == "Because."
    expected = {
        "model_not_found": 404,
        "model_not_allowed": 403,
        "wrong_task": 400,
        "region_not_allowed": 403,
        "context_length_exceeded": 400,
        "no_healthy_endpoint": 503,
        "overloaded": 429,
        "upstream_reset": 502,
        "upstream_auth": 502,
        "upstream_timeout": 504,
        "deadline": 504,
        "second_hop": 403,
    }
    assert reply.status == expected[reason.value]
    if reply.status in (429, 503):
        assert 1 <= int(reply.header("retry-after") or 0) <= 4
        assert float(reply.header("retry-after-ms") or 0) > 0
    elif reply.status < 500:
        assert reply.header("x-should-retry") == "false"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://127.0.0.1:99999",
        "ftp://127.0.0.1",
        "not a url",
        "http://[::1",
        "http://localhost:1",
        "http://a b",
    ],
)
async def test_case_v07_no_address_in_the_clients_error(start_gateway: StartGateway, url: str) -> None:
    run = await start_gateway(to(url))
    reply = await asyncio.wait_for(run.ask(post(chat())), 30)
    assert reply.status == 502
    assert "127.0.0.1" not in reply.body.decode()
    assert "localhost" not in reply.body.decode()
    assert reply.header("x-request-id")


async def test_interim_answers_are_skipped(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
        await wire.json()

    run = await start_gateway(to(await upstream(script)))
    client = await run.client()
    for _ in range(3):
        await client.send(post(chat()))
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, OK_JSON)
        assert reply.header("link") is None


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 400_000,
        b"HTTP/1.1 999999 OK\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02",
    ],
)
async def test_answers_that_are_not_http(start_gateway: StartGateway, upstream: StartUpstream, raw: bytes) -> None:
    async def script(wire: Wire) -> None:
        await wire.send(raw)
        await wire.closed_by_peer()

    run = await start_gateway(to(await upstream(script)), to(await upstream(), attempt=2))
    assert (await asyncio.wait_for(run.ask(post(chat())), 5)).status == 200
    assert run.core.life.results[0].outcome is Outcome.BAD_RESPONSE


async def test_answers_framed_by_the_end_of_the_connection(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n", OK_JSON[:50], OK_JSON[50:])
        wire.close()

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    client = await run.client()
    for n in (1, 2):
        await client.send(post(chat()))
        reply = await client.reply()
        assert reply.body == OK_JSON
        assert reply.header("content-length") == str(len(OK_JSON))
        assert engine.connections == n


@pytest.mark.parametrize("together", [True, False])
async def test_bytes_after_an_answer_close_the_connection(
    start_gateway: StartGateway, upstream: StartUpstream, together: bool
) -> None:
    evil = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\r\n"evil"'

    async def script(wire: Wire) -> None:
        if wire.request.connection == 0 and together:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(OK_JSON)
            await wire.send(head + OK_JSON + evil)
        else:
            await wire.json()
        if wire.request.connection == 0 and not together:
            await asyncio.sleep(0.005)
            await wire.send(evil)

    engine = await upstream(script)
    run = await start_gateway(to(engine), to(engine, attempt=2))
    client = await run.client()
    for _ in range(3):
        await client.send(post(chat()))
        assert (await client.reply()).body == OK_JSON
        await asyncio.sleep(0.03)
    assert engine.connections == 2


async def test_case_w05_ipv6_literals(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    try:
        engine = await upstream(host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    run = await start_gateway(to(engine))
    assert (await run.ask(post(chat()))).status == 200
    assert engine.requests[0].header(b"host") == [f"[::1]:{engine.port}".encode()]


async def test_https_engines_are_verified(upstream: StartUpstream, tmp_path: Path) -> None:
    authority = Authority.create("engines")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.issue(cert, key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    engine: RawUpstream = await upstream(ssl=serving)
    trusting = ssl.create_default_context(cafile=authority.write(tmp_path / "ca.pem"))
    for context, status in ((trusting, 200), (ssl.create_default_context(), 502)):
        gateway = Gateway(
            ListCore(to(engine)),
            intent_with,
            NoOrigins(),
            GatewaySettings(region="here"),
            RouterMetrics("here", "t"),
            upstream_tls=lambda context=context: context,
        )
        ((_, port),) = await gateway.serve("127.0.0.1", 0)
        client = await RawClient.open(port)
        await client.send(post(chat()))
        assert (await client.reply()).status == status
        client.close()
        await gateway.close()
    assert len(engine.requests) == 1


async def test_a_fault_of_the_core_costs_one_request(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    class Faulty(ListCore):
        def begin(self, facts, now, revoke):  # type: ignore[no-untyped-def]
            if facts.requested_model == "bad":
                raise RuntimeError("a bug with sk-CANARY in it")
            return super().begin(facts, now, revoke)

    run = await start_gateway(core=Faulty(to(await upstream())))
    client = await run.client()
    for model, status in (("m", 200), ("bad", 500), ("m", 200)):
        await client.send(post(chat(model=model)))
        reply = await client.reply()
        assert reply.status == status
        assert b"CANARY" not in reply.body
    assert not run.gateway.exchanges


async def test_one_slow_request_does_not_hold_up_others(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    held = asyncio.Event()

    async def script(wire: Wire) -> None:
        if wire.request.json.get("n") == 1:
            await held.wait()
        await wire.json()

    run = await start_gateway(to(await upstream(script)))
    slow = asyncio.ensure_future(run.ask(post(chat(n=1))))
    started = time.monotonic()
    for _ in range(20):
        assert (await run.ask(post(chat()))).status == 200
    assert time.monotonic() - started < 5
    assert not slow.done()
    held.set()
    assert (await slow).status == 200


async def test_a_connection_held_back_for_a_slow_reader_is_good_afterwards(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    """The client stops reading; the last bytes of the answer arrive in the very read that fills its buffer."""
    event = token("x" * 100_000)
    count = 200

    async def script(wire: Wire) -> None:
        if wire.request.json.get("n") == 1:
            framed = b"%x\r\n%b\r\n" % (len(event), event)
            end = token("", "stop") + DONE
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            await wire.send(head + framed * count + b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        else:
            await wire.json()

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    slow = await run.client()
    slow.writer.transport.pause_reading()
    await slow.send(post(chat(stream=True, n=1)))
    await until(lambda: run.gateway.exchanges)
    await asyncio.sleep(0.1)
    slow.writer.transport.resume_reading()
    reply = await slow.reply()
    assert reply.complete
    assert reply.body.count(b"data: ") == count + 2
    for _ in range(3):
        assert (await asyncio.wait_for(run.ask(post(chat())), 5)).status == 200
    assert engine.connections == 1


async def test_every_connection_reads_again_once_released(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()
    await client.send(post(chat()))
    await client.reply()
    pool = run.gateway.upstreams.pool(engine.url, run.gateway.now)
    connection = pool.take()
    assert connection is not None
    connection.hold()
    connection.hold()
    pool.release(connection, reusable=True)
    await client.send(post(chat()))
    assert (await asyncio.wait_for(client.reply(), 5)).status == 200
    assert engine.connections == 1


@pytest.mark.parametrize("status", [b"503 Service Unavailable", b"429 Too Many Requests", b"500 Internal Server Error"])
async def test_nothing_of_a_discarded_answer_reaches_the_next_request(
    start_gateway: StartGateway, upstream: StartUpstream, status: bytes
) -> None:
    """The connection of an answer that was not for the client is kept; what that answer said is gone."""
    answers = iter([(status, b'{"error":"of another request"}'), (b"400 Bad Request", b'{"error":"own"}')])

    async def script(wire: Wire) -> None:
        line, body = next(answers)
        await wire.json(body, status=line)

    first = await upstream(script)
    run = await start_gateway(to(first), to(await upstream(), attempt=2))
    client = await run.client()
    await client.send(post(chat()))
    assert (await client.reply()).body == OK_JSON
    await client.send(post(chat()))
    assert (await client.reply()).body == b'{"error":"own"}'
    assert first.connections == 1


@pytest.mark.parametrize(
    ("ranges", "reached"),
    [((), True), (("127.0.0.0/8", "::1/128"), True), (("10.2.0.0/16",), False)],
    ids=["no-limit", "inside", "outside"],
)
async def test_rel_s8_a_name_may_not_lead_outside_the_zone(
    start_gateway: StartGateway, upstream: StartUpstream, ranges: tuple[str, ...], reached: bool
) -> None:
    """What an agent calls its own may resolve to anything, and to something else each time."""
    engine = await upstream()
    zone = Zone("z-1", "here-a", "here", frozenset(), ranges)
    run = await start_gateway(
        to(engine.url.replace("127.0.0.1", "localhost")), intent=intent_with(zones={"here-a": zone})
    )
    assert (await run.ask(post(chat()))).status == (200 if reached else 502)
    assert engine.connections == (1 if reached else 0)


async def test_a_key_of_an_engine_cannot_add_headers(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine, key="a\r\nx-admin: yes\r\n\r\nGET /other HTTP/1.1"))
    assert (await run.ask(post(chat()))).status == 200
    (request,) = engine.requests
    assert request.header(b"x-admin") == request.header(b"authorization") == []
