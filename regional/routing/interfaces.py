"""The whole extension surface of routing: filters and policies."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.pool import Bools, Pool
from regional.routing.asked import Asked
from regional.routing.candidates import Candidates
from regional.routing.chance import Chance


class StandingFilter(Protocol):
    """Judges an endpoint by itself. Called when something about the endpoint changes, and now and then."""

    name: str

    def tier(self, endpoint: Endpoint, now: float) -> float:
        """One of ``fleetview.standing``: ``OPEN`` lets it pass, ``OUT`` is never chosen."""
        ...


class RequestFilter(Protocol):
    """Judges a pool for one request."""

    name: str

    def removes(self, pool: Pool, asked: Asked) -> Bools | None:
        """True at the positions that may not serve this request; None when all may. Not to be changed by the caller."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Chooses among the endpoints of one zone. One instance per pool and policy resource; it may keep its own state.

    The class also has ``Parameters``, a frozen dataclass with a default for each field, and takes one as its only argument.
    The registry builds it from the policy resource and refuses names and types that it does not have.
    """

    name: ClassVar[str]
    intent: ClassVar[str]
    """One line for people: when to choose it."""

    def choose(self, candidates: Candidates, rng: Chance) -> int:
        """One of ``candidates.eligible()``; there is at least one."""
        ...
