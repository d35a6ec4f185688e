"""What is read from engines by their metric names, on recorded pages and on written ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.engines.base import EngineScrape, EngineShape
from agents.engines.kinds import ENGINES
from agents.lifecycle import counter_rate, restarted
from fleet.endpoint import EngineKind, EngineLoad

DATA = Path(__file__).parent / "data"


def read(kind: EngineKind, page: str) -> EngineScrape:
    engine = ENGINES[kind]
    return engine.read(engine.scanner.scan(page))


def recorded(kind: EngineKind, name: str) -> EngineScrape:
    return read(kind, (DATA / name).read_text())


def test_vllm_under_load() -> None:
    """Recorded from vLLM 0.32 with 24 streams on 8 sequences."""
    scrape = recorded(EngineKind.VLLM, "vllm-0.32.0-cpu-metrics-underload.prom")
    assert scrape.load.running == 8
    assert scrape.load.waiting == 16
    assert scrape.load.kv_usage == pytest.approx(0.00098, abs=1e-5)
    assert scrape.load.prompt_tokens_total == 841
    assert scrape.load.cached_tokens_total == 0
    assert scrape.load.generated_tokens_total == 164
    assert scrape.load.preemptions_total == 0
    assert scrape.shape == EngineShape(kv_tokens=1_048_576)
    assert scrape.process_start == pytest.approx(1795952901.18)
    assert not scrape.asleep
    assert scrape.skipped == 0


def test_llamacpp_under_load_and_idle() -> None:
    busy = recorded(EngineKind.LLAMACPP, "llamacpp-metrics-underload.prom").load
    assert (busy.running, busy.waiting, busy.kv_usage) == (4, 4, None)
    assert (busy.prompt_tokens_total, busy.cached_tokens_total, busy.generated_tokens_total) == (488, 240, 1200)
    idle = recorded(EngineKind.LLAMACPP, "llamacpp-metrics.prom").load
    assert (idle.running, idle.waiting) == (0, 0)


def test_dynamo_frontend_behind_the_openai_kind() -> None:
    scrape = recorded(EngineKind.OPENAI, "dynamo-frontend-1.6.1-metrics.prom")
    assert (scrape.load.running, scrape.load.waiting, scrape.load.generated_tokens_total) == (0, 0, 5)
    assert scrape.shape == EngineShape(256, 16384 * 64, None)


@pytest.mark.parametrize("kind", EngineKind)
def test_case_m01_names_nobody_knows_are_unknown_not_zero(kind: EngineKind) -> None:
    load = recorded(kind, "xpyd-sim-0.5.0-metrics.prom").load
    assert load == EngineLoad()


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        (EngineKind.VLLM, 'vllm:gpu_cache_usage_perc{model_name="m"} 0.4'),
        (EngineKind.VLLM, 'vllm:kv_cache_usage_perc{model_name="m"} 0.4'),
        (
            EngineKind.VLLM,
            'vllm:gpu_cache_usage_perc{model_name="m"} 0.4\nvllm:kv_cache_usage_perc{model_name="m"} 0.4',
        ),
        (EngineKind.SIMULATED, 'vllm:kv_cache_usage_perc{model_name="m"} 0.4'),
        (EngineKind.SGLANG, "sglang:token_usage 0.4"),
        (EngineKind.TRTLLM, "trtllm_kv_cache_utilization 0.4"),
        (EngineKind.TRITON, 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.4'),
    ],
)
def test_case_m01_cache_usage_under_each_of_its_names(kind: EngineKind, page: str) -> None:
    assert read(kind, page + "\n").load.kv_usage == 0.4


def test_older_vllm_is_read_by_its_names() -> None:
    page = (
        'vllm:num_requests_running{model_name="m"} 3\nvllm:num_requests_waiting{model_name="m"} 2\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\nvllm:gpu_prefix_cache_hits_total{model_name="m"} 11\n'
        'vllm:prompt_tokens_total{model_name="m"} 100\nvllm:generation_tokens_total{model_name="m"} 40\n'
        "vllm:num_preemptions_total 1\n"
    )
    assert read(EngineKind.VLLM, page).load == EngineLoad(3, 2, 0.25, 100, 11, 40, 1)


def test_data_parallel_ranks_are_summed_and_the_fullest_cache_counts() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{e}"}} {r}\nvllm:kv_cache_usage_perc{{engine="{e}"}} {k}\n'
        f'vllm:cache_config_info{{engine="{e}",block_size="16",num_gpu_blocks="100"}} 1\n'
        for e, r, k in ((0, 3, 0.2), (1, 5, 0.9))
    )
    scrape = read(EngineKind.VLLM, page)
    assert (scrape.load.running, scrape.load.kv_usage, scrape.shape.kv_tokens) == (8, 0.9, 3200)


def test_deferred_requests_are_not_waiting_for_room() -> None:
    page = (
        "vllm:num_requests_waiting 12\n"
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 2\n'
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 10\n'
    )
    assert read(EngineKind.VLLM, page).load.waiting == 2


def test_a_sleeping_engine_says_so() -> None:
    page = 'vllm:engine_sleep_state{sleep_state="awake"} 0\nvllm:engine_sleep_state{sleep_state="discard_all"} 1\n'
    assert read(EngineKind.VLLM, page).asleep


def test_a_cumulative_count_is_not_load() -> None:
    """Trap f: Triton's exec_count rises for ever."""
    page = "nv_inference_exec_count 5000\nnv_inference_pending_request_count 3\n"
    load = read(EngineKind.TRITON, page).load
    assert (load.running, load.waiting) == (None, 3)


def test_triton_with_tensorrt_llm_and_tgi() -> None:
    page = (
        'nv_trt_llm_request_metrics{request_type="scheduled"} 6\nnv_trt_llm_request_metrics{request_type="waiting"} 2\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"} 64\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 10\n'
    )
    scrape = read(EngineKind.TRITON, page)
    assert (scrape.load.running, scrape.load.waiting, scrape.shape.kv_tokens) == (6, 2, 640)
    tgi = read(EngineKind.TGI, "tgi_batch_current_size 4\ntgi_queue_size 1\n").load
    assert (tgi.running, tgi.waiting) == (4, 1)


def test_shape_from_metadata() -> None:
    llama = ENGINES[EngineKind.LLAMACPP].shape({"/props": {"total_slots": 4}, "/slots": [{"n_ctx": 512}] * 4})
    assert llama.shape == EngineShape(4, 2048, 512)
    assert ENGINES[EngineKind.LLAMACPP].shape({"/props": {"is_sleeping": True}}).asleep
    sglang = ENGINES[EngineKind.SGLANG].shape(
        {"/get_server_info": {"max_running_requests": 32, "max_total_num_tokens": 9000, "context_length": 4096}}
    )
    assert sglang.shape == EngineShape(32, 9000, 4096)
    assert ENGINES[EngineKind.TGI].shape({"/info": {"max_concurrent_requests": 128}}).shape.max_inflight == 128


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize(
    "document", [None, [], {}, "x", 3, {"total_slots": True}, {"total_slots": -1}, [1], [{"n_ctx": "a"}]]
)
def test_metadata_that_is_no_such_thing_is_unknown(kind: EngineKind, document: object) -> None:
    engine = ENGINES[kind]
    assert engine.shape({r.path: document for r in engine.metadata}).shape == EngineShape()


def test_case_m05_counters_that_start_again() -> None:
    """10000, ten seconds later 120, ten seconds later 320: no data, then 20 a second; never negative."""
    assert counter_rate(10_000, 120, 10) is None
    assert counter_rate(120, 320, 10) == 20
    assert counter_rate(None, 320, 10) is None
    assert counter_rate(120, 320, 0) is None
    before, after = EngineLoad(generated_tokens_total=10_000), EngineLoad(generated_tokens_total=120)
    assert restarted(before, after)
    assert not restarted(after, before)
    assert not restarted(EngineLoad(), after)
