"""One request as routing sees it."""

from __future__ import annotations

from fleet.request import RequestFacts
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.pool import stable_hash

EMBEDDING_OUTPUT_TOKENS = 0.0


_HEX = frozenset("0123456789abcdef")


def session_hash(session: str) -> int:
    """64 bits of a session. Facts carry an HMAC in hex; anything else is hashed first (case-N03)."""
    head = session[:16]
    return int(head, 16) if len(head) == 16 and _HEX.issuperset(head) else stable_hash(session)


class Asked:
    """What filters, costs and policies need to know of a request. Only the request's life changes it."""

    __slots__ = (
        "avoid_zones",
        "facts",
        "input_tokens",
        "output_tokens",
        "session",
        "tried",
        "unrestricted",
    )

    def __init__(self, facts: RequestFacts) -> None:
        self.facts = facts
        self.input_tokens = float(facts.input_tokens)
        self.output_tokens = 0.0
        """Expected; set for the model in question."""
        self.session: int | None = session_hash(facts.session) if facts.session else None
        self.tried: list[Endpoint] = []
        """Endpoints that have failed this request."""
        self.avoid_zones: tuple[str, ...] = ()
        """Zones where connections just failed; last choice for this attempt."""
        self.unrestricted = not facts.residency.allow and facts.allowed_gpu_classes == ("*",)
        """No request filter but context length and exclusion can take anything out."""

    def expect_output(self, mean_output_tokens: float, embedding: bool) -> None:
        """Set ``output_tokens`` from what the model's answers are like, below what the client allows."""
        if embedding:
            self.output_tokens = EMBEDDING_OUTPUT_TOKENS
            return
        limit = self.facts.max_output_tokens
        self.output_tokens = mean_output_tokens if limit is None else min(float(limit), mean_output_tokens)
