"""The retry budget: retries after an answer or a time-out as a share of requests, so that failing engines meet no storm."""

from __future__ import annotations

BUCKETS = 10
BUCKET_SECONDS = 1.0


class RetryBudget:
    """Counts over a sliding window of ten seconds."""

    def __init__(self, share: float, floor: int) -> None:
        self._share = share
        self._floor = floor
        self._requests = [0] * BUCKETS
        self._retries = [0] * BUCKETS
        self._requests_sum = 0
        self._retries_sum = 0
        self._bucket = 0

    def on_request(self, now: float) -> None:
        """A request has come in."""
        bucket = int(now / BUCKET_SECONDS)
        if bucket != self._bucket:
            self._roll(bucket)
        self._requests[bucket % BUCKETS] += 1
        self._requests_sum += 1

    def take(self, now: float) -> bool:
        """One retry, if the budget has it. A share of nothing allows none at all."""
        if self._share <= 0:
            return False
        bucket = int(now / BUCKET_SECONDS)
        if bucket != self._bucket:
            self._roll(bucket)
        if self._retries_sum + 1 > max(self._floor, self._share * self._requests_sum):
            return False
        self._retries[bucket % BUCKETS] += 1
        self._retries_sum += 1
        return True

    def _roll(self, bucket: int) -> None:
        """Empty the buckets that time has passed over."""
        for passed in range(min(BUCKETS, max(1, bucket - self._bucket))):
            at = (bucket - passed) % BUCKETS
            self._requests_sum -= self._requests[at]
            self._retries_sum -= self._retries[at]
            self._requests[at] = self._retries[at] = 0
        self._bucket = bucket
