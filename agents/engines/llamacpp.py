"""llama.cpp's own server (``llama-server --metrics``). It has no KV usage any more; its slots are counted instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, Request
from agents.engines.exposition import Page, Scanner
from fleet.endpoint import EngineLoad

PROPS, SLOTS = "/props", "/slots"


class LlamaCpp:
    """``llama-server``."""

    metrics_path = "/metrics"
    health_path = "/health"
    lists_models = True
    strict_names = False
    """One model a process: it answers to any name."""
    metadata: tuple[Request, ...] = (Request(PROPS), Request(SLOTS))
    scanner = Scanner(
        f"llamacpp:{name}"
        for name in (
            "requests_processing",
            "requests_deferred",
            "kv_cache_usage_ratio",
            "prompt_tokens_total",
            "prompt_tokens_cached_total",
            "tokens_predicted_total",
        )
    )

    def read(self, page: Page) -> EngineScrape:
        computed = page.total("llamacpp:prompt_tokens_total")
        cached = page.total("llamacpp:prompt_tokens_cached_total")
        load = EngineLoad(
            running=page.count("llamacpp:requests_processing"),
            waiting=page.count("llamacpp:requests_deferred"),
            kv_usage=page.share("llamacpp:kv_cache_usage_ratio"),
            # It counts the two apart; elsewhere cached tokens are part of the prompt's.
            prompt_tokens_total=computed + (cached or 0.0) if computed is not None else None,
            cached_tokens_total=cached,
            generated_tokens_total=page.total("llamacpp:tokens_predicted_total"),
        )
        return EngineScrape(load, skipped=page.skipped)

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        props, slots = documents.get(PROPS), documents.get(SLOTS)
        total_slots = _positive(props, "total_slots")
        contexts = [n for n in (_positive(slot, "n_ctx") for slot in slots) if n] if isinstance(slots, list) else []
        settings = props.get("default_generation_settings") if isinstance(props, dict) else None
        context = min(contexts) if contexts else _positive(settings, "n_ctx")
        if total_slots is None and contexts:
            total_slots = len(contexts)
        kv_tokens = sum(contexts) or (context * total_slots if context and total_slots else None)
        asleep = isinstance(props, dict) and props.get("is_sleeping") is True
        return EngineScrape(shape=EngineShape(total_slots, kv_tokens, context), asleep=asleep)


def _positive(document: object, key: str) -> int | None:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
