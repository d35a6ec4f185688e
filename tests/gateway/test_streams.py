"""Server-sent events through the relay: framing, usage, ends good and bad."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional.gateway.sse import CARRY_BYTES, EventStream
from regional.request.steps import Outcome
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import DONE, Wire, chat, event, post, to, token, until, usage_event

ASKS_USAGE = {"include_usage": True}


async def collect(run, body: dict[str, object]) -> bytes:
    reply = await run.ask(post(body))
    assert reply.status == 200
    return reply.body


async def test_case_s01_chunks_without_choices(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    events = [event(choices=[]), token("hi", "stop"), usage_event(5, 1), DONE]

    async def script(wire: Wire) -> None:
        await wire.stream_head()
        for one in events:
            await wire.chunk(one)
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)))
    assert await collect(run, chat(stream=True, stream_options=ASKS_USAGE)) == b"".join(events)
    usage = run.records[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 1)


_TAIL = usage_event(7, 3)
_IN_WORD = _TAIL.index(b"completion_tokens") + 6
_SPLITS = {
    "inside a word": [token("a", "stop"), _TAIL[:_IN_WORD], _TAIL[_IN_WORD:], DONE],
    "between the newlines": [token("a", "stop"), _TAIL[:-1], _TAIL[-1:], DONE],
    "three events in one, with CRLF": [(token("a", "stop") + _TAIL + DONE).replace(b"\n", b"\r\n")],
    "CRLF cut inside its end": [
        token("a", "stop").replace(b"\n", b"\r\n"),
        _TAIL.replace(b"\n", b"\r\n")[:-1],
        b"\n" + DONE.replace(b"\n", b"\r\n"),
    ],
    "CR alone": [(token("a", "stop") + _TAIL + DONE).replace(b"\n", b"\r")],
}


@pytest.mark.parametrize("name", _SPLITS)
@pytest.mark.parametrize("framing", ["chunks", "raw"])
async def test_case_s03_events_that_span_reads(
    start_gateway: StartGateway, upstream: StartUpstream, name: str, framing: str
) -> None:
    pieces = _SPLITS[name]

    async def script(wire: Wire) -> None:
        await wire.stream_head()
        whole = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces)
        if framing == "chunks":
            for piece in pieces:
                await wire.chunk(piece)
                await asyncio.sleep(0.01)
        else:  # the cuts fall anywhere in the chunked framing too
            await wire.send(*[whole[i : i + 37] for i in range(0, len(whole), 37)])
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)))
    assert await collect(run, chat(stream=True, stream_options=ASKS_USAGE)) == b"".join(pieces)
    usage = run.records[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 3)


_WIRE = [
    event(choices=[]),
    token("a"),
    b": ping\n\n",
    token('say "usage": {"x"}'),
    usage_event(4, 9),
    token("", "stop"),
    DONE,
]


@settings(max_examples=100, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(b"".join(_WIRE))), max_size=12),
    end=st.sampled_from([b"\n", b"\r\n"]),
    strip=st.booleans(),
)
def test_case_s03_any_cut_gives_the_same(cuts: list[int], end: bytes, strip: bool) -> None:
    whole = b"".join(_WIRE).replace(b"\n", end)
    expected = whole.replace(usage_event(4, 9).replace(b"\n", end), b"") if strip else whole
    stream = EventStream(strip_usage=strip)
    bounds = [0, *sorted(min(c, len(whole)) for c in cuts), len(whole)]
    out = b"".join(stream.feed(whole[a:b]) for a, b in itertools.pairwise(bounds)) + stream.end()
    assert out == expected
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (4, 9)
    assert stream.finished()


def test_case_s03_the_carry_over_is_capped() -> None:
    stream = EventStream(strip_usage=True)
    giant = token("x" * (3 * CARRY_BYTES))
    pieces = [giant[i : i + 50_000] for i in range(0, len(giant), 50_000)]
    out = b""
    for piece in pieces:
        out += stream.feed(piece)
        assert len(stream.carry) <= CARRY_BYTES
    out += stream.feed(token("y", "stop") + usage_event(1, 2)) + stream.end()
    assert out == giant + token("y", "stop")
    assert stream.usage.completion_tokens == 2


async def test_usage_is_asked_for_and_hidden_from_a_client_that_did_not(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        for one in (token("a"), token("", "stop"), usage_event(5, 2), DONE):
            await wire.chunk(one)
        await wire.last_chunk()

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    for options in (
        {},
        {"stream_options": {"include_usage": False}},
        {"stream_options": None},
        {"stream_options": {"x": 1}},
    ):
        assert await collect(run, chat(stream=True, **options)) == token("a") + token("", "stop") + DONE
        got = engine.requests[-1].json
        asked = got.pop("stream_options")
        assert isinstance(asked, dict)
        assert asked.pop("include_usage") is True
        assert asked == {k: v for k, v in (options.get("stream_options") or {}).items() if k != "include_usage"}
        assert got == chat(stream=True)
    assert {r.usage.completion_tokens for r in run.records} == {2}


@pytest.mark.parametrize("status", [b"400 Bad Request", b"422 Unprocessable Entity"])
async def test_case_s04_an_engines_refusal_of_a_stream_is_not_an_empty_200(
    start_gateway: StartGateway, upstream: StartUpstream, status: bytes
) -> None:
    refusal = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'

    async def script(wire: Wire) -> None:
        await wire.json(refusal, status=status)

    run = await start_gateway(to(await upstream(script)))
    reply = await run.ask(post(chat(stream=True, max_tokens=999_999)))
    assert reply.status == int(status[:3])
    assert reply.header("content-type") == "application/json"
    assert reply.body == refusal
    assert run.records[0].outcome is Outcome.CLIENT_ERROR


async def test_case_s04_busy_and_refused_engines_move_the_stream_on(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def busy(wire: Wire) -> None:
        await wire.json(b"{}", status=b"503 Service Unavailable", extra=b"retry-after: 2\r\n")

    async def good(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("", "stop") + DONE)
        await wire.last_chunk()

    one = await upstream(busy)
    gone = await upstream()
    await gone.stop()
    run = await start_gateway(to(one), to(gone, attempt=2), to(await upstream(good), attempt=3))
    assert (await collect(run, chat(stream=True))) == token("", "stop") + DONE
    results = run.core.life.results
    assert [r.outcome for r in results] == [Outcome.OVERLOADED, Outcome.CONNECT_FAILED]
    assert results[0].retry_after_seconds == 2.0

    only_busy = await start_gateway(to(one))
    reply = await only_busy.ask(post(chat(stream=True)))
    assert reply.status == 429
    assert reply.error["code"] == "overloaded"
    assert float(reply.header("retry-after-ms") or 0) >= 2000
    only_gone = await start_gateway(to(gone))
    assert (await only_gone.ask(post(chat(stream=True)))).status == 502


@pytest.mark.parametrize("said", ["head", "nothing", "token"])
async def test_case_s06_a_client_that_leaves_frees_the_engine_at_once(
    start_gateway: StartGateway, upstream: StartUpstream, said: str
) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        if said != "nothing":
            await wire.stream_head()
        if said == "token":
            await wire.chunk(token("a"))
        begun.set()
        await wire.closed_by_peer()
        left.set()

    run = await start_gateway(to(await upstream(script)))
    client = await run.client()
    await client.send(post(chat(stream=True)))
    await begun.wait()
    started = time.monotonic()
    client.close()
    await asyncio.wait_for(left.wait(), 2)
    assert time.monotonic() - started < 2
    await until(lambda: run.records)
    assert run.records[0].outcome is Outcome.ABORTED
    assert not run.gateway.exchanges


async def test_rel_r21_many_clients_that_leave_mid_stream(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        await wire.closed_by_peer()

    engine = await upstream(script)
    run = await start_gateway(to(engine))

    async def leave(hard: bool) -> None:
        client = await run.client()
        await client.send(post(chat(stream=True)))
        await client.head()
        await client.chunk()
        client.reset() if hard else client.close()

    for _ in range(4):
        await asyncio.gather(*(leave(i % 2 == 0) for i in range(50)))
    await asyncio.wait_for(engine.all_closed.wait(), 5)
    assert len(run.records) == 200
    assert {r.outcome for r in run.records} == {Outcome.ABORTED}
    assert not run.gateway.exchanges
    assert run.gateway.held_bytes == 0


@pytest.mark.parametrize("close", ["in order", "abruptly"])
async def test_case_s08_a_finished_stream_without_done_is_a_success(
    start_gateway: StartGateway, upstream: StartUpstream, close: str
) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("all"))
        await wire.chunk(token("", "stop"))
        await wire.chunk(usage_event(5, 1))
        if close == "in order":
            await wire.last_chunk()
        else:
            wire.close()

    run = await start_gateway(to(await upstream(script)))
    reply = await run.ask(post(chat(stream=True, stream_options=ASKS_USAGE)))
    assert reply.complete
    assert reply.body == token("all") + token("", "stop") + usage_event(5, 1)
    assert run.records[0].outcome is Outcome.OK
    assert run.records[0].usage.prompt_tokens == 5


async def test_case_s08_a_stream_that_ends_with_its_connection(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", token("a"), token("", "stop"), DONE
        )
        wire.close()

    run = await start_gateway(to(await upstream(script)))
    reply = await run.ask(post(chat(stream=True)))
    assert reply.complete
    assert reply.body == token("a") + token("", "stop") + DONE


async def test_a_polite_truncation_is_not_a_success(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("half"))
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)))
    reply = await run.ask(post(chat(stream=True)))
    assert reply.body.startswith(token("half"))
    assert json.loads(reply.body.removeprefix(token("half") + b"data: "))["error"]["code"] == "upstream_reset"
    assert not reply.complete
    assert run.records[0].outcome is Outcome.STREAM_BROKEN


@pytest.mark.parametrize("how", ["reset", "close", "half an event", "garbage"])
async def test_case_s09_nothing_is_retried_after_the_first_byte(
    start_gateway: StartGateway, upstream: StartUpstream, how: str
) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("Hello wor"))
        if how == "half an event":
            await wire.chunk(token("ld")[:20])
        if how == "garbage":
            await wire.send(b"zz\r\nnot a chunk")
        await asyncio.sleep(0.02)
        wire.reset() if how == "reset" else wire.close()

    second = await upstream()
    run = await start_gateway(to(await upstream(script)), to(second, attempt=2))
    reply = await run.ask(post(chat(stream=True)))
    assert second.requests == []
    assert reply.body.startswith(token("Hello wor"))
    rest = reply.body.removeprefix(token("Hello wor"))
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"\n\n")
    assert json.loads(rest[6:])["error"]["code"] == "upstream_reset"
    assert b"[DONE]" not in reply.body
    assert not reply.complete
    assert run.records[0].outcome is Outcome.STREAM_BROKEN


async def test_case_s12_chunks_are_not_held_back(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    gate = asyncio.Semaphore(0)
    pieces = [token(f"t{i}") for i in range(6)]

    async def script(wire: Wire) -> None:
        await wire.stream_head(b"cache-control: public\r\n")
        for piece in pieces:
            await gate.acquire()
            await wire.chunk(piece)
        await wire.chunk(token("", "stop") + DONE)
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)))
    client = await run.client()
    await client.send(post(chat(stream=True), extra=b"Accept-Encoding: gzip\r\n"))
    gate.release()
    status, headers = await asyncio.wait_for(client.head(), 2)
    assert status == 200
    found = dict(headers)
    assert "content-encoding" not in found
    assert found["x-accel-buffering"] == "no"
    assert found["cache-control"] == "no-cache, no-transform"
    for i, piece in enumerate(pieces):
        # The next one is released only when this one has arrived: held back, the test would hang.
        assert await asyncio.wait_for(client.chunk(), 2) == piece
        if i + 1 < len(pieces):
            gate.release()
    assert await client.chunk() == token("", "stop") + DONE


@pytest.mark.parametrize("spelling", ['"model":"served/name"', '"model": "served/name"'])
async def test_the_models_name_is_put_back_in_every_event(
    start_gateway: StartGateway, upstream: StartUpstream, spelling: str
) -> None:
    def named(text: str) -> bytes:
        return b'data: {"choices":[{"delta":{"content":%b}}],%b,"id":"x"}\n\n' % (
            json.dumps(text).encode(),
            spelling.encode(),
        )

    pieces = [named("a"), named('the "model":"served/name" itself'), named("c"), token("", "stop", "served/name"), DONE]

    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(pieces[0][:30])
        await wire.chunk(pieces[0][30:] + pieces[1])
        for piece in pieces[2:]:
            await wire.chunk(piece)
        await wire.last_chunk()

    engine = await upstream(script)
    run = await start_gateway(to(engine, served_as="served/name"))
    body = await collect(run, chat(stream=True))
    asked = spelling.replace("served/name", "m").encode()
    expected = [p.replace(spelling.encode(), asked) for p in pieces[:3]]
    assert body == b"".join(expected) + token("", "stop", "m") + DONE
    assert engine.requests[0].json["model"] == "served/name"


async def test_an_engines_own_error_event_passes(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    failing = b'data: {"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}\n\n'

    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        await wire.chunk(failing)
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)))
    assert await collect(run, chat(stream=True)) == token("a") + failing


async def test_silence_inside_a_stream_ends_it(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("a"))
        await wire.closed_by_peer()

    run = await start_gateway(to(await upstream(script)), idle_seconds=0.2)
    reply = await run.ask(post(chat(stream=True)))
    assert b'"upstream_timeout"' in reply.body
    assert not reply.complete
    assert run.records[0].outcome is Outcome.TIMEOUT_IDLE


async def test_a_stream_that_is_busy_is_not_idle(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.stream_head()
        for _ in range(12):
            await wire.chunk(token("a"))
            await asyncio.sleep(0.1)
        await wire.chunk(token("", "stop") + DONE)
        await wire.last_chunk()

    run = await start_gateway(to(await upstream(script)), idle_seconds=0.5)
    reply = await run.ask(post(chat(stream=True)))
    assert reply.complete
    assert run.records[0].outcome is Outcome.OK
    assert "progress" in run.core.life.calls
