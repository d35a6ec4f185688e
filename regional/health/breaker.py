"""Outlier ejection of one endpoint, as a state machine that can be seen.

        success                     failures in a row, if the pool's cap allows
      +--------+        +--------+ ------------------------------------> +------+
      +------> | CLOSED |                                                | OPEN |
               +--------+ <--- successes in a row --- +-----------+ <--- +------+
                                                      | HALF_OPEN |   time is up
                                                      +-----------+ ---> OPEN again, for twice as long, on one failure

CLOSED passes requests, OPEN refuses them, HALF_OPEN passes a few at a time (the usual sense of the words).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


def ejection_seconds(ejections: int, base_seconds: float, max_seconds: float) -> float:
    """How long the nth ejection lasts: base, then twice as long each time, up to the maximum."""
    return float(min(base_seconds * 2.0 ** min(ejections - 1, 30), max_seconds))


@dataclass(slots=True)
class Breaker:
    """State of one endpoint. The transitions are functions below; nothing else writes it."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    """In a row, while closed."""
    successes: int = 0
    """In a row, while half open."""
    trials: int = 0
    """Requests under way that were let through half open."""
    ejections: int = 0
    """How often in a row it has been ejected; forgotten after it did well for a while."""
    until: float = 0.0
    """When OPEN ends."""
    closed_at: float = 0.0


def on_failure(
    b: Breaker, now: float, threshold: int, may_eject: bool, base_seconds: float, max_seconds: float
) -> bool:
    """One real request failed there. True when this ejects it (again)."""
    if b.state is BreakerState.OPEN:
        return False
    if b.state is BreakerState.HALF_OPEN:
        open_for(b, now, base_seconds, max_seconds)
        return True
    b.failures += 1
    if b.failures < threshold or not may_eject:
        return False
    open_for(b, now, base_seconds, max_seconds)
    return True


def open_for(b: Breaker, now: float, base_seconds: float, max_seconds: float) -> None:
    """Eject, for longer each time in a row."""
    if b.ejections and b.state is BreakerState.CLOSED and now - b.closed_at > max_seconds:
        b.ejections = 0
    b.ejections += 1
    b.state = BreakerState.OPEN
    b.until = now + ejection_seconds(b.ejections, base_seconds, max_seconds)
    b.failures = 0
    b.successes = 0


def on_success(b: Breaker, now: float, needed: int) -> bool:
    """One real request did well there. True when this closes the breaker."""
    if b.state is BreakerState.CLOSED:
        b.failures = 0
        return False
    if b.state is BreakerState.OPEN:
        return False  # sent before the ejection; the trial will tell
    b.successes += 1
    if b.successes < needed:
        return False
    b.state = BreakerState.CLOSED
    b.failures = 0
    b.closed_at = now
    return True


def on_tick(b: Breaker, now: float) -> bool:
    """True when time is up and the breaker goes half open."""
    if b.state is not BreakerState.OPEN or now < b.until:
        return False
    b.state = BreakerState.HALF_OPEN
    b.successes = 0
    return True


def passes(b: Breaker, half_open_requests: int) -> bool:
    """Whether one more request may go there."""
    if b.state is BreakerState.CLOSED:
        return True
    return b.state is BreakerState.HALF_OPEN and b.trials < half_open_requests
