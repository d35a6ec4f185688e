"""Triton Inference Server, plain or with the TensorRT-LLM back end. Its ``exec_count`` is a cumulative counter, not load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, Request
from agents.engines.exposition import Page, Scanner, Series
from fleet.endpoint import EngineLoad

_REQUESTS = "nv_trt_llm_request_metrics"
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_PENDING = "nv_inference_pending_request_count"


def _is(label: str, value: str) -> Any:
    def matches(series: Series) -> bool:
        return series.label(label) == value

    return matches


class Triton:
    """``tritonserver``. Metrics usually have a port of their own (8002); readiness is KServe v2's."""

    metrics_path = "/metrics"
    health_path = "/v2/health/ready"
    lists_models = False
    strict_names = False
    metadata: tuple[Request, ...] = ()
    scanner = Scanner([_REQUESTS, _BLOCKS, _PENDING])

    def read(self, page: Page) -> EngineScrape:
        waiting = page.count(_REQUESTS, where=_is("request_type", "waiting"))
        if waiting is None:
            waiting = page.count(_PENDING)
        usage = page.largest(_BLOCKS, where=_is("kv_cache_block_type", "fraction"))
        block = page.largest(_BLOCKS, where=_is("kv_cache_block_type", "tokens_per"))
        blocks = page.total(_BLOCKS, where=_is("kv_cache_block_type", "max"))
        load = EngineLoad(
            running=page.count(_REQUESTS, where=_is("request_type", "scheduled")),
            waiting=waiting,
            kv_usage=usage if usage is not None and usage <= 1 else None,
        )
        kv_tokens = int(block * blocks) if block and blocks else None
        return EngineScrape(load, EngineShape(kv_tokens=kv_tokens), skipped=page.skipped)

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        return EngineScrape()
