"""vLLM, by the metric names of its V1 engine and of older releases; also the simulated engine, which speaks the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, Request
from agents.engines.exposition import Page, Scanner, Series
from fleet.endpoint import EngineLoad

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""A share from 0 to 1 in spite of the name. The second is the name before 0.10."""
CACHED = (
    "vllm:prompt_tokens_cached_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits",
)
PROMPT = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
GENERATED = ("vllm:generation_tokens_total", "vllm:generation_tokens")
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP = "vllm:engine_sleep_state"
PROCESS_START = "process_start_time_seconds"

SCANNER = Scanner(
    (
        *(RUNNING, WAITING, WAITING_BY_REASON, CACHE_CONFIG, SLEEP, PROCESS_START),
        *(*KV_USAGE, *CACHED, *PROMPT, *GENERATED, *PREEMPTIONS),
    )
)


class Vllm:
    """``vllm serve``."""

    metrics_path = "/metrics"
    health_path = "/health"
    lists_models = True
    strict_names = True
    metadata: tuple[Request, ...] = ()
    scanner = SCANNER

    def read(self, page: Page) -> EngineScrape:
        waiting = page.count(WAITING_BY_REASON, where=_for_capacity)
        if waiting is None:
            waiting = page.count(WAITING)
        load = EngineLoad(
            running=page.count(RUNNING),
            waiting=waiting,
            kv_usage=page.share(*KV_USAGE),
            prompt_tokens_total=page.total(*PROMPT),
            cached_tokens_total=page.total(*CACHED),
            generated_tokens_total=page.total(*GENERATED),
            preemptions_total=page.total(*PREEMPTIONS),
        )
        return EngineScrape(
            load,
            EngineShape(kv_tokens=_kv_tokens(page.series(CACHE_CONFIG))),
            page.largest(PROCESS_START),
            _asleep(page.series(SLEEP)),
            page.skipped,
        )

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        return EngineScrape()


def _for_capacity(series: Series) -> bool:
    """Chunked prefill parks requests as ``deferred`` by design; that is no lack of room."""
    return series.label("reason") != "deferred"


def _kv_tokens(configs: list[Series]) -> int | None:
    """KV capacity in tokens, summed over data-parallel ranks."""
    total = 0
    for config in configs:
        labels = config.labels()
        try:
            total += int(labels["block_size"]) * int(labels["num_gpu_blocks"])
        except (KeyError, ValueError):
            return None  # "None" until the cache has been sized
    return total or None


def _asleep(states: list[Series]) -> bool:
    awake = [s.value for s in states if s.label("sleep_state") == "awake"]
    return bool(awake) and max(awake) == 0
