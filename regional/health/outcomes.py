"""What the outcome of an attempt says about the place it was made at."""

from __future__ import annotations

from enum import StrEnum

from regional.request.steps import Outcome


class Sign(StrEnum):
    GOOD = "good"
    """It answered; even an answer that blames the client shows a live engine."""
    BAD = "bad"
    """It took the request and failed it."""
    UNREACHED = "unreached"
    """The connection failed: also a reason to ask it directly at once."""
    PAUSE = "pause"
    """It is alive and asks to be left alone for a while."""
    CREDENTIALS = "credentials"
    NEUTRAL = "neutral"
    """Says nothing about the place."""


_SIGNS = {
    Outcome.OK: Sign.GOOD,
    Outcome.CLIENT_ERROR: Sign.GOOD,
    Outcome.CONNECT_FAILED: Sign.UNREACHED,
    Outcome.RESET: Sign.UNREACHED,
    Outcome.TIMEOUT_CONNECT: Sign.UNREACHED,
    Outcome.STALE_CONNECTION: Sign.NEUTRAL,
    Outcome.DECLARED_DEAD: Sign.NEUTRAL,
    Outcome.REFUSED_SPILL: Sign.NEUTRAL,
    Outcome.TIMEOUT_FIRST_BYTE: Sign.BAD,
    Outcome.UPSTREAM_ERROR: Sign.BAD,
    Outcome.BAD_RESPONSE: Sign.BAD,
    Outcome.TIMEOUT_IDLE: Sign.BAD,
    Outcome.STREAM_BROKEN: Sign.UNREACHED,
    Outcome.OVERLOADED: Sign.PAUSE,
    Outcome.AUTH_FAILED: Sign.CREDENTIALS,
    Outcome.TIMEOUT_TOTAL: Sign.NEUTRAL,
    Outcome.ABORTED: Sign.NEUTRAL,
    Outcome.REJECTED: Sign.NEUTRAL,
}


def sign_of(outcome: Outcome) -> Sign:
    return _SIGNS[outcome]
