"""The simulated engine over real HTTP: vLLM's API, names and error shapes, aborts and faults."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents.engines.simulated import Simulated
from headrace.simulated_engine.server import EngineSettings, SimulatedEngine

MODEL = "llama-3.1-8b"


@asynccontextmanager
async def engine(**options: object) -> AsyncIterator[SimulatedEngine]:
    server = SimulatedEngine(EngineSettings(models=(MODEL,), **options))  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def client_of(server: SimulatedEngine, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=10)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is waited for happens in the server's callbacks
            await asyncio.sleep(0.005)


async def metrics_of(server: SimulatedEngine) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as answer:
        text = await answer.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


async def test_chat_plain_and_streamed_say_the_same() -> None:
    async with engine() as server, client_of(server) as client:
        ask = {"model": MODEL, "messages": [{"role": "user", "content": "Where does the water go?"}], "max_tokens": 12}
        plain = await client.chat.completions.create(**ask)  # type: ignore[call-overload]
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            **ask, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == plain.choices[0].message.content
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens <= 12
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == plain.choices[0].finish_reason
        assert await metrics_of(server)


async def test_completions_with_several_prompts_choices_and_stop() -> None:
    async with engine() as server, client_of(server) as client:
        many = await client.completions.create(model=MODEL, prompt=["a b c", "d e f"], n=2, max_tokens=5)
        assert [c.index for c in many.choices] == [0, 1, 2, 3]
        ids = await client.completions.create(model=MODEL, prompt=[1, 2, 3, 4, 5], max_tokens=3)
        assert ids.usage is not None
        assert ids.usage.prompt_tokens == 5
        free = await client.completions.create(
            model=MODEL, prompt="the same", max_tokens=40, extra_body={"ignore_eos": True}
        )
        assert free.choices[0].finish_reason == "length"
        word = free.choices[0].text.split()[3]
        stopped = await client.completions.create(
            model=MODEL, prompt="the same", max_tokens=40, stop=word, extra_body={"ignore_eos": True}
        )
        assert stopped.choices[0].finish_reason == "stop"
        assert word not in stopped.choices[0].text
        assert free.choices[0].text.startswith(stopped.choices[0].text)


async def test_the_prefix_cache_shows_in_usage_and_metrics() -> None:
    async with engine() as server, client_of(server) as client:
        text = "the quick brown fox jumps over the lazy dog. " * 40
        cached = []
        for _ in range(2):
            answer = await client.completions.create(model=MODEL, prompt=text, max_tokens=2)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        assert cached[0] == 0
        assert cached[1] >= 400
        page = await metrics_of(server)
        assert page["vllm:prefix_cache_hits_total"] == cached[1]
        assert page["vllm:prefix_cache_queries_total"] == page["vllm:prompt_tokens_total"]


async def test_embeddings_in_both_encodings() -> None:
    async with engine() as server, client_of(server) as client:
        # The SDK asks for base64 unless told otherwise.
        short = await client.embeddings.create(model=MODEL, input=["a", "b"], dimensions=8)
        plain = await client.embeddings.create(model=MODEL, input="a", dimensions=8, encoding_format="float")
        assert len(short.data) == 2
        assert short.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
        assert sum(x * x for x in plain.data[0].embedding) == pytest.approx(1.0)
        assert plain.usage.prompt_tokens == 1


async def test_metric_names_are_those_of_vllm_and_move() -> None:
    async with engine(max_sequences=2) as server, client_of(server) as client:
        running = [
            asyncio.ensure_future(
                client.completions.create(model=MODEL, prompt=f"p{i}", max_tokens=4000, extra_body={"ignore_eos": True})
            )
            for i in range(5)
        ]
        await until(lambda: server.scheduler.waiting == 3)
        page = await metrics_of(server)
        assert page["vllm:num_requests_running"] == 2
        assert page["vllm:num_requests_waiting"] == 3
        assert page["vllm:num_requests_waiting_by_reason"] == 3
        assert 0 < page["vllm:kv_cache_usage_perc"] < 1
        assert page["vllm:generation_tokens_total"] >= 0
        assert page["vllm:cache_config_info"] == 1
        assert page["process_start_time_seconds"] > 1_600_000_000
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        # Clients that go away give back slot and memory, also those that still queue.
        await until(lambda: server.scheduler.running == 0 and server.scheduler.waiting == 0)
        assert server.scheduler.pool.used == 0
        assert (await metrics_of(server))["vllm:request_success_total"] == 5


async def test_the_agent_reads_the_page_as_it_reads_vllms() -> None:
    async with engine(max_sequences=2, kv_tokens=16_000) as server, client_of(server) as client:
        await client.completions.create(
            model=MODEL, prompt="water " * 50, max_tokens=7, extra_body={"ignore_eos": True}
        )
        server.hang()
        waiting = [
            asyncio.ensure_future(client.completions.create(model=MODEL, prompt=f"p{i}", max_tokens=100))
            for i in range(3)
        ]
        await until(lambda: server.scheduler.waiting == 3)
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as answer:
            text = await answer.text()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    reader = Simulated()
    scrape = reader.read(reader.scanner.scan(text))
    assert (scrape.load.running, scrape.load.waiting) == (0, 3)
    assert scrape.load.kv_usage == 0.0
    assert scrape.load.generated_tokens_total == 7
    assert scrape.load.prompt_tokens_total == 75
    assert scrape.load.cached_tokens_total == 0
    assert scrape.load.preemptions_total == 0
    assert scrape.shape.kv_tokens == 16_000
    assert scrape.asleep is False


async def test_errors_have_the_shapes_of_vllm() -> None:
    async with engine(context_tokens=100, api_key="engine-secret") as server:
        async with client_of(server, "engine-secret") as client:
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
            assert unknown.value.body == {
                "message": "The model `nope` does not exist.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            }
            with pytest.raises(openai.BadRequestError, match="maximum context length is 100 tokens"):
                await client.completions.create(model=MODEL, prompt="word " * 300, max_tokens=10)
            with pytest.raises(openai.BadRequestError, match="messages must be"):
                await client.chat.completions.create(model=MODEL, messages=[])
            with pytest.raises(openai.BadRequestError, match="n must be"):
                await client.completions.create(model=MODEL, prompt="x", n=0)
            models = await client.models.list()
            assert [m.id for m in models.data] == [MODEL]
        async with client_of(server, "wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with aiohttp.ClientSession() as session:
            for path, method, status in (("/nope", "GET", 404), ("/health", "POST", 405), ("/health", "GET", 200)):
                async with session.request(method, server.url + path) as answer:
                    assert answer.status == status
            headers = {"Authorization": "Bearer engine-secret"}
            async with session.post(f"{server.url}/v1/completions", data=b"{nope", headers=headers) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["type"] == "BadRequestError"


async def test_case_b06_content_may_be_null_absent_or_parts() -> None:
    async with engine() as server, client_of(server) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            max_tokens=2,
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
                {"role": "assistant", "content": None},
                {"role": "assistant"},
            ],
        )
        assert answer.choices[0].message.content


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    async with engine() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            + b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        text = (await reader.read()).decode()
        assert text.index("text_completion") < text.index("0.32.0+simulated")
        assert text.count("HTTP/1.1 200 OK") == 2
        writer.close()


async def test_what_is_not_http_is_refused_and_harms_nobody() -> None:
    async with engine() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01\x00nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        async with client_of(server) as client:
            assert (await client.models.list()).data


async def test_faults_and_their_end() -> None:
    async with engine() as server, aiohttp.ClientSession() as session:
        ask = {"model": MODEL, "prompt": "hello", "max_tokens": 4}
        timeout = aiohttp.ClientTimeout(total=0.3)

        async def answers(path: str = "/v1/completions") -> bool:
            try:
                if path == "/v1/completions":
                    async with session.post(server.url + path, json=ask, timeout=timeout) as answer:
                        return answer.status == 200
                async with session.get(server.url + path, timeout=timeout) as answer:
                    return answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False

        async def fault(**what: object) -> None:
            async with session.post(f"{server.url}/simulated/faults", json=what) as answer:
                assert answer.status == 200

        assert await answers()
        await fault(fault="hang")
        assert not await answers()
        assert await answers("/health")
        await fault()
        assert await answers()
        await fault(fault="slow", factor=0.001)
        assert not await answers()
        await server.restore()
        assert await answers()
        await fault(fault="freeze")
        assert not await answers("/health")
        await server.restore()
        assert await answers()
        await fault(fault="crash")
        await until(lambda: not server._server.is_serving())  # type: ignore[union-attr]
        assert not await answers("/health")
        started = server._started_wall
        await server.restore()
        assert await answers()
        assert server._started_wall > started
        server.lose_gpu(exit_after_seconds=0.2)
        assert await answers("/health")
        assert not await answers()
        assert not await answers("/health")
        await server.restore()
        assert await answers()
        async with session.post(f"{server.url}/simulated/faults", json={"fault": "confetti"}) as answer:
            assert answer.status == 400


async def test_an_idle_engine_has_no_timer() -> None:
    async with engine() as server, client_of(server) as client:
        await client.completions.create(model=MODEL, prompt="x", max_tokens=3)
        assert server._loop._timer is None


async def test_runs_alone_and_a_taken_port_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "headrace.simulated_engine", "--model", MODEL, "--port"]
        process = await asyncio.create_subprocess_exec(*command, str(port), stderr=asyncio.subprocess.PIPE)
        _, err = await process.communicate()
        assert process.returncode == 1
        assert err.decode().count("\n") == 1
        assert f"cannot listen on 127.0.0.1:{port}" in err.decode()
    process = await asyncio.create_subprocess_exec(*command, "0", stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    line = (await process.stderr.readline()).decode()
    url = line.split()[-1]
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == MODEL
    process.terminate()
    assert await process.wait() == 0
