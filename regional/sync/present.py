"""The intent in use: one value, replaced whole, and whoever must know when it is."""

from __future__ import annotations

from collections.abc import Callable

from fleet.intent import Intent


class PresentIntent:
    """Called, it gives the intent in force; a new object means that it has changed."""

    def __init__(self, region: str) -> None:
        self._intent = Intent(region=region)
        self._listeners: list[Callable[[Intent], None]] = []

    def __call__(self) -> Intent:
        return self._intent

    def subscribe(self, listener: Callable[[Intent], None]) -> None:
        """Call ``listener`` with each new intent, in the order of subscription."""
        self._listeners.append(listener)

    def replace(self, intent: Intent) -> None:
        """Raises ExceptionGroup when listeners failed; all others have heard of it, and doing it again is harmless."""
        self._intent = intent
        failed: list[Exception] = []
        for listener in self._listeners:
            try:
                listener(intent)
            except Exception as error:  # noqa: BLE001  # of any kind: told by whoever calls
                failed.append(error)
        if failed:
            raise ExceptionGroup("parts of the router could not take the intent in", failed)
