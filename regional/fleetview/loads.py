"""How much others have at an endpoint: read by the engine, or told by siblings, whichever is newer."""

from __future__ import annotations

from typing import NamedTuple

from fleet.endpoint import EngineLoad


class OthersLoad(NamedTuple):
    inflight: int
    unread_tokens: float
    waiting: int
    """Known to wait in the engine for capacity, whoever sent them."""


class SiblingWord(NamedTuple):
    """One sibling's word about one endpoint."""

    inflight: int
    unread_tokens: float
    said_at: float


def others_load(
    sample: EngineLoad,
    sampled_at: float | None,
    own_at_sample: int,
    words: list[SiblingWord],
    mean_input_tokens: float,
) -> OthersLoad:
    """What is in flight there that this router did not send.

    A sibling's word counts only when it is newer than the engine's sample, which then holds the sibling's older work anyway.
    What the engine counted beyond our own was sent by others; unknown counts stay unknown and add nothing.
    """
    newer = [w for w in words if sampled_at is None or w.said_at > sampled_at]
    told = sum(w.inflight for w in newer)
    told_unread = sum(w.unread_tokens for w in newer)
    waiting = sample.waiting or 0
    if sampled_at is None or (sample.running is None and sample.waiting is None):
        return OthersLoad(told, told_unread, waiting)
    seen = max(0, (sample.running or 0) + waiting - own_at_sample)
    if newer:
        return OthersLoad(told, told_unread, waiting)  # exact, and later than the sample
    return OthersLoad(seen, min(seen, waiting) * mean_input_tokens, waiting)
