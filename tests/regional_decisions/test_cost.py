"""Each term of the cost against numbers worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from fleet.accelerator import AcceleratorState, DeviceHealth
from regional.request.steps import SendToEndpoint
from regional.routing import cost
from regional.routing.pricing import nominal_weight
from regional.routing.speeds import Speeds, speeds_of
from tests.regional_decisions.fleets import endpoint, facts, gpu, no_revoke, simple

# 1 ms floor, 20 us a prompt token; steps of 5 ms + 0.1 ms a sequence + 0.5 us a context token.
SPEEDS = Speeds(0.001, 20e-6, 5e-3, 1e-4, 5e-7)


def test_a_step_is_base_plus_sequences_plus_context() -> None:
    # 5 ms + 10 x 0.1 ms + 20,000 x 0.5 us = 16 ms
    assert cost.step_seconds(SPEEDS, 10, 20_000) == pytest.approx(0.016)


def test_prefill_is_per_token_with_a_floor() -> None:
    assert cost.prefill_seconds(SPEEDS, 1000) == pytest.approx(0.020)
    assert cost.prefill_seconds(SPEEDS, 10) == pytest.approx(0.001)


def test_queue_is_unread_prompts_then_slots_that_have_to_free() -> None:
    # 3,000 tokens x 20 us = 60 ms; 2 of 4 slots x 100 tokens x 10 ms = 500 ms
    assert cost.queue_seconds(3000, 20e-6, 2, 4, 100, 0.010) == pytest.approx(0.560)
    assert cost.queue_seconds(3000, 20e-6, 0, 4, 100, 0.010) == pytest.approx(0.060)


def test_kv_risk_starts_late_and_rises_to_three() -> None:
    assert cost.kv_risk(None) == 1.0
    assert cost.kv_risk(0.85) == 1.0
    assert cost.kv_risk(0.925) == pytest.approx(1.5)  # half way: 1 + 2 x 0.25
    assert cost.kv_risk(1.0) == pytest.approx(3.0)


def test_age_widens_and_never_jumps() -> None:
    assert cost.widening(0.5, 1.0) == 1.0
    assert cost.widening(3.0, 1.0) == pytest.approx(1.10)
    assert cost.widening(1e6, 1.0) == 1.5
    ages = [cost.widening(a / 10, 1.0) for a in range(300)]
    assert all(0 <= b - a < 0.01 for a, b in itertools.pairwise(ages))


def test_never_sampled_is_dearer_than_fresh_and_not_free() -> None:
    assert cost.widening(None, 1.0) > cost.widening(0.0, 1.0)


def test_slow_start_lets_in_more_and_more() -> None:
    assert [cost.slow_start_limit(t, 4.0) for t in (0.0, 2.0, 3.99, 4.0)] == [2, 17, 31, None]


def test_a_newcomer_shares_from_the_start_and_is_not_flooded() -> None:
    rig = simple({"eu-west-a": 2})
    rig.beat(6.0)
    rig.report("node-new", [endpoint("new", ["GPU-new"])], gpus=[gpu("GPU-new")])
    rig.tick()
    rig.tick(0.05)
    sent = []
    for i in range(60):
        _, step = rig.core.begin(facts(str(i)), rig.now, no_revoke)
        assert isinstance(step, SendToEndpoint)
        sent.append(step.target.name)
    assert "new" in sent[:8]
    assert sent.count("new") <= 4


@pytest.mark.parametrize(
    ("gpu", "factor"),
    [
        (AcceleratorState("u", health=DeviceHealth.OK), 1.0),
        (AcceleratorState("u", health=DeviceHealth.OK, throttle_reasons=("gpu_idle",)), 1.0),
        (AcceleratorState("u", health=DeviceHealth.OK, throttle_reasons=("sw_thermal_slowdown",)), 1.25),
        (
            AcceleratorState("u", throttle_reasons=("hw_slowdown",), sm_clock_mhz=990, sm_clock_max_mhz=1980),
            2.0,
        ),
        (AcceleratorState("u", health=DeviceHealth.DEGRADED), 1.25),
    ],
)
def test_throttling_slows_down_by_clocks_or_by_a_quarter(gpu: AcceleratorState, factor: float) -> None:
    assert cost.throttling(gpu) == pytest.approx(factor)


def test_pace_moves_toward_what_is_observed_and_fades_back() -> None:
    pace = 1.0
    for _ in range(30):
        pace = cost.next_pace(pace, 2.0, 0.2 * pace)  # ten times slower than promised
    assert pace == pytest.approx(10.0, rel=0.01)
    assert cost.next_pace(1.0, 5.0, 5.0) == 1.0
    assert cost.next_pace(1.0, 0.0, 5.0) == 1.0
    # one half-life: 10 -> 10^0.5, or to 2 x (10 / 2)^0.5 where its peers run at 2
    assert cost.decayed_pace(10.0, 1.0, cost.PACE_HALF_LIFE_SECONDS) == pytest.approx(10**0.5)
    assert cost.decayed_pace(10.0, 2.0, cost.PACE_HALF_LIFE_SECONDS) == pytest.approx(2 * 5**0.5)


def test_products_have_their_own_speed_and_weights_scale_it() -> None:
    h100 = speeds_of("h100-sxm-80", 15.0, 1)
    assert h100.prefill_per_token == pytest.approx(20.3108e-6)
    assert h100.step_base == pytest.approx(6.4051e-3)
    assert speeds_of("h100-sxm-80", 30.0, 1).step_base == pytest.approx(2 * h100.step_base)
    assert speeds_of("a100-sxm-80", 15.0, 1).step_base > h100.step_base
    assert not speeds_of("", 15.0, 1).known
    assert speeds_of("h100-of-tomorrow", 15.0, 1).known
    assert nominal_weight(h100) == pytest.approx(1.0)
    assert nominal_weight(speeds_of("l4-24", 15.0, 1)) < 0.2


def test_the_price_of_an_idle_endpoint_is_worked_out_by_hand() -> None:
    rig = simple({"eu-west-a": 1})
    pool = rig.view.pools["llama-3.1-8b"]
    # h100, 8B: floor 7.615 ms, 20.3108 us a token; a step of 6.4051 ms + one sequence of 10.539 us
    assert pool.fixed[0] == pytest.approx(7.615e-3)
    assert pool.per_input[0] == pytest.approx(20.3108e-6)
    assert pool.per_output[0] == pytest.approx(6.4051e-3 + 10.539e-6)


def test_work_in_flight_makes_an_endpoint_dearer() -> None:
    rig = simple({"eu-west-a": 1})
    pool = rig.view.pools["llama-3.1-8b"]
    before = float(pool.fixed[0]), float(pool.per_output[0])
    life, _ = rig.core.begin(facts(input_tokens=10_000), rig.now, no_revoke)
    rig.view.settle(rig.now)
    after = float(pool.fixed[0]), float(pool.per_output[0])
    # the unread prompt is ahead of the next request: 10,000 x 20.3108 us
    seat = pool.seats[0]
    assert after[0] - before[0] == pytest.approx(10_000 * 20.3108e-6 * seat.outer, rel=1e-6)
    assert after[1] > before[1]
    life.on_first_byte(rig.now)
    rig.view.settle(rig.now)
    assert seat.wait == pytest.approx(0.0)
