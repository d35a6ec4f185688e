"""Runs the scheduler on the event loop. An idle engine has no timer; a busy one wakes when somebody has something to see."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from headrace.simulated_engine.scheduler import ContinuousBatching, Sequence

STREAM_INTERVAL_SECONDS = 0.02
"""Tokens of a stream are handed out at most this often; first and last ones at their very time."""


class Listener(Protocol):
    """Whoever waits for a sequence."""

    streaming: bool

    def progressed(self, sequence: Sequence, tokens: int, at: float, finished: bool) -> None:
        """``tokens`` more since the last call, the last of them at ``at``."""
        ...


class EngineLoop:
    """Drives one :class:`ContinuousBatching` by the loop's clock."""

    def __init__(
        self, scheduler: ContinuousBatching, *, stream_interval_seconds: float = STREAM_INTERVAL_SECONDS
    ) -> None:
        self.scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._interval = stream_interval_seconds
        self._listeners: dict[Sequence, Listener] = {}
        self._streams = 0
        self._last_wake = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def submit(self, sequence: Sequence, listener: Listener) -> None:
        """Queue a sequence; its listener hears of it until it is finished or aborted. Raises ValueError as the scheduler."""
        self.scheduler.submit(sequence, self._loop.time())
        self._listeners[sequence] = listener
        self._streams += listener.streaming
        self._set_timer()

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence that nobody waits for any more. Harmless for a finished one."""
        listener = self._listeners.pop(sequence, None)
        if listener is not None:
            self._streams -= listener.streaming
            self.scheduler.abort(sequence, self._loop.time())
            self._set_timer()

    def advance(self) -> None:
        """Bring the scheduler up to now, and tell listeners."""
        now = self._last_wake = self._loop.time()
        merged: dict[Sequence, tuple[int, float, bool]] = {}
        for progress in self.scheduler.advance(now):
            tokens = merged.get(progress.sequence, (0, 0.0, False))[0]
            merged[progress.sequence] = (tokens + progress.tokens, progress.at, progress.finished)
        for sequence, (tokens, at, finished) in merged.items():
            listener = self._listeners.get(sequence)
            if listener is None:
                continue
            if finished:
                del self._listeners[sequence]
                self._streams -= listener.streaming
            listener.progressed(sequence, tokens, at, finished)
        self._set_timer()

    def set_speed(self, speed: float) -> None:
        self.scheduler.set_speed(speed, self._loop.time())
        self._set_timer()

    def pause(self) -> None:
        self.scheduler.pause(self._loop.time())
        self._set_timer()

    def resume(self) -> None:
        self.scheduler.resume(self._loop.time())
        self._set_timer()

    def close(self) -> None:
        """Stop the clock; nothing more is told to anybody."""
        self._listeners.clear()
        self._streams = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        at = self.scheduler.next_notable()
        if at is not None and self._streams:
            step_end = self.scheduler.next_step_end()
            assert step_end is not None
            at = min(at, max(step_end, self._last_wake + self._interval))
        if at is not None:
            # Loops count in milliseconds: one rounded down would wake too early, again and again.
            at = math.ceil(at * 1000) / 1000
        if self._timer is not None:
            if at == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at is not None:
            self._timer = self._loop.call_at(at, self._wake)

    def _wake(self) -> None:
        self._timer = self._timer_at = None
        self.advance()
