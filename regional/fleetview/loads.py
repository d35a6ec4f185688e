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
    waiting = sample.waiting or 0
    known = sampled_at is not None and (sample.running is not None or sample.waiting is not None)
    seen = max(0, (sample.running or 0) + waiting - own_at_sample) if known else 0
    if not words:
        return OthersLoad(seen, min(seen, waiting) * mean_input_tokens, waiting)
    newer = [w for w in words if sampled_at is None or w.said_at > sampled_at]
    if known and not newer:
        return OthersLoad(seen, min(seen, waiting) * mean_input_tokens, waiting)
    # Exact, and later than the sample.
    return OthersLoad(sum(w.inflight for w in newer), sum(w.unread_tokens for w in newer), waiting)
