"""Plain requests and streams, end to end over real sockets."""

from __future__ import annotations

import gc

from regional.gateway.answer import Answer
from regional.gateway.connection import ClientConnection
from regional.gateway.exchange import Exchange
from regional.gateway.request import ClientRequest
from regional.gateway.upstream import UpstreamConnection
from regional.request.steps import Outcome
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import DONE, KEY, OK_JSON, Wire, chat, post, to, token, until, usage_event


async def test_a_plain_request_is_relayed_unchanged(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine, key="engine-key"))
    body = b'{ "messages" : [], "model":"m", "unknown": {"a": [1, 2.50]} }'
    reply = await run.ask(post(body, extra=b"X-Note: kept\r\ntraceparent: 00-1-2-01\r\n"))

    assert reply.status == 200
    assert reply.body == OK_JSON
    got = engine.requests[0]
    assert got.request_line == b"POST /v1/chat/completions HTTP/1.1"
    assert got.body == body
    assert got.header(b"authorization") == [b"Bearer engine-key"]
    assert got.header(b"x-note") == [b"kept"]
    assert got.header(b"traceparent") == [b"00-1-2-01"]
    assert got.header(b"content-length") == [str(len(body)).encode()]
    assert got.header(b"host") == [engine.url.removeprefix("http://").encode()]
    assert KEY.encode() not in got.head
    assert reply.header("x-headrace-endpoint") == "engine-1"
    assert reply.header("x-headrace-gpu") == "GPU-1"
    assert reply.header("x-headrace-attempts") == "1"
    assert run.core.life.calls == ["headers", "first_byte", "end"]
    record = run.records[0]
    assert record.outcome is Outcome.OK
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (5, 2)


async def test_a_stream_is_relayed_event_by_event(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    events = [token("a"), token("b"), token("", "stop"), usage_event(), DONE]

    async def script(wire: Wire) -> None:
        await wire.stream_head()
        for one in events:
            await wire.chunk(one)
        await wire.last_chunk()

    engine = await upstream(script)
    run = await start_gateway(to(engine))
    reply = await run.ask(post(chat(stream=True, stream_options={"include_usage": True})))
    assert reply.status == 200
    assert reply.complete
    assert reply.body == b"".join(events)
    assert run.records[0].usage.completion_tokens == 1


async def test_nothing_of_a_request_waits_for_the_garbage_collector(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        match wire.request.json.get("n"):
            case 1:
                wire.reset()
            case 2:
                await wire.json(b"{}", status=b"500 Oops")
            case 3:
                await wire.stream_head()
                await wire.chunk(token("a"))
                wire.reset()
            case 4:
                await wire.closed_by_peer()
            case _:
                await wire.json()

    kinds = (Exchange, Answer, ClientRequest, ClientConnection, UpstreamConnection)

    def alive() -> list[str]:
        return [type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds)]

    gc.collect()
    before = len(alive())
    gc.disable()
    try:
        run = await start_gateway(to(await upstream(script), first=0.2))
        for n in range(6):
            await run.ask(post(chat(n=n)))
        leaver = await run.client()
        await leaver.send(post(chat(n=4)))
        for client in run.clients:
            client.close()
        await until(lambda: not run.gateway.exchanges and not run.gateway._connections)
        run.core.lives.clear()
        run.core.revokes.clear()
        run.gateway.upstreams.close()
        await until(lambda: len(alive()) <= before)
    finally:
        gc.enable()
