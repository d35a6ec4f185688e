"""Keeps every pool's columns true: what costs do not owe to the request is worked out when an endpoint changes, not when a
request asks. So a decision is a handful of vector operations at any pool size.

``rate`` is the slower part (standing, speeds, widening), after reports, findings and the passing of time; ``price`` the quick
one, after every request sent and ended.
"""

from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.node import NodeState
from regional.fleetview.pool import Pool, Seat
from regional.fleetview.standing import FULL, OPEN, OUT, SUSPECT
from regional.routing.cost import SLOW_START_FACTOR, decayed_pace, kv_risk, queue_seconds, slow_start_limit, widening
from regional.routing.filters import STANDING
from regional.routing.filters.life import unproven
from regional.routing.speeds import DEFAULT_WEIGHTS_GIB, REFERENCE_PRODUCT, Speeds, speeds_of

DEGRADED_WIDENING = 1.25
"""A silent node's endpoints: they answer, but nobody says how they are."""
UNKNOWN_PRODUCT_WIDENING = 1.1
PACE_KEPT_SECONDS = 10.0
"""A pace starts to fade when nothing has confirmed it for this long."""
FADE_STEP_SECONDS = 1.0
NO_LIMIT = 1_000_000

_REFERENCE = speeds_of(REFERENCE_PRODUCT, DEFAULT_WEIGHTS_GIB, 1)


def standing(endpoint: Endpoint, now: float) -> tuple[float, str]:
    """The tier an endpoint is in by itself, and the filter that put it there (empty when open)."""
    worst, name = OPEN, ""
    for one in STANDING:
        tier = one.tier(endpoint, now)
        if tier > worst:
            worst, name = tier, one.name
            if tier == OUT:
                break
    return worst, name


def nominal_weight(speeds: Speeds) -> float:
    """Speed relative to the reference product, both phases weighted as an ordinary request does; constant per product."""
    ours = 512 * speeds.prefill_per_token + 256 * speeds.step_base
    reference = 512 * _REFERENCE.prefill_per_token + 256 * _REFERENCE.step_base
    return reference / ours


def slowest_speeds(endpoint: Endpoint, weights_gib: float | None) -> Speeds:
    """Speeds by the endpoint's product; several products run at the pace of the slowest."""
    products = endpoint.gpu_products or ("",)
    found = [speeds_of(p, weights_gib, endpoint.tensor_parallel) for p in products]
    return max(found, key=lambda s: s.step_base)


def rate(
    endpoint: Endpoint, weights_gib: dict[str, float | None], fresh_seconds: float, ramp: float, now: float
) -> None:
    """Work out again all that does not change with every request, then the price."""
    endpoint.rated_at = now
    tier, _ = standing(endpoint, now)
    suspicious = tier == SUSPECT and unproven(endpoint) and endpoint.suspect_until <= now
    if suspicious and endpoint.node.state is NodeState.SUSPECT:
        suspicious = False
    _fade_pace(endpoint, now)
    weigh_sample(endpoint, fresh_seconds, now)
    outer = 1.0
    if endpoint.node.state is NodeState.DEGRADED:
        outer *= DEGRADED_WIDENING
    if endpoint.slow_start_from is not None:
        limit = slow_start_limit(now - endpoint.slow_start_from, ramp)
        endpoint.ramp_limit = NO_LIMIT if limit is None else limit
        if limit is None:
            endpoint.slow_start_from = None
    endpoint.priced_prefill, endpoint.priced_decode = endpoint.pace_prefill, endpoint.pace_decode
    prefill_factor = endpoint.pace_prefill * endpoint.speed_factor
    decode_factor = endpoint.pace_decode * endpoint.speed_factor
    for seat in endpoint.seats:
        speeds = slowest_speeds(endpoint, weights_gib.get(seat.model))
        seat.outer = outer if speeds.known else outer * UNKNOWN_PRODUCT_WIDENING
        weight = nominal_weight(speeds)
        if weight != seat.weight:
            seat.weight = weight
            seat.pool.layout += 1  # sessions are spread by weight: what was remembered of that holds no longer
        seat.prefill_floor = speeds.prefill_floor * prefill_factor
        seat.prefill_per_token = speeds.prefill_per_token * prefill_factor
        seat.step_base = speeds.step_base * decode_factor
        seat.step_per_sequence = speeds.step_per_sequence * decode_factor
        seat.step_per_context_token = speeds.step_per_context_token * decode_factor
        _restand(seat, tier, suspicious)
        price(seat)


def weigh_sample(endpoint: Endpoint, fresh_seconds: float, now: float) -> None:
    """How much the engine's last sample widens the estimate, by its age and by how full the KV cache is."""
    age = None if endpoint.sampled_at is None else now - endpoint.sampled_at
    endpoint.sample_factor = widening(age, fresh_seconds) * kv_risk(endpoint.sample.kv_usage)


def _fade_pace(endpoint: Endpoint, now: float) -> None:
    """Let paces drift to their peers' that nothing has confirmed lately; each fading counts from where the last one ended."""
    if not endpoint.seats:
        return
    pool = endpoint.seats[0].pool
    if not endpoint.paced:
        endpoint.pace_prefill, endpoint.pace_decode = pool.typical_prefill, pool.typical_decode
        return
    idle = now - endpoint.paced_at - PACE_KEPT_SECONDS
    if idle < FADE_STEP_SECONDS or endpoint.own:
        return
    endpoint.pace_prefill = decayed_pace(endpoint.pace_prefill, pool.typical_prefill, idle)
    endpoint.pace_decode = decayed_pace(endpoint.pace_decode, pool.typical_decode, idle)
    endpoint.paced_at += idle


def _restand(seat: Seat, tier: float, suspicious: bool) -> None:
    """Set a seat's tier and keep its pool's tally."""
    pool = seat.pool
    if (seat.standing != OUT) != (tier != OUT):
        pool.usable += 1 if tier != OUT else -1
    if seat.signalled != suspicious:
        pool.signals += 1 if suspicious else -1
        seat.signalled = suspicious
    seat.standing = tier


def leave(seat: Seat) -> None:
    """A seat goes: take it off its pool's tally."""
    _restand(seat, OUT, False)


def price(seat: Seat) -> None:
    """Write the seat's columns for the load it has now."""
    pool = seat.pool
    position = seat.position
    if position < 0:
        return
    e = seat.endpoint
    total = e.own + e.others
    slots = e.slots
    tier = seat.standing
    if seat.signalled and pool.panic:
        tier = OPEN
    if total < slots:
        batch = total + 1
        excess = e.waiting_excess
    else:
        batch = slots
        excess = total + 1 - slots
        tier += FULL
    step = seat.step_base + seat.step_per_sequence * batch + seat.step_per_context_token * e.own_context
    unread = e.own_unread + e.others_unread
    if excess > 0:
        wait = queue_seconds(unread, seat.prefill_per_token, excess, batch, pool.mean_output_tokens, step)
    else:
        wait = unread * seat.prefill_per_token
    seat.wait = wait
    seat.step = step
    outer = seat.outer * e.sample_factor
    if total >= e.ramp_limit:
        outer *= SLOW_START_FACTOR
    fixed = outer * (wait + seat.prefill_floor) + e.network_seconds
    pool.fixed[position] = tier + (fixed if fixed < 2e4 else 2e4)
    pool.per_input[position] = outer * seat.prefill_per_token
    pool.per_output[position] = outer * step
    pool.inflight[position] = total
    pool.weights[position] = seat.weight


def watch_panic(pool: Pool, panic_share: float) -> bool:
    """Enter or leave panic: unproven signs are ignored when too few of a pool are without one. True when it flipped."""
    healthy = pool.usable - pool.signals
    panic = pool.signals > 0 and healthy < panic_share * pool.usable
    if panic == pool.panic:
        return False
    pool.panic = panic
    for seat in pool.seats:
        if seat.signalled:
            price(seat)
    return True
