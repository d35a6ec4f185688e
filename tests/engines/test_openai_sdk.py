"""The official OpenAI SDK against a router, unchanged but for base URL and key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import openai
import pytest

from headrace.simulated_engine.server import EngineSettings, SimulatedEngine
from tests.engines.whole_path import KEY, whole_path

MODEL = "llama-3.1-8b"
SERVED_AS = "meta-llama/Llama-3.1-8B-Instruct"
EMBEDDER = "embedder"
HELLO = [{"role": "user", "content": "Where does the water go?"}]


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    server = SimulatedEngine(EngineSettings(models=(SERVED_AS, EMBEDDER), context_tokens=4096))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def base_url(engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[str]:
    models = {MODEL: (SERVED_AS, "chat"), EMBEDDER: (EMBEDDER, "embedding")}
    async with whole_path(tmp_path, kind="simulated", engine_url=engine.url, models=models) as router:
        yield f"{router}/v1"


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as made:
        yield made


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is waited for happens in the server's callbacks
            await asyncio.sleep(0.005)


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)  # type: ignore[arg-type]
    assert answer.model == MODEL
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 12


async def test_stream_with_and_without_usage(client: openai.AsyncOpenAI) -> None:
    for usage in (True, False):
        options = {"stream_options": {"include_usage": True}} if usage else {}
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=12,
            stream=True,
            **options,  # type: ignore[call-overload]
        )
        chunks = [chunk async for chunk in stream]
        assert all(chunk.model == MODEL for chunk in chunks)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [usage]


async def test_embeddings_and_completions(client: openai.AsyncOpenAI) -> None:
    embedded = await client.embeddings.create(model=EMBEDDER, input=["rain", "snow"], dimensions=16)
    assert [len(item.embedding) for item in embedded.data] == [16, 16]
    completed = await client.completions.create(model=MODEL, prompt="rain", max_tokens=4)
    assert completed.choices[0].text
    with pytest.raises(openai.BadRequestError, match="does not support this kind of request"):
        await client.embeddings.create(model=MODEL, input="rain")


async def test_models(client: openai.AsyncOpenAI) -> None:
    listed = [model.id async for model in client.models.list()]
    assert MODEL in listed
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("not/there")


async def test_error_types(client: openai.AsyncOpenAI, base_url: str) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nobody/knows", messages=HELLO)  # type: ignore[arg-type]
    assert isinstance(unknown.value.body, dict)
    assert set(unknown.value.body) >= {"message", "type", "param", "code"}
    assert unknown.value.request_id
    # The engine's own refusal, with its words.
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens"):
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "water " * 4000}], max_tokens=10
        )
    async with openai.AsyncOpenAI(base_url=base_url, api_key="hr-not-a-key-of-ours") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]


async def test_a_dead_engine_is_a_server_error_that_may_be_retried(
    client: openai.AsyncOpenAI, engine: SimulatedEngine
) -> None:
    engine.crash()
    once = client.with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError) as failed:
        await once.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]
    assert failed.value.status_code == 503
    assert failed.value.response.headers.get("retry-after-ms")
    await engine.restore()
    # The SDK's own retries carry it over the time until the agent sees the engine again.
    patient = client.with_options(max_retries=10)
    answer = await patient.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)  # type: ignore[arg-type]
    assert answer.choices


async def test_case_s06_leaving_early_frees_the_engine(client: openai.AsyncOpenAI, engine: SimulatedEngine) -> None:
    engine.slow(0.05)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        stream=True,
        max_tokens=2000,
        extra_body={"ignore_eos": True},  # type: ignore[arg-type]
    )
    async for _ in stream:
        break
    assert engine.scheduler.running == 1
    await stream.close()
    await until(lambda: engine.scheduler.running == 0)
    # Also while no byte has come yet, as in a long prefill.
    engine.hang()
    task = asyncio.ensure_future(
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)  # type: ignore[arg-type]
    )
    await until(lambda: engine.scheduler.running + engine.scheduler.waiting == 1)
    task.cancel()
    await until(lambda: engine.scheduler.running + engine.scheduler.waiting == 0)
    assert engine.scheduler.pool.used == 0
