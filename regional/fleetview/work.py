"""Own in-flight: taken when an attempt is sent, given back exactly once when it is over."""

from __future__ import annotations

from collections.abc import Callable

from regional.fleetview.endpoint import Endpoint, Ticket
from regional.fleetview.pool import Seat
from regional.health.breaker import BreakerState


def take(
    seat: Seat, input_tokens: float, output_tokens: float, now: float, revoke: Callable[[], None] | None
) -> Ticket:
    endpoint = seat.endpoint
    endpoint.own += 1
    seat.own += 1
    endpoint.own_unread += input_tokens
    context = input_tokens + 0.5 * output_tokens
    endpoint.own_context += context
    ticket = Ticket(seat, input_tokens, context, now, revoke)
    endpoint.pending[ticket] = None
    if endpoint.breaker.state is BreakerState.HALF_OPEN:
        endpoint.breaker.trials += 1
        ticket.trial = True
    endpoint.note_history(now)
    return ticket


def read(ticket: Ticket, now: float) -> None:
    """Its first byte is in: the prompt has been read, and the attempt can no longer be revoked."""
    if ticket.read or ticket.released:
        return
    ticket.read = True
    endpoint = ticket.endpoint
    endpoint.own_unread -= ticket.input_tokens
    endpoint.pending.pop(ticket, None)
    endpoint.progress_at = now


def release(ticket: Ticket, now: float) -> bool:
    """True the first time only."""
    if ticket.released:
        return False
    ticket.released = True
    endpoint: Endpoint = ticket.endpoint
    endpoint.own -= 1
    ticket.seat.own -= 1
    if not ticket.read:
        endpoint.own_unread -= ticket.input_tokens
        endpoint.pending.pop(ticket, None)
    endpoint.own_context -= ticket.context_tokens
    if endpoint.own == 0:
        endpoint.own_unread = endpoint.own_context = 0.0  # sums of fractions end at zero, not near it
    if ticket.trial:
        endpoint.breaker.trials -= 1
    endpoint.note_history(now)
    return True
