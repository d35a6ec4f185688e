"""Text Generation Inference. Its project looks frozen (last change January 2026): supported, not extended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, Request
from agents.engines.exposition import Page, Scanner
from fleet.endpoint import EngineLoad

INFO = "/info"


class Tgi:
    """``text-generation-launcher``."""

    metrics_path = "/metrics"
    health_path = "/health"
    lists_models = True
    strict_names = False
    """It answers to any model name."""
    metadata: tuple[Request, ...] = (Request(INFO, 30.0),)
    scanner = Scanner(["tgi_batch_current_size", "tgi_queue_size"])

    def read(self, page: Page) -> EngineScrape:
        load = EngineLoad(running=page.count("tgi_batch_current_size"), waiting=page.count("tgi_queue_size"))
        return EngineScrape(load, skipped=page.skipped)

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        info = documents.get(INFO)
        if not isinstance(info, dict):
            return EngineScrape()
        numbers = {k: v for k, v in info.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0}
        return EngineScrape(
            shape=EngineShape(
                max_inflight=numbers.get("max_concurrent_requests"), context_tokens=numbers.get("max_total_tokens")
            )
        )
