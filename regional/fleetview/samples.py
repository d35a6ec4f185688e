"""What an engine's sample changes in the view: its load, and whether it makes progress."""

from __future__ import annotations

from fleet.endpoint import EngineLoad
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.loads import SiblingWord, others_load


def read_sample(endpoint: Endpoint, load: EngineLoad, now: float) -> bool:
    """Take a sample if it is newer than the one held; True when it was.

    One that never succeeded changes nothing: unknown is not zero.
    """
    if load.sample_age_seconds is None:
        return False
    sampled_at = now - load.sample_age_seconds
    if endpoint.sampled_at is not None and sampled_at <= endpoint.sampled_at + 1e-6:
        return False
    before = endpoint.sample
    endpoint.sample = load
    endpoint.sampled_at = sampled_at
    grown = _grew(before.generated_tokens_total, load.generated_tokens_total)
    if grown or _grew(before.prompt_tokens_total, load.prompt_tokens_total):
        endpoint.progress_at = max(endpoint.progress_at, sampled_at)
    if grown and before.running and load.running:
        endpoint.counters_move = True
    return True


def _grew(before: float | None, after: float | None) -> bool:
    """A counter moved. A smaller value is a restarted engine (case-M05), which is movement too."""
    return before is not None and after is not None and before != after


def refresh_others(endpoint: Endpoint, words: list[SiblingWord], mean_input_tokens: float) -> None:
    """Work out anew what others have in flight there."""
    sampled_at = endpoint.sampled_at
    own_then = endpoint.own_at(sampled_at) if sampled_at is not None and endpoint.history else endpoint.own
    load = others_load(endpoint.sample, sampled_at, own_then, words, mean_input_tokens)
    endpoint.others = load.inflight
    endpoint.others_unread = load.unread_tokens
    endpoint.waiting_excess = load.waiting
