"""The short ways: what is taken for a repetition must be one, and must come out the same."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional.gateway.repeat import RepeatedHead
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import DONE, OK_JSON, Wire, chat, post, to, token

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX: y\r\n\r\n"


def start(head: bytes, data: bytes) -> int:
    repeated = RepeatedHead.of(head)
    return -1 if repeated is None else repeated.body_start(data)


def test_the_same_head_with_any_length() -> None:
    for body in (b"", b"a", b"a" * 12345):
        data = HEAD.replace(b" 5\r", b" %d\r" % len(body)) + body
        assert data[start(HEAD, data) :] == body


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"abcd",
        HEAD + b"abcdef",
        HEAD.replace(b"X: y", b"X: z") + b"abcde",
        HEAD.replace(b" 5\r", b" +5\r") + b"abcde",
        HEAD.replace(b" 5\r", b" 5 \r") + b"abcde",
        HEAD.replace(b" 5\r", b" \r") + b"",
        HEAD.replace(b" 5\r", b" \xb2\r") + b"ab",
        HEAD.replace(b" 5\r", b" 00000000000000005\r") + b"abcde",
        HEAD.replace(b"Content-Length", b"content-length") + b"abcde",
        HEAD[:-2],
        b"",
    ],
)
def test_what_is_not_quite_the_same(data: bytes) -> None:
    assert start(HEAD, data) == -1


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        HEAD.replace(b"X: y", b"Transfer-Encoding: chunked"),
        HEAD.replace(b"X: y", b"content-length: 5"),
        HEAD.replace(b"X: y", b"transfer-encoding : chunked"),
        HEAD.replace(b"X: y", b"X: " + b"y" * 5000),
    ],
)
def test_heads_that_are_never_remembered(head: bytes) -> None:
    assert RepeatedHead.of(head) is None


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, len(HEAD) - 1), byte=st.integers(0, 255))
def test_any_other_byte_makes_another_head(at: int, byte: int) -> None:
    changed = bytearray(HEAD + b"abcde")
    changed[at] = byte
    if bytes(changed) != HEAD + b"abcde":
        found = start(HEAD, bytes(changed))
        digit = HEAD.index(b" 5\r") + 1
        assert found == -1 or at == digit


async def test_repeated_requests_come_out_the_same(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.json(b'{"n":%d}' % wire.request.json["n"])

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    client = await run.client()
    for n in (1, 22, 333, 4444, 5):
        await client.send(post(chat(n=n), extra=b"X-Note: kept\r\nX-Request-Id: same\r\n"))
        reply = await client.reply()
        assert json.loads(reply.body) == {"n": n}
        assert reply.header("x-request-id") == "same"
    assert [r.json["n"] for r in engine.requests] == [1, 22, 333, 4444, 5]
    without_uid = {
        tuple((k, v) for k, v in r.headers if k not in (b"x-request-id", b"content-length")) for r in engine.requests
    }
    assert len(without_uid) == 1
    assert len({life.facts.request_uid for life in run.core.lives}) == 5
    assert {r.usage.prompt_tokens for r in run.records} == {None}


async def test_a_repetition_is_judged_like_the_first(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine), body_bytes=1000)
    client = await run.client()
    for _ in range(3):
        await client.send(post(chat()))
        assert (await client.reply()).status == 200
    await client.send(post(b"{"))
    assert (await client.reply()).status == 400
    await client.send(post(chat()))
    assert (await client.reply()).status == 200
    await client.send(post(chat(padding="x" * 2000)))
    assert (await client.reply()).status == 413


async def test_other_requests_in_between(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    """Every mixture of whole, split, pipelined and different requests on one connection."""

    async def script(wire: Wire) -> None:
        await wire.json(b'{"n":%d}' % wire.request.json["n"])

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    client = await run.client()
    n = 0
    for round_ in range(12):
        same = post(chat(n=n))
        other = post(chat(n=n + 1), extra=b"X-Round: %d\r\n" % round_)
        third = post(chat(n=n + 2))
        kind = round_ % 4
        if kind == 0:
            await client.send(same, other, third)
        elif kind == 1:
            await client.send(same + other + third)
        elif kind == 2:
            await client.send(same[:20], same[20:] + other[:-3], other[-3:] + third)
        else:
            await client.send(same + other[:50], other[50:], third)
        for _ in range(3):
            assert json.loads((await client.reply()).body) == {"n": n}
            n += 1
    assert [r.json["n"] for r in engine.requests] == list(range(n))


async def test_repeated_answers_come_out_the_same(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    bodies = [OK_JSON, b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}', b'{"a":1}' * 1, OK_JSON]

    async def script(wire: Wire) -> None:
        n = wire.request.json["n"]
        assert isinstance(n, int)
        await wire.json(bodies[n % 4], extra=b"x-engine: e\r\n")

    run = await start_gateway(to(await upstream(script)))
    client = await run.client()
    for n in range(12):
        await client.send(post(chat(n=n)))
        reply = await client.reply()
        assert reply.body == bodies[n % 4]
        assert reply.header("x-engine") == "e"
    assert [r.usage.completion_tokens for r in run.records] == [2, 1, None, 2] * 3


async def test_an_answer_that_changes_is_not_mistaken(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        n = wire.request.json["n"]
        if n == 3:
            await wire.json(b'{"error":"no"}', status=b"400 Bad Request")
        elif n == 5:
            await wire.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(OK_JSON)
            )
            await asyncio.sleep(0.01)
            await wire.send(OK_JSON[:40], OK_JSON[40:])
        elif n == 7:
            await wire.stream_head()
            await wire.chunk(token("", "stop") + DONE)
            await wire.last_chunk()
        else:
            await wire.json()

    run = await start_gateway(to(await upstream(script)))
    client = await run.client()
    for n in range(10):
        await client.send(post(chat(n=n)))
        reply = await client.reply()
        assert reply.status == (400 if n == 3 else 200)
        assert reply.body == {3: b'{"error":"no"}', 7: token("", "stop") + DONE}.get(n, OK_JSON)


async def test_the_short_way_for_chunks_changes_nothing(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    """Whole chunks, halves, several at once, oddly framed ones: the client gets the same bytes."""
    events = [token(f"word{i}") for i in range(60)]

    async def script(wire: Wire) -> None:
        def framed(data: bytes, size: bytes = b"%x") -> bytes:
            return (size % len(data)) + b"\r\n" + data + b"\r\n"

        await wire.stream_head()
        writes = []
        for i in range(0, 60, 6):
            a, b, c, d, e, f = events[i : i + 6]
            writes += [framed(a), framed(b, b"%X"), framed(c, b"000%x")]
            writes += [framed(d)[:30], framed(d)[30:] + framed(e), framed(f[:10]), framed(f[10:])]
        for one in writes:
            await wire.send(one)
            await asyncio.sleep(0.002)
        last = framed(token("", "stop"), b"%x;ext=1") + framed(DONE)
        await wire.send(last[:-1])
        await asyncio.sleep(0.002)
        await wire.send(last[-1:] + b"0\r\n\r\n")

    run = await start_gateway(to(await upstream(script)))
    reply = await run.ask(post(chat(stream=True)))
    assert reply.complete
    assert reply.body == b"".join(events) + token("", "stop") + DONE
