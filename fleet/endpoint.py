"""Endpoints (addresses a request can be sent to) and what is read from the engine behind them."""

from __future__ import annotations

from enum import StrEnum

from fleet.value import value


class EngineKind(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    TGI = "tgi"
    TRITON = "triton"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"
    """Any OpenAI-compatible server, known only by probing it."""
    SIMULATED = "simulated"


class EndpointPhase(StrEnum):
    """Where a replica is in its life. Only ``READY`` takes new work without a reservation."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    """Finishes what it has, takes nothing new."""
    UNREACHABLE = "unreachable"
    """The watcher cannot reach the engine."""
    STOPPED = "stopped"


@value
class ServedModel:
    """A model version as an engine names it: ``model`` is our name, ``served_as`` the engine's."""

    model: str
    served_as: str


@value
class EngineLoad:
    """Load read from one engine in one scrape. ``None`` is unknown (never zero); counters may restart (case-M05)."""

    running: int | None = None
    waiting: int | None = None
    """Waiting for capacity. Requests that chunked prefill defers by design are not counted (vLLM ``deferred``)."""
    kv_usage: float | None = None
    """Share of KV-cache blocks in use, 0 to 1."""
    prompt_tokens_total: float | None = None
    cached_tokens_total: float | None = None
    generated_tokens_total: float | None = None
    preemptions_total: float | None = None
    sample_age_seconds: float | None = None
    """Age of the scrape when the report was made; None when no scrape has succeeded."""


@value
class EndpointReport:
    """One engine as its agent sees it now. Full state each time."""

    uid: str
    name: str
    """Unique in its node and stable: the engine's configured name, not its port."""
    kind: EngineKind
    url: str
    """Where routers reach it: scheme, host and port, no path."""
    models: tuple[ServedModel, ...]
    phase: EndpointPhase
    reason: str = ""
    gpu_uuids: tuple[str, ...] = ()
    gpus_known: bool = False
    """False raises condition ``GPUsUnknown``; an empty tuple then means unknown, not none."""
    tensor_parallel: int = 1
    max_inflight: int | None = None
    """Requests it runs at once (slots, max-num-seqs); None is unknown."""
    kv_tokens: int | None = None
    context_tokens: int | None = None
    engine_incarnation: int = 0
    """Rises when the engine process was seen to restart; its caches are then empty."""
    load: EngineLoad = EngineLoad()
    auth_failed: bool = False
    metrics_fresh: bool = False
    api_key: str = ""
    """Secret. What the engine wants as bearer token; never logged, never sent anywhere but to this endpoint."""

    def __repr__(self) -> str:
        return f"EndpointReport(uid={self.uid!r}, name={self.name!r}, phase={self.phase.value!r}, url={self.url!r})"
