"""A lease: a claim to exist that lapses unless renewed. Pure arithmetic on the receiver's monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """Liveness by receive time only; a sender's clock is never compared with ours (case-G13)."""

    renewed_at: float
    """Receiver's monotonic seconds at the last accepted renewal."""
    duration_seconds: float

    def renew(self, now: float) -> Lease:
        """The lease after a renewal at ``now``; never moves back."""
        return Lease(max(now, self.renewed_at), self.duration_seconds)

    def lapsed(self, now: float) -> bool:
        return now - self.renewed_at > self.duration_seconds

    def age_seconds(self, now: float) -> float:
        """Seconds since the last renewal; never negative."""
        return max(0.0, now - self.renewed_at)
