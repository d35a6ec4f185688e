"""TensorRT-LLM's ``trtllm-serve``: Prometheus text is under ``/prometheus``, ``/metrics`` is JSON of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, Request
from agents.engines.exposition import Page, Scanner
from fleet.endpoint import EngineLoad


class TrtLlm:
    """``trtllm-serve``."""

    metrics_path = "/prometheus/metrics"
    health_path = "/health"
    lists_models = True
    strict_names = True
    metadata: tuple[Request, ...] = ()
    scanner = Scanner(
        [
            "trtllm_num_requests_running",
            "trtllm_num_requests_waiting",
            "trtllm_kv_cache_utilization",
            "trtllm_kv_cache_tokens_per_block",
            "trtllm_kv_cache_max_blocks",
            "process_start_time_seconds",
        ]
    )

    def read(self, page: Page) -> EngineScrape:
        load = EngineLoad(
            running=page.count("trtllm_num_requests_running"),
            waiting=page.count("trtllm_num_requests_waiting"),
            kv_usage=page.share("trtllm_kv_cache_utilization"),
        )
        block = page.largest("trtllm_kv_cache_tokens_per_block")
        blocks = page.total("trtllm_kv_cache_max_blocks")
        kv_tokens = int(block * blocks) if block and blocks else None
        return EngineScrape(
            load, EngineShape(kv_tokens=kv_tokens), page.largest("process_start_time_seconds"), False, page.skipped
        )

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        return EngineScrape()
