"""What the course of an answer teaches about the endpoint's speed: its pace, for prompts and for decoding apart."""

from __future__ import annotations

from fleet.request import Usage
from regional.fleetview.endpoint import Ticket
from regional.routing.cost import next_pace

OVERHEAD_SECONDS = 0.002
"""Of connection and relay; keeps the ratio sensible where engines answer in no time."""
MIN_DECODED_TOKENS = 8
RATE_CHANGE = 1.1
"""Prices are worked out anew at once when a pace has changed by more than this since it was last used."""


def on_first_token(ticket: Ticket, now: float) -> bool:
    """A streamed answer begins. True when the pace changed enough to matter at once."""
    endpoint, seat = ticket.endpoint, ticket.seat
    expected = OVERHEAD_SECONDS + ticket.wait + seat.prefill_floor + seat.prefill_per_token * ticket.input_tokens
    return _paced(ticket, next_pace(endpoint.pace_prefill, now - ticket.sent_at, expected), None, now)


def on_streamed(ticket: Ticket, first_at: float, usage: Usage, now: float) -> bool:
    """A streamed answer has ended well."""
    tokens = usage.completion_tokens
    if tokens is None or tokens < MIN_DECODED_TOKENS or now <= first_at:
        return False
    endpoint = ticket.endpoint
    pace = next_pace(endpoint.pace_decode, now - first_at, (tokens - 1) * ticket.step)
    return _paced(ticket, None, pace, now)


def on_whole(ticket: Ticket, usage: Usage, expected_output_tokens: float, now: float) -> bool:
    """An answer that came in one piece has ended well: both phases are in the one time there is."""
    endpoint, seat = ticket.endpoint, ticket.seat
    tokens = expected_output_tokens if usage.completion_tokens is None else usage.completion_tokens
    expected = (
        OVERHEAD_SECONDS
        + ticket.wait
        + seat.prefill_floor
        + seat.prefill_per_token * ticket.input_tokens
        + tokens * ticket.step
    )
    seconds = now - ticket.sent_at
    return _paced(
        ticket,
        next_pace(endpoint.pace_prefill, seconds, expected),
        next_pace(endpoint.pace_decode, seconds, expected),
        now,
    )


def _paced(ticket: Ticket, prefill: float | None, decode: float | None, now: float) -> bool:
    endpoint = ticket.endpoint
    endpoint.paced = True
    endpoint.paced_at = now
    if prefill is not None:
        endpoint.pace_prefill = prefill
    if decode is not None:
        endpoint.pace_decode = decode
    ticket.seat.pool.learn_paces(endpoint.pace_prefill, endpoint.pace_decode)
    return (
        not endpoint.priced_prefill / RATE_CHANGE <= endpoint.pace_prefill <= endpoint.priced_prefill * RATE_CHANGE
        or not endpoint.priced_decode / RATE_CHANGE <= endpoint.pace_decode <= endpoint.priced_decode * RATE_CHANGE
    )
