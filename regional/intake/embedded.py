"""What a router needs of an embedded agent. Tiers do not import one another, so ``headrace`` hands one in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fleet.clock import Clock
from fleet.intent import Intent
from fleet.report import NodeReport


class EmbeddedAgent(Protocol):
    """Watches endpoints that have no agent, and feeds reports about their nodes into the same intake as agents do."""

    def set_intent(self, intent: Intent) -> None:
        """Watch exactly the agentless endpoints of this intent's region from now on."""
        ...

    async def run(self) -> None:
        """Watch until cancelled."""
        ...


class EmbeddedAgentFactory(Protocol):
    """Makes the agent."""

    def __call__(
        self, *, incarnation: int, interval_seconds: float, clock: Clock, sink: Callable[[NodeReport], None]
    ) -> EmbeddedAgent:
        """``incarnation`` is the router's own; ``sink`` takes the reports."""
        ...
