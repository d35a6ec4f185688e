"""The metrics page, with vLLM's own names and labels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.simulated_engine.blocks import BLOCK_TOKENS
from headrace.simulated_engine.scheduler import ContinuousBatching

_TTFT_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_REQUEST_BUCKETS = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)


@dataclass(slots=True)
class Histogram:
    """Cumulative buckets as Prometheus writes them."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        cumulative = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            cumulative += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {cumulative}.0'
        yield f"{name}_count{{{labels}}} {cumulative}.0"
        yield f"{name}_sum{{{labels}}} {self.total}"


@dataclass(slots=True)
class RequestMetrics:
    """What is counted per request, beside the scheduler's own counters."""

    finished: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
    )
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(_TTFT_BUCKETS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(_ITL_BUCKETS))
    request: Histogram = field(default_factory=lambda: Histogram(_REQUEST_BUCKETS))
    queue: Histogram = field(default_factory=lambda: Histogram(_REQUEST_BUCKETS))


def render(
    scheduler: ContinuousBatching,
    requests: RequestMetrics,
    *,
    model: str,
    started_wall: float,
    prefix_caching: bool = True,
) -> bytes:
    """The whole page. The caller has advanced the scheduler to now."""
    counters = scheduler.counters
    labels = f'engine="0",model_name="{_escape(model)}"'
    lines: list[str] = []

    def one(name: str, kind: str, help_text: str, value: float, extra: str = "") -> None:
        head(name, kind, help_text)
        lines.append(f"{name}{{{labels}{extra}}} {float(value)}")

    def head(name: str, kind: str, help_text: str) -> None:
        lines.append(f"# HELP {name} {help_text}")
        lines.append(f"# TYPE {name} {kind}")

    head("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
    lines.append(f"process_start_time_seconds {started_wall}")
    one("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", scheduler.running)
    one("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", scheduler.waiting)
    head("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
    lines.append(f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {float(scheduler.waiting)}')
    lines.append(f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0.0')
    one("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", scheduler.kv_usage)
    tokens = "in terms of number of"
    one(
        "vllm:prefix_cache_queries_total",
        "counter",
        f"Prefix cache queries, {tokens} queried tokens.",
        counters.prompt_tokens,
    )
    one(
        "vllm:prefix_cache_hits_total", "counter", f"Prefix cache hits, {tokens} cached tokens.", counters.cached_tokens
    )
    one(
        "vllm:num_preemptions_total",
        "counter",
        "Cumulative number of preemption from the engine.",
        counters.preemptions,
    )
    one("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", counters.prompt_tokens)
    one("vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens.", counters.cached_tokens)
    one("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", counters.generated_tokens)
    head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
    for reason, count in requests.finished.items():
        lines.append(
            f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{_escape(model)}"}} {float(count)}'
        )
    for name, help_text, histogram in (
        (
            "vllm:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            requests.time_to_first_token,
        ),
        ("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", requests.inter_token),
        ("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", requests.request),
        ("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", requests.queue),
    ):
        head(name, "histogram", help_text)
        lines += histogram.lines(name, labels)
    head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    lines.append(
        f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",enable_prefix_caching="{prefix_caching}",engine="0",'
        f'num_gpu_blocks="{scheduler.pool.total}"}} 1.0'
    )
    return ("\n".join(lines) + "\n").encode()


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
