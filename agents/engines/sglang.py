"""SGLang (``--enable-metrics``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, Request
from agents.engines.exposition import Page, Scanner
from fleet.endpoint import EngineLoad

SERVER_INFO = "/get_server_info"


class Sglang:
    """``sglang.launch_server``."""

    metrics_path = "/metrics"
    health_path = "/health"
    lists_models = True
    strict_names = True
    metadata: tuple[Request, ...] = (Request(SERVER_INFO, 30.0),)
    scanner = Scanner(
        [
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            "sglang:token_usage",
            "sglang:full_token_usage",
            "sglang:prompt_tokens_total",
            "sglang:cached_tokens_total",
            "sglang:generation_tokens_total",
            "sglang:num_retracted_reqs_total",
            "sglang:max_total_num_tokens",
            "process_start_time_seconds",
        ]
    )

    def read(self, page: Page) -> EngineScrape:
        load = EngineLoad(
            running=page.count("sglang:num_running_reqs"),
            waiting=page.count("sglang:num_queue_reqs"),
            kv_usage=page.share("sglang:token_usage", "sglang:full_token_usage"),
            prompt_tokens_total=page.total("sglang:prompt_tokens_total"),
            cached_tokens_total=page.total("sglang:cached_tokens_total"),
            generated_tokens_total=page.total("sglang:generation_tokens_total"),
            preemptions_total=page.total("sglang:num_retracted_reqs_total"),
        )
        kv_tokens = page.count("sglang:max_total_num_tokens")
        return EngineScrape(
            load,
            EngineShape(kv_tokens=kv_tokens or None),
            page.largest("process_start_time_seconds"),
            False,
            page.skipped,
        )

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        info = documents.get(SERVER_INFO)
        if not isinstance(info, dict):
            return EngineScrape()

        def positive(*keys: str) -> int | None:
            for key in keys:
                value = info.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
            return None

        return EngineScrape(
            shape=EngineShape(
                positive("max_running_requests"), positive("max_total_num_tokens"), positive("context_length")
            )
        )
