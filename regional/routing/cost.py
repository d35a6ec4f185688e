"""The one cost: the seconds a request is expected to take somewhere. Small terms, each checked against hand-worked numbers.

    cost = network + (wait + input x prefill + output x step) x widening + tier

All arguments and results are seconds, tokens and counts. Unknown readings come as None and widen; they never count as zero.
"""

from __future__ import annotations

from fleet.accelerator import AcceleratorState, DeviceHealth
from regional.routing.speeds import Speeds

THROTTLE_FACTOR = 1.25
"""A throttled GPU loses about a fifth (req-10), unless its clocks say more."""
KV_COMFORT = 0.85
"""KV-cache use up to here carries no risk."""
NEVER_SAMPLED_WIDENING = 1.15
WIDENING_PER_SECOND = 0.05
WIDENING_MAX = 1.5
SLOW_START_FACTOR = 3.0
SLOW_START_FIRST, SLOW_START_LAST = 2, 32
PACE_MIN, PACE_MAX = 1 / 64, 64.0
PACE_WEIGHT = 0.3
PACE_HALF_LIFE_SECONDS = 15.0


def step_seconds(speeds: Speeds, batch: float, context_tokens: float) -> float:
    """One decode step with ``batch`` sequences whose contexts sum to ``context_tokens``."""
    return (
        speeds.step_base + speeds.step_per_sequence * batch + speeds.step_per_context_token * max(0.0, context_tokens)
    )


def prefill_seconds(speeds: Speeds, tokens: float) -> float:
    """Reading a prompt of ``tokens`` that is not cached."""
    return max(speeds.prefill_floor, speeds.prefill_per_token * tokens)


def queue_seconds(
    unread_tokens: float,
    prefill_per_token: float,
    excess: int,
    slots: int,
    mean_output_tokens: float,
    step: float,
) -> float:
    """Waiting before a prompt is read: the prompts ahead, then until ``excess`` of ``slots`` running requests have ended."""
    wait = unread_tokens * prefill_per_token
    if excess > 0:
        wait += excess / max(1, slots) * mean_output_tokens * step
    return wait


def kv_risk(kv_usage: float | None) -> float:
    """Factor on everything, from 1 where the cache has room to 3 where it is full and requests get preempted."""
    if kv_usage is None or kv_usage <= KV_COMFORT:
        return 1.0
    over = min(1.0, (kv_usage - KV_COMFORT) / (1.0 - KV_COMFORT))
    return 1.0 + 2.0 * over * over


def widening(sample_age_seconds: float | None, fresh_seconds: float) -> float:
    """How much an estimate grows with the age of what it rests on: from 1, never a cliff; None was never read."""
    if sample_age_seconds is None:
        return NEVER_SAMPLED_WIDENING
    late = sample_age_seconds - fresh_seconds
    return 1.0 if late <= 0 else min(WIDENING_MAX, 1.0 + WIDENING_PER_SECOND * late)


def slow_start_limit(since_seconds: float, ramp_seconds: float) -> int | None:
    """Requests a newcomer takes at once before it gets dearer, from 2 to 32 over the ramp; None when the ramp is over.

    An empty newcomer looks best to every router at once; a limit keeps the flood off and gives it its share from the start.
    """
    if since_seconds >= ramp_seconds:
        return None
    done = max(0.0, since_seconds) / ramp_seconds
    return SLOW_START_FIRST + int((SLOW_START_LAST - SLOW_START_FIRST) * done)


def throttling(gpu: AcceleratorState) -> float:
    """How many times slower a device is than it could be, by its own account; 1.0 when nothing says so."""
    slowed = any(word in reason for reason in gpu.throttle_reasons for word in ("thermal", "slowdown", "brake"))
    if not slowed:
        return THROTTLE_FACTOR if gpu.health is DeviceHealth.DEGRADED else 1.0
    if gpu.sm_clock_mhz and gpu.sm_clock_max_mhz and gpu.sm_clock_mhz < gpu.sm_clock_max_mhz:
        return min(5.0, max(THROTTLE_FACTOR, gpu.sm_clock_max_mhz / gpu.sm_clock_mhz))
    return THROTTLE_FACTOR


def next_pace(pace: float, observed_seconds: float, expected_seconds: float, weight: float = PACE_WEIGHT) -> float:
    """Pace after one observation. ``expected_seconds`` was worked out with ``pace`` in it, so 1.0 of it changes nothing."""
    if observed_seconds <= 0 or expected_seconds <= 0:
        return pace
    ratio = min(PACE_MAX, max(PACE_MIN, observed_seconds / expected_seconds))
    return float(min(PACE_MAX, max(PACE_MIN, pace * ratio**weight)))


def decayed_pace(pace: float, typical: float, idle_seconds: float) -> float:
    """A pace nobody has confirmed for a while drifts to what is typical of its peers, so that what was slow is tried again."""
    return float(typical * (pace / typical) ** (0.5 ** (max(0.0, idle_seconds) / PACE_HALF_LIFE_SECONDS)))
