"""Any OpenAI-compatible server, known only by probing it. A Dynamo frontend's metrics are read where they are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, Request
from agents.engines.exposition import Page, Scanner
from fleet.endpoint import EngineLoad

_PREFIX = "dynamo_frontend_"


class OpenAi:
    """A server that answers ``/v1/models``; everything else is a gift."""

    metrics_path = "/metrics"
    health_path = ""
    lists_models = True
    strict_names = False
    """What such a server lists and what it accepts are often two things; what the operator wrote counts."""
    metadata: tuple[Request, ...] = ()
    scanner = Scanner(
        _PREFIX + name
        for name in (
            "inflight_requests",
            "queued_requests",
            "output_tokens_total",
            "model_total_kv_blocks",
            "model_kv_cache_block_size",
            "model_max_num_seqs",
            "model_context_length",
        )
    )

    def read(self, page: Page) -> EngineScrape:
        inflight = page.count(_PREFIX + "inflight_requests")
        queued = page.count(_PREFIX + "queued_requests")
        running = None
        if inflight is not None:
            # In flight counts what is queued too.
            running = max(0, inflight - (queued or 0))
        load = EngineLoad(
            running=running,
            waiting=queued,
            generated_tokens_total=page.total(_PREFIX + "output_tokens_total"),
        )
        block = page.largest(_PREFIX + "model_kv_cache_block_size")
        blocks = page.total(_PREFIX + "model_total_kv_blocks")
        shape = EngineShape(
            page.count(_PREFIX + "model_max_num_seqs") or None,
            int(block * blocks) if block and blocks else None,
            page.count(_PREFIX + "model_context_length") or None,
        )
        return EngineScrape(load, shape, skipped=page.skipped)

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        return EngineScrape()
