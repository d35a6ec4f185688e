"""Judges endpoints by the real requests they were given: ejection, pauses, credentials. Passive health."""

from __future__ import annotations

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.view import FleetView
from regional.health import breaker
from regional.health.actions import Action, Ejected, Readmitted
from regional.health.breaker import BreakerState
from regional.health.outcomes import Sign, sign_of
from regional.health.settings import HealthSettings
from regional.request.steps import AttemptResult


def may_eject(endpoint: Endpoint, share: float) -> bool:
    """Whether the caps of all its pools allow one more ejection: a share of the members, one at least, never the only one."""
    for seat in endpoint.seats:
        members = seat.pool.members.values()
        ejected = sum(m.endpoint.breaker.state is not BreakerState.CLOSED for m in members if m is not seat)
        allowed = max(1, int(share * len(members))) if len(members) > 1 else 0
        if ejected >= allowed:
            return False
    return True


class Judge:
    def __init__(self, view: FleetView, settings: HealthSettings) -> None:
        self._view = view
        self._settings = settings
        self._told: list[Action] = []

    def told(self) -> list[Action]:
        """What has happened since the last call."""
        told, self._told = self._told, []
        return told

    def on_outcome(self, endpoint: Endpoint, result: AttemptResult, now: float) -> Sign:
        """One attempt there is over."""
        sign = sign_of(result.outcome)
        if sign is Sign.GOOD:
            self._good(endpoint, now)
            return sign
        match sign:
            case Sign.BAD:
                self._bad(endpoint, now)
            case Sign.UNREACHED:
                endpoint.suspect_until = now + self._settings.suspicion_seconds
                self._bad(endpoint, now)
            case Sign.PAUSE:
                self._pause(endpoint, result, now)
            case Sign.CREDENTIALS:
                endpoint.auth_failed_until = now + self._settings.auth_failed_seconds
                self._tell_ejected(endpoint, "auth_failed", self._settings.auth_failed_seconds)
                self._view.changed(endpoint)
            case _:
                pass  # says nothing about the place
        return sign

    def on_answer(self, endpoint: Endpoint, now: float) -> None:
        """The first byte of an answer is in: whatever its watcher says, it is alive."""
        endpoint.last_ok_at = now
        if endpoint.silent or endpoint.suspect_until > now or endpoint.dead:
            endpoint.silent = False
            endpoint.suspect_until = 0.0
            endpoint.dead = False
            self._view.changed(endpoint)

    def on_hang(self, endpoint: Endpoint, now: float) -> bool:
        """Work in flight, probes answered, no progress: eject if the cap allows. True when it did."""
        s = self._settings
        if endpoint.breaker.state is BreakerState.OPEN or not may_eject(endpoint, s.ejection_share):
            return False
        breaker.open_for(endpoint.breaker, now, s.ejection_seconds, s.ejection_max_seconds)
        self._tell_ejected(endpoint, "hang", endpoint.breaker.until - now)
        return True

    def tick(self, now: float) -> None:
        """Ejections whose time is up go on trial."""
        for endpoint in list(self._view.timed.values()):
            if breaker.on_tick(endpoint.breaker, now):
                self._view.changed(endpoint)

    def _good(self, endpoint: Endpoint, now: float) -> None:
        self.on_answer(endpoint, now)
        b = endpoint.breaker
        if b.state is BreakerState.CLOSED:
            b.failures = 0
            return
        if breaker.on_success(b, now, self._settings.half_open_successes):
            endpoint.slow_start_from = now
            self._told.append(Readmitted(endpoint.uid, endpoint.name))
        self._view.changed(endpoint)

    def _bad(self, endpoint: Endpoint, now: float) -> None:
        s = self._settings
        on_trial = endpoint.breaker.state is BreakerState.HALF_OPEN
        ejected = breaker.on_failure(
            endpoint.breaker,
            now,
            s.consecutive_failures,
            # Counted only when it matters: the cap looks at whole pools.
            endpoint.breaker.failures + 1 >= s.consecutive_failures and may_eject(endpoint, s.ejection_share),
            s.ejection_seconds,
            s.ejection_max_seconds,
        )
        if ejected:
            reason = "half_open_failure" if on_trial else "consecutive_failures"
            self._tell_ejected(endpoint, reason, endpoint.breaker.until - now)
        self._view.changed(endpoint)

    def _pause(self, endpoint: Endpoint, result: AttemptResult, now: float) -> None:
        s = self._settings
        asked = result.retry_after_seconds
        seconds = s.ban_seconds if asked is None else min(max(asked, 0.0), s.ban_max_seconds)
        if seconds <= 0:
            return
        endpoint.banned_until = max(endpoint.banned_until, now + seconds)
        self._tell_ejected(endpoint, "retry_after", seconds)
        self._view.changed(endpoint)

    def _tell_ejected(self, endpoint: Endpoint, reason: str, seconds: float) -> None:
        self._told.append(Ejected(endpoint.uid, endpoint.name, reason, seconds))
