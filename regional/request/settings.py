"""Limits of one request's life. The router's settings are turned into this once, at start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Time limits, retries and waits; seconds and counts. What the request's class or caller sets can only shorten them."""

    connect_timeout_seconds: float = 1.0
    first_byte_timeout_seconds: float = 60.0
    total_timeout_seconds: float = 600.0
    retry_max: int = 3
    """Attempts for the whole request over all tiers, failovers apart."""
    failover_max: int = 8
    """Failovers for one request; each place is failed over from once."""
    retry_budget: float = 0.1
    """Retries after an answer or a time-out, as a share of requests."""
    retry_floor: int = 20
    """Retries in ten seconds that are always allowed, so that a quiet router may retry at all."""
    wait_max_seconds: float = 2.0
    """Longest a request is held because no place can take it now but one is about to."""
    wait_max_count: int = 4
    affinity_slack_seconds: float = 0.5
    """A session leaves its endpoint when the wait there is longer than the best one's by more than this."""
    spill_seconds: float = 0.2
    """A request leaves its home region when the cost there exceeds the best by this..."""
    spill_share: float = 0.2
    """... or by this share of the best, whichever is more."""
    zone_failures: int = 2
    zone_failure_window_seconds: float = 1.0
    """So many connection failures in a zone within this window send the next attempt to another zone."""
