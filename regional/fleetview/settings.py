"""How long what was seen counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """Durations of the live view, in seconds."""

    sibling_ttl_seconds: float = 1.0
    """A sibling router's word about its load counts this long."""
    forget_after_seconds: float = 86_400.0
    """Endpoints that an agent reported vanish this long after it fell silent."""
    fresh_sample_seconds: float = 1.0
    """An engine sample up to this old is taken at its word; older ones widen the estimate."""
    peer_down_after_seconds: float = 3.0
    """A region without a live probe for this long is down."""
    observed_fresh_seconds: float = 5.0
    """Aggregates of other regions older than this widen the estimate."""
    slow_start_seconds: float = 5.0
    """How long an endpoint that is new or came back takes only a few requests at once."""
    ban_max_seconds: float = 60.0
    """Longest pause that a sibling's word can impose."""
    lease_min_seconds: float = 1.2
    """Shortest lease; a node that reports more rarely has ``lease_intervals`` of its intervals."""
    lease_intervals: float = 3.0

    def lease_seconds(self, interval_seconds: float) -> float:
        return max(self.lease_min_seconds, self.lease_intervals * interval_seconds)
