"""Whether a process should get work, and why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

DRAINING = "draining"

HEALTH_PATHS: Mapping[str, str] = {
    "/livez": "live",
    "/healthz": "live",
    "/health/liveliness": "live",
    "/readyz": "ready",
    "/health": "ready",
    "/health/readiness": "ready",
    "/startupz": "started",
}
"""Path to probe: the names and the aliases that every HTTP port of headrace answers to."""


class Readiness:
    """Named reasons for not being ready. A process is ready when it has none and is not draining.

    Changed and read from one event loop. Keys named at construction count as not ready until they are set.
    """

    def __init__(self, *required: str) -> None:
        self._failing: dict[str, str] = dict.fromkeys(required, "not yet")
        self._started = not required
        self._draining = False
        self._listeners: list[Callable[[bool], None]] = []

    def set(self, reason_key: str, ok: bool, message: str = "") -> None:
        """State whether the part ``reason_key`` is in order; ``message`` says what is wrong with it."""
        before = self.ready
        if ok:
            self._failing.pop(reason_key, None)
        else:
            self._failing[reason_key] = message or "not ready"
        self._tell(before)

    def draining(self) -> None:
        """From now on not ready, for good: the process is about to stop."""
        before = self.ready
        self._draining = True
        self._tell(before)

    def reasons(self) -> dict[str, str]:
        """What stands in the way, by key; empty when ready."""
        if self._draining:
            return {DRAINING: "the process is stopping", **self._failing}
        return dict(self._failing)

    @property
    def ready(self) -> bool:
        return not self._draining and not self._failing

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def started(self) -> bool:
        """True once the process has been ready for the first time; never false again."""
        return self._started or self.ready

    def subscribe(self, listener: Callable[[bool], None]) -> None:
        """Call ``listener(ready)`` now and whenever readiness flips."""
        self._listeners.append(listener)
        listener(self.ready)

    def probe(self, kind: str) -> tuple[bool, dict[str, str]]:
        """Answer to one of the probes of ``HEALTH_PATHS``: (ok, reasons). A process that can answer is alive."""
        if kind == "live":
            return True, {}
        if kind == "started":
            return self.started, {} if self.started else self.reasons()
        return self.ready, self.reasons()

    def _tell(self, before: bool) -> None:
        after = self.ready
        self._started = self._started or after
        if after != before:
            for listener in self._listeners:
                listener(after)
