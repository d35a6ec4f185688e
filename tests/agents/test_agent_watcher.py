"""The watcher over real HTTP: scripted engines, and llama.cpp's own server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from agents.engines.base import EngineTarget
from agents.engines.watcher import EngineWatcher
from agents.lifecycle import Limits
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, ServedModel
from tests import services
from tests.agents.scripted_engine import VLLM_IDLE, ScriptedEngine

Until = Callable[[Callable[[], bool]], Awaitable[None]]
INTERVAL = 0.05


class Watched:
    def __init__(self, watcher: EngineWatcher) -> None:
        self.watcher = watcher
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    def watch(self, engine: ScriptedEngine, kind: EngineKind = EngineKind.VLLM, **more: object) -> None:
        self.watcher.set_targets([EngineTarget("uid-1", "e", kind, engine.url, **more)])  # type: ignore[arg-type]

    @property
    def report(self) -> EndpointReport:
        return self.watcher.reports()[0]

    def is_in(self, phase: EndpointPhase, reason: str = "") -> Callable[[], bool]:
        return lambda: self.report.phase is phase and reason in self.report.reason


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched.__new__(Watched)
    watcher = EngineWatcher(
        interval_seconds=INTERVAL,
        timeout_seconds=0.3,
        limits=Limits(silent_after_seconds=1.0, stalled_after_seconds=0.5, scrape_valid_intervals=10),
        on_change=lambda: made.changed(),
    )
    made.__init__(watcher)  # type: ignore[misc]
    task = asyncio.create_task(watcher.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_ready_engine_with_all_that_it_says_of_itself(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    engine.pages["/metrics"] = VLLM_IDLE + 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1\n'
    watched.watch(engine, max_inflight=32)
    await until(watched.is_in(EndpointPhase.READY))
    report = watched.report
    assert report.models == (ServedModel("m", "m"),)
    assert (report.load.running, report.load.waiting, report.load.kv_usage, report.metrics_fresh) == (0, 0, 0.0, True)
    assert (report.kv_tokens, report.context_tokens, report.max_inflight) == (16_000, 4096, 32)
    assert report.engine_incarnation == 1_000_000
    assert report.load.sample_age_seconds is not None
    assert report.load.sample_age_seconds < 1


async def test_each_turn_in_an_engines_life_is_one_line_of_the_log(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    with capture_logs() as lines:
        watched.watch(engine)
        await until(watched.is_in(EndpointPhase.READY))
        await asyncio.sleep(3 * INTERVAL)
        await engine.stop()
        await until(watched.is_in(EndpointPhase.UNREACHABLE))
    said = [(line["log_level"], line["name"], line["phase"]) for line in lines if line["event"] == "engine"]
    assert said[-2:] == [("info", "e", "ready"), ("warning", "e", "unreachable")]
    assert len(said) == len(set(said))


async def test_names_are_mapped_and_only_what_is_served_is_offered(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    ours = (ServedModel("our-m", "m"), ServedModel("absent", "x"))
    watched.watch(engine, models=ours)
    await until(watched.is_in(EndpointPhase.READY))
    assert watched.report.models == ours[:1]
    watched.watch(engine, models=ours[1:])
    await until(watched.is_in(EndpointPhase.STARTING, "serves m, not x"))


async def test_case_m01_unknown_metric_names_leave_load_unknown(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    engine.pages["/metrics"] = "something_else 4\n"
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.READY))
    assert (watched.report.load.running, watched.report.load.kv_usage) == (None, None)


async def test_a_restarted_engine_is_a_new_incarnation(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.READY))
    engine.pages["/metrics"] = VLLM_IDLE.replace("1000.0", "1060.0")
    await until(lambda: watched.report.engine_incarnation == 1_060_000)


async def test_case_m05_a_counter_that_went_back_is_a_new_incarnation(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    page = "vllm:num_requests_running 1\nvllm:generation_tokens_total {}\n"
    engine.pages["/metrics"] = page.format(10_000)
    watched.watch(engine)
    await until(lambda: watched.report.load.generated_tokens_total == 10_000)
    before = watched.report.engine_incarnation
    engine.pages["/metrics"] = page.format(120)
    await until(lambda: watched.report.load.generated_tokens_total == 120)
    assert watched.report.engine_incarnation == before + 1
    rate = watched.watcher.watches()[0].generated_per_second
    assert rate is None or rate >= 0


async def test_a_stopped_engine_is_unreachable_at_once_and_comes_back(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    engine.pages["/metrics"] = 404
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.READY))
    incarnation, changes = watched.report.engine_incarnation, watched.changes
    await engine.stop()
    await until(watched.is_in(EndpointPhase.UNREACHABLE, "refused"))
    assert watched.changes > changes, "this is told at once"
    await engine.start()
    await until(watched.is_in(EndpointPhase.READY))
    assert watched.report.engine_incarnation > incarnation, "nothing listened there: it was another process"


async def test_an_engine_that_never_answered_is_starting(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    await engine.stop()
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.STARTING, "refused"))
    await engine.start()
    await until(watched.is_in(EndpointPhase.READY))


async def test_an_engine_that_takes_connections_and_says_nothing(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.READY))
    engine.hang = True
    await until(lambda: not watched.report.metrics_fresh)
    assert watched.report.load.running is None, "old load is no load"
    await until(watched.is_in(EndpointPhase.UNREACHABLE, "no answer"))


async def test_case_e01_answers_but_makes_no_token(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    busy = "vllm:num_requests_running 2\nvllm:generation_tokens_total {}\n"
    engine.pages["/metrics"] = busy.format(1000)
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.READY))
    await until(watched.is_in(EndpointPhase.UNREACHABLE, "2 requests running and no token"))
    engine.pages["/metrics"] = busy.format(1010)
    await until(watched.is_in(EndpointPhase.READY))


async def test_wrong_key_is_told_apart_and_mended(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    engine.key = "right-key"
    watched.watch(engine, api_key="wrong-key")
    await until(lambda: watched.report.auth_failed)
    assert watched.report.phase is EndpointPhase.UNREACHABLE
    assert "wrong-key" not in repr(watched.report) + watched.report.reason
    watched.watch(engine, api_key="right-key")
    await until(watched.is_in(EndpointPhase.READY))
    assert not watched.report.auth_failed


async def test_dead_engine_core_behind_a_living_server(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.READY))
    engine.pages["/health"] = 503
    await until(watched.is_in(EndpointPhase.UNREACHABLE, "HTTP 503"))


async def test_warm_up_before_an_engine_that_was_seen_starting_is_ready(
    engine: ScriptedEngine, watched: Watched, until: Until
) -> None:
    await engine.stop()
    engine.pages["/v1/completions"] = 500
    watched.watch(engine, warmup_requests=2)
    await until(watched.is_in(EndpointPhase.STARTING, "refused"))
    await engine.start()
    await until(lambda: engine.asked.count("/v1/completions") == 1)
    await asyncio.sleep(4 * INTERVAL)
    assert watched.report.phase is EndpointPhase.WARMING, "a failed warm-up shows that it cannot serve"


async def test_after_its_warm_up_an_engine_is_ready(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    await engine.stop()
    engine.pages["/v1/completions"] = {"choices": []}
    watched.watch(engine, warmup_requests=2)
    await until(watched.is_in(EndpointPhase.STARTING, "refused"))
    await engine.start()
    await until(watched.is_in(EndpointPhase.READY))
    assert engine.asked.count("/v1/completions") == 2


async def test_an_engine_that_was_up_before_us_is_warm(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    watched.watch(engine, warmup_requests=2)
    await until(watched.is_in(EndpointPhase.READY))
    assert "/v1/completions" not in engine.asked


async def test_any_openai_server_by_probe(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    engine.pages = {"/v1/models": {"data": [{"id": "a"}, {"id": "b"}, {"no": "id"}, 7]}}
    watched.watch(engine, EngineKind.OPENAI)
    await until(watched.is_in(EndpointPhase.READY))
    assert [m.model for m in watched.report.models] == ["a", "b"]
    assert not watched.report.metrics_fresh
    assert engine.asked.count("/metrics") == 1, "a page that is not there is not asked for at every turn"
    await engine.stop()
    await until(watched.is_in(EndpointPhase.UNREACHABLE, "refused"))


async def test_targets_come_and_go(engine: ScriptedEngine, watched: Watched, until: Until) -> None:
    watched.watch(engine)
    await until(watched.is_in(EndpointPhase.READY))
    watched.watcher.set_targets([])
    assert watched.watcher.reports() == []
    await asyncio.sleep(0.2)
    seen = len(engine.asked)
    await asyncio.sleep(0.2)
    assert len(engine.asked) == seen, "nobody looks at it any more"


@pytest.mark.parametrize("page", ["{", "[]", '{"data": 3}', '{"data": [{"id": ""}]}'])
async def test_a_model_list_that_is_none(engine: ScriptedEngine, watched: Watched, until: Until, page: str) -> None:
    engine.pages["/v1/models"] = page
    watched.watch(engine)
    await until(lambda: engine.asked.count("/v1/models") > 1)
    assert watched.report.phase is EndpointPhase.STARTING
    assert watched.report.models == ()


# The real thing


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: no real llama.cpp server")
    from headrace.demo.gguf_model import write_model

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path)
    return path


class Llama:
    """A llama.cpp server in a process of its own."""

    def __init__(self, model: Path, port: int, *more: str) -> None:
        program = Path(__file__).parent / "llama_server.py"
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(model), str(port), "2", *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def free_port() -> int:
    return services.free_port()


@pytest.fixture
def llama(model: Path, free_port: int) -> Iterator[Llama]:
    made = Llama(model, free_port)
    yield made
    made.kill()


async def test_a_real_llamacpp_server_watched_live(
    llama: Llama, model: Path, free_port: int, watched: Watched, until: Until
) -> None:
    """Slots, context and models from its metadata; load while it works; death; and its return as a new incarnation."""
    target = EngineTarget("uid-1", "e", EngineKind.LLAMACPP, llama.url, models=(ServedModel("ours", "tiny"),))
    watched.watcher.set_targets([target])
    await until(watched.is_in(EndpointPhase.READY))
    await until(lambda: watched.report.max_inflight == 2)
    report = watched.report
    assert (report.context_tokens, report.kv_tokens, report.models) == (512, 1024, target.models)
    assert (report.load.running, report.load.waiting, report.load.kv_usage) == (0, 0, None)

    async with aiohttp.ClientSession() as session:
        body = {"model": "tiny", "prompt": "the wheel", "max_tokens": 400, "ignore_eos": True}

        async def complete() -> int:
            async with session.post(f"{llama.url}/v1/completions", json=body) as response:
                return int((await response.json())["usage"]["completion_tokens"])

        seen = asyncio.Event()
        counted: list[int] = []

        async def client() -> None:
            while not seen.is_set():
                counted.append(await complete())

        clients = [asyncio.create_task(client()) for _ in range(5)]
        try:
            await until(lambda: watched.report.load.running == 2 and (watched.report.load.waiting or 0) >= 1)
        finally:
            seen.set()
            await asyncio.gather(*clients)
    assert set(counted) == {400}
    done = 400 * len(counted)
    await until(lambda: watched.report.load.generated_tokens_total == done and watched.report.load.running == 0)

    incarnation = watched.report.engine_incarnation
    llama.kill()
    await until(watched.is_in(EndpointPhase.UNREACHABLE))
    again = Llama(model, free_port)
    try:
        await until(watched.is_in(EndpointPhase.READY))
        await until(lambda: watched.report.load.generated_tokens_total == 0)
        assert watched.report.engine_incarnation > incarnation
    finally:
        again.kill()


async def test_a_real_llamacpp_server_that_wants_a_key(
    model: Path, free_port: int, watched: Watched, until: Until
) -> None:
    llama = Llama(model, free_port, "secret-key")
    try:
        target = EngineTarget("uid-1", "e", EngineKind.LLAMACPP, llama.url)
        watched.watcher.set_targets([target])
        await until(lambda: watched.report.auth_failed)
        watched.watcher.set_targets([EngineTarget("uid-1", "e", EngineKind.LLAMACPP, llama.url, api_key="secret-key")])
        await until(watched.is_in(EndpointPhase.READY))
    finally:
        llama.kill()
