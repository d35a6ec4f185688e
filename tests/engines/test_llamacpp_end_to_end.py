"""Real llama.cpp behind router and agent: what a client gets is what the engine said, byte for byte."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.engines import LlamaCppEngine
from headrace.demo.layout import SERVED_AS, EngineLayout
from tests.engines.whole_path import KEY, Message, Recorder, ask, whole_path

pytest.importorskip("xllamacpp", reason="no wheel of llama.cpp's server for this machine")

CHAT = "/v1/chat/completions"
MODEL = "tiny"
MODELS = {MODEL: (SERVED_AS, "chat")}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from headrace.demo.gguf_model import write_model

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path)
    return path


@pytest.fixture
async def engine_url(model_file: Path) -> AsyncIterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = LlamaCppEngine(EngineLayout("engine", 0, "h100-sxm-80", port, port), model_file)
    await engine.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await engine.close()


def question(**more: Any) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Where does the water go?"}],
        "max_tokens": 24,
        "temperature": 0,
        "seed": 1,
        "cache_prompt": False,  # llama.cpp's own word: passes through
    }
    return json.dumps(body | more).encode()


def determined(body: bytes) -> bytes:
    """What the engine determines: identifiers and clocks, which differ from call to call, are blanked."""
    body = re.sub(rb'"(id|system_fingerprint)":"[^"]*"', rb'"\1":""', body)
    body = re.sub(rb'"created":\d+', b'"created":0', body)
    return re.sub(rb',?"timings":\{[^}]*\}', b"", body)


def renamed(body: bytes, engine: str, ours: str) -> bytes:
    """The only thing a router may change in an answer."""
    return body.replace(b'"model":"' + engine.encode() + b'"', b'"model":"' + ours.encode() + b'"')


async def test_plain_and_streamed_bytes_are_the_engines(engine_url: str, tmp_path: Path) -> None:
    recorder = Recorder(engine_url)
    async with (
        recorder.serving() as recorded_url,
        whole_path(tmp_path, kind="llamacpp", engine_url=recorded_url, models=MODELS) as router,
    ):
        for stream in (False, True):
            options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            through = await ask(router, CHAT, question(**options), KEY)
            said = recorder.inference()[-1]
            assert through.status == said.status == 200
            assert through.body == renamed(said.body, SERVED_AS, MODEL)
            direct = await ask(engine_url, CHAT, question(model=SERVED_AS, **options))
            assert determined(through.body) == determined(renamed(direct.body, SERVED_AS, MODEL))
            if stream:
                assert through.body.endswith(b"data: [DONE]\n\n")
                assert through.headers["content-type"].startswith("text/event-stream")
            else:
                assert json.loads(through.body)["usage"]["completion_tokens"] > 0


async def test_a_stream_without_usage_is_what_was_asked_for(engine_url: str, tmp_path: Path) -> None:
    """The router counts tokens for itself; a client that did not ask for usage sees no trace of that."""
    recorder = Recorder(engine_url)
    async with (
        recorder.serving() as recorded_url,
        whole_path(tmp_path, kind="llamacpp", engine_url=recorded_url, models=MODELS) as router,
    ):
        through = await ask(router, CHAT, question(stream=True), KEY)
        direct = await ask(engine_url, CHAT, question(stream=True, model=SERVED_AS))
        assert determined(through.body) == determined(renamed(direct.body, SERVED_AS, MODEL))


async def test_errors_of_the_engine_pass_unchanged(engine_url: str, tmp_path: Path) -> None:
    recorder = Recorder(engine_url)
    async with (
        recorder.serving() as recorded_url,
        whole_path(tmp_path, kind="llamacpp", engine_url=recorded_url, models=MODELS) as router,
    ):
        wrong = question(temperature="hot")
        through, direct = await ask(router, CHAT, wrong, KEY), await ask(engine_url, CHAT, wrong)
        assert 400 <= direct.status < 600
        if direct.status < 500:
            assert (through.status, through.body) == (direct.status, direct.body)
        else:
            assert through.status >= 500


async def test_completions_and_both_at_once(engine_url: str, tmp_path: Path) -> None:
    """More requests than slots: real queueing, and every answer is whole."""
    import asyncio

    recorder = Recorder(engine_url)
    async with (
        recorder.serving() as recorded_url,
        whole_path(tmp_path, kind="llamacpp", engine_url=recorded_url, models=MODELS) as router,
    ):
        bodies = [
            json.dumps(
                {"model": MODEL, "prompt": f"water {i}", "max_tokens": 30, "temperature": 0, "stream": i % 2 == 0}
            ).encode()
            for i in range(12)
        ]
        answers: list[Message] = await asyncio.gather(*(ask(router, "/v1/completions", body, KEY) for body in bodies))
        assert [answer.status for answer in answers] == [200] * 12
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers[::2])
        assert all(json.loads(answer.body)["choices"] for answer in answers[1::2])
