"""The official OpenAI SDK, unchanged but for base URL and key, against a small engine."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from fleet.intent import Model
from regional.request.steps import Outcome, Reject, RejectReason
from tests.gateway.conftest import Running, StartGateway, StartUpstream
from tests.gateway.parts import DONE, KEY, Wire, intent_with, to, token, until, usage_event

MESSAGES = [{"role": "user", "content": "hello"}]


async def engine(wire: Wire) -> None:
    """As much of an engine as the SDK needs."""
    body = wire.request.json
    if wire.request.request_line.split()[1] == b"/v1/embeddings":
        await wire.json(
            json.dumps(
                {
                    "object": "list",
                    "model": "m",
                    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
                    "usage": {"prompt_tokens": 2, "total_tokens": 2},
                }
            ).encode()
        )
    elif body.get("stream"):
        await wire.stream_head()
        for text in ("one", " two"):
            await wire.chunk(token(text))
        await wire.chunk(token("", "stop"))
        options = body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            await wire.chunk(usage_event(3, 2))
        await wire.chunk(DONE)
        await wire.last_chunk()
    elif body.get("max_tokens") == 999_999:
        await wire.json(
            b'{"error":{"message":"too long","type":"BadRequestError","param":"max_tokens","code":"x"}}',
            status=b"400 Bad Request",
        )
    elif wire.request.request_line.split()[1] == b"/v1/completions":
        await wire.json(
            json.dumps(
                {
                    "id": "c",
                    "object": "text_completion",
                    "created": 1,
                    "model": "m",
                    "choices": [{"index": 0, "text": "done", "finish_reason": "stop", "logprobs": None}],
                }
            ).encode()
        )
    else:
        await wire.json()


def sdk(run: Running, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{run.port}/v1", api_key=key, max_retries=0, timeout=10)


@pytest.fixture
async def run(start_gateway: StartGateway, upstream: StartUpstream) -> Running:
    models = {"m": Model("m1", "m", "chat", aliases=("org/m",))}
    return await start_gateway(to(await upstream(engine)), intent=intent_with(models=models))


async def test_chat(run: Running) -> None:
    async with sdk(run) as client:
        answer = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        parsed = answer.parse()
        assert parsed.choices[0].message.content == "hi"
        assert parsed.usage is not None
        assert parsed.usage.completion_tokens == 2
        assert answer.headers["x-request-id"] == run.core.life.facts.request_uid


async def test_streams_with_and_without_usage(run: Running) -> None:
    async with sdk(run) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two"
        assert all(c.usage is None for c in chunks)
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens == 3
    assert [r.usage.completion_tokens for r in run.records] == [2, 2]


async def test_completions_and_embeddings(run: Running) -> None:
    async with sdk(run) as client:
        assert (await client.completions.create(model="m", prompt="a")).choices[0].text == "done"
        found = await client.embeddings.create(model="m", input="a", encoding_format="float")
        assert found.data[0].embedding == [0.5, -1.0]


async def test_models(run: Running) -> None:
    async with sdk(run) as client:
        assert [m.id async for m in await client.models.list()] == ["m", "org/m"]
        assert (await client.models.retrieve("org/m")).id == "org/m"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("nonsense")
        assert missing.value.code == "model_not_found"


async def test_error_types(run: Running, start_gateway: StartGateway) -> None:
    async with sdk(run, "sk-wrong-key-1") as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.chat.completions.create(model="m", messages=MESSAGES)
        assert refused.value.code == "invalid_api_key"
        assert refused.value.request_id
    async with sdk(run) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=999_999)
        assert (bad.value.type, bad.value.param) == ("BadRequestError", "max_tokens")
    for reason, kind in (
        (RejectReason.MODEL_NOT_FOUND, openai.NotFoundError),
        (RejectReason.MODEL_NOT_ALLOWED, openai.PermissionDeniedError),
        (RejectReason.OVERLOADED, openai.RateLimitError),
        (RejectReason.NO_ENDPOINT, openai.InternalServerError),
    ):
        rejecting = await start_gateway(Reject(reason, "Because."))
        async with sdk(rejecting) as client:
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(model="m", messages=MESSAGES)
            assert caught.value.body["message"] == "Because."


async def test_a_broken_stream_raises(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def breaking(wire: Wire) -> None:
        await wire.stream_head()
        await wire.chunk(token("half"))
        await asyncio.sleep(0.02)
        wire.reset()

    run = await start_gateway(to(await upstream(breaking)))
    async with sdk(run) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        assert (await anext(stream)).choices[0].delta.content == "half"
        with pytest.raises(openai.APIError):
            await anext(stream)


async def test_abort(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    async def endless(wire: Wire) -> None:
        await wire.stream_head()
        while True:
            await wire.chunk(token("a"))
            await asyncio.sleep(0.01)

    upstream_engine = await upstream(endless)
    run = await start_gateway(to(upstream_engine))
    async with sdk(run) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await asyncio.wait_for(upstream_engine.all_closed.wait(), 2)
    await until(lambda: run.records)
    assert run.records[0].outcome is Outcome.ABORTED
