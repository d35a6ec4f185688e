"""JSON that passes through: what may be changed of it, and what must not be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.request import Task
from regional.gateway.openai import BadBody, read_body, rename_model
from regional.request.steps import Outcome
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import OK_JSON, Wire, chat, post, to


@pytest.mark.parametrize(
    "served_as", ["org/模型-8B", "x", "a-name-that-is-much-longer-than-the-alias-it-stands-for" * 3]
)
async def test_case_b01_one_right_length_after_the_model_is_renamed(
    start_gateway: StartGateway, upstream: StartUpstream, served_as: str
) -> None:
    async def script(wire: Wire) -> None:
        await wire.json(OK_JSON.replace(b'"model":"m"', b'"model": %b' % json.dumps(served_as).encode()))

    engine = await upstream(script)
    run = await start_gateway(to(engine, served_as=served_as))
    body = (
        '{ "messages":[{"role":"user","content":"😀 \\"model\\":\\"m\\" ünd"}],"metadata":{"model":"m"},\n "model" : "m" ,"n":1}'
    ).encode()
    reply = await run.ask(post(body))
    got = engine.requests[0]
    assert got.header(b"content-length") == [str(len(got.body)).encode()]
    assert got.json["model"] == served_as
    before, _, after = body.rpartition(b'"m"')
    assert got.body.startswith(before)
    assert got.body.endswith(after)
    assert json.loads(reply.body)["model"] == "m"
    assert int(reply.header("content-length") or 0) == len(reply.body)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(
    before=st.dictionaries(st.text(), _JSON, max_size=4),
    after=st.dictionaries(st.text(), _JSON, max_size=4),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_case_b01_only_the_models_value_changes(
    before: dict[str, object], after: dict[str, object], indent: int | None, ascii_only: bool
) -> None:
    fields = {**before, "model": "m", **{k: v for k, v in after.items() if k not in before}}
    fields["model"] = "m"
    fields.pop("stream", None)
    raw = json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    renamed = rename_model(raw, "other name")
    expected = json.dumps({**fields, "model": "other name"}, indent=indent, ensure_ascii=ascii_only)
    assert renamed == expected.encode("utf-8", "surrogatepass")


def test_a_field_given_twice_is_refused_where_it_would_have_to_be_changed() -> None:
    for raw in (
        b'{"model":"m","model":"m"}',
        b'{"model":"a","x":1,"model":"m"}',
        b'{"x":1,"x":1,"model":"m"}',
        b'{"mod\\u0065l":"m","model":"m"}',
    ):
        with pytest.raises(BadBody):
            read_body(raw, Task.CHAT).rendered("other")


async def test_a_field_given_twice_answers_400(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine, served_as="other"))
    reply = await run.ask(post(b'{"model":"a","messages":[],"model":"m"}'))
    assert (reply.status, reply.error["code"]) == (400, "invalid_json")
    assert engine.requests == []


async def test_case_b06_every_shape_of_content_passes_unchanged(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    odd: list[dict[str, object]] = [
        chat(messages=messages),
        chat(messages=None),
        chat(messages="text"),
        chat(max_tokens="many", stream="yes", n=1.5, stream_options=7),
        {"model": "m"},
        {"model": "m", "prompt": [1, 2, 3]},
        {"model": "m", "input": [["a"], None]},
    ]
    for body in odd:
        assert (await run.ask(post(body))).status == 200
        assert engine.requests[-1].json == body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"not json", None),
        (b"[]", None),
        (b'"text"', None),
        (b"{}", "model"),
        (b'{"model":null}', "model"),
        (b'{"model":7}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"%b"}' % (b"x" * 300), "model"),
        (b'{"model":"\xff\xfe"}', None),
        (b'{"model":NaN}', None),
        (b'{"model":"m",}', None),
        (b'{"model":"m"} trailing', None),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
        (b'{"model":"m","messages":' + b"[" * 100_000, None),
    ],
)
async def test_rel_s2_bodies_that_cannot_be_routed(
    start_gateway: StartGateway, upstream: StartUpstream, body: bytes, param: str | None
) -> None:
    engine = await upstream()
    run = await start_gateway(to(engine))
    client = await run.client()
    await client.send(post(body))
    reply = await client.reply()
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_json", param)
    assert engine.requests == []
    await client.send(post(chat()))  # the connection goes on
    assert (await client.reply()).status == 200


async def test_case_b10_answers_that_are_not_json(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def text_error(wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 503 Nope\r\ncontent-type: text/plain\r\ncontent-length: 22\r\n\r\nupstream connect error"
        )

    async def html(wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>")

    async def not_json(wire: Wire) -> None:
        await wire.json(b"<html></html>")

    async def empty(wire: Wire) -> None:
        await wire.json(b"")

    async def not_found(wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 14\r\n\r\n10.0.0.5 nginx"
        )

    for script, outcome, status in (
        (text_error, Outcome.OVERLOADED, 429),
        (html, Outcome.BAD_RESPONSE, 502),
        (not_json, Outcome.BAD_RESPONSE, 502),
        (empty, Outcome.BAD_RESPONSE, 502),
    ):
        run = await start_gateway(to(await upstream(script)))
        reply = await run.ask(post(chat()))
        assert reply.status == status
        assert reply.error["message"]
        assert b"html" not in reply.body
        assert run.core.life.results[0].outcome is outcome
    run = await start_gateway(to(await upstream(not_found)))
    reply = await run.ask(post(chat()))
    assert reply.status == 404
    assert b"10.0.0.5" not in reply.body
    assert reply.error["type"] == "invalid_request_error"
    assert reply.header("content-type") == "application/json"


async def test_case_b10_garbage_from_one_engine_is_had_from_another(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def cut_short(wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n" + OK_JSON)
        wire.close()

    run = await start_gateway(to(await upstream(cut_short)), to(await upstream(), attempt=2))
    reply = await run.ask(post(chat()))
    assert (reply.status, reply.body) == (200, OK_JSON)
    assert run.core.life.results[0].outcome is Outcome.RESET


async def test_case_v01_addresses_in_a_body_steer_nothing(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine, bait = await upstream(), await upstream()
    run = await start_gateway(to(engine))
    body = chat(
        api_base=bait.url,
        base_url=bait.url,
        metadata={"base_url": bait.url, "api_key": "x"},
        extra_headers={"Host": "x"},
    )
    assert (await run.ask(post(body))).status == 200
    assert engine.requests[0].json == body
    assert bait.connections == 0


async def test_large_answers_pass_as_they_come(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    big = b'{"data":[' + b"0," * 4_000_000 + b'0],"usage":{"prompt_tokens":3}}'

    async def script(wire: Wire) -> None:
        await wire.json(big)

    async def chunked(wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        for i in range(0, len(big), 500_000):
            await wire.chunk(big[i : i + 500_000])
        await wire.last_chunk()

    for answer in (script, chunked):
        run = await start_gateway(to(await upstream(answer)))
        reply = await run.ask(post({"model": "m", "input": "a"}, path="/v1/embeddings"))
        assert reply.body == big
        assert reply.complete


async def test_a_large_answer_that_breaks_off_is_not_ended(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    async def script(wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9000000\r\n\r\n" + b"0" * 3_000_000
        )
        wire.close()

    second = await upstream()
    run = await start_gateway(to(await upstream(script)), to(second, attempt=2))
    reply = await run.ask(post({"model": "m", "input": "a"}, path="/v1/embeddings"))
    assert not reply.complete
    assert run.records[0].outcome is Outcome.STREAM_BROKEN
    assert second.requests == []


def test_token_estimates() -> None:
    text = "a" * 4000
    plain = read_body(json.dumps(chat(messages=[{"role": "user", "content": text}])).encode(), Task.CHAT)
    assert 1000 <= plain.input_tokens <= 1030
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 300_000, "format": "wav"}}
    mixed = chat(messages=[{"role": "user", "content": [image, sound, {"type": "text", "text": text}]}])
    assert 1000 <= read_body(json.dumps(mixed).encode(), Task.CHAT).input_tokens <= 2000
    limits = read_body(b'{"model":"m","max_tokens":5,"max_completion_tokens":9}', Task.CHAT)
    assert limits.max_output_tokens == 9
    assert read_body(b'{"model":"m","max_tokens":-1}', Task.CHAT).max_output_tokens is None
