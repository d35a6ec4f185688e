"""What the gateway is given: a core that begins requests, and the life of each."""

from __future__ import annotations

from typing import Protocol

from fleet.request import RequestFacts, Usage
from regional.request.steps import AttemptResult, Outcome, RequestRecord, Step


class RequestLife(Protocol):
    """One request from its headers to its end. Called from one task only; every method is quick and never awaits."""

    def on_headers(self, status: int, now: float) -> None:
        """A usable response head (2xx, or a 4xx to pass on) is in for the present attempt."""
        ...

    def on_first_byte(self, now: float) -> None:
        """The first body byte goes to the client now; from here nothing is tried again."""
        ...

    def note_progress(self, now: float) -> None:
        """Bytes of the answer have passed. Need not be told of every chunk: once in a tenth of a second is plenty."""
        ...

    def on_attempt_failed(self, result: AttemptResult, now: float) -> Step:
        """The present attempt failed before its first byte. Releases what it held and says what to do next."""
        ...

    def on_wait_over(self, now: float) -> Step:
        """A WaitFor has passed."""
        ...

    def on_end(self, outcome: Outcome, usage: Usage, now: float) -> RequestRecord:
        """It is over. Releases everything; a second call returns the same record and releases nothing again."""
        ...


class AttemptRevoker(Protocol):
    """The gateway's side of a running attempt: called when its place is declared dead and no byte has been sent."""

    def __call__(self) -> None: ...


class RequestCore(Protocol):
    """Everything a router decides requests with."""

    def begin(self, facts: RequestFacts, now: float, revoke: AttemptRevoker) -> tuple[RequestLife, Step]:
        """Start a request. ``revoke`` may be called at any later moment while an attempt has no first byte; the gateway then
        breaks that attempt off and reports ``DECLARED_DEAD``."""
        ...
