"""One regional router, built in one place: the only file of this tier that names implementations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from fleet.clock import Clock
from fleet.intent import Intent
from fleet.report import NodeReport
from regional.settings import RouterSettings


class EmbeddedAgent(Protocol):
    """Watches endpoints that have no agent, and feeds reports about their nodes into the same intake as agents do."""

    def set_intent(self, intent: Intent) -> None:
        """Watch exactly the agentless endpoints of this intent's region from now on."""
        ...

    async def run(self) -> None:
        """Watch until cancelled."""
        ...


class EmbeddedAgentFactory(Protocol):
    """Makes the agent. Tiers do not import one another, so ``headrace`` hands it in."""

    def __call__(
        self, *, incarnation: int, interval_seconds: float, clock: Clock, sink: Callable[[NodeReport], None]
    ) -> EmbeddedAgent:
        """``incarnation`` is the router's own; ``sink`` takes the reports."""
        ...


async def run(
    settings: RouterSettings,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None] | None = None,
    embedded_agent_factory: EmbeddedAgentFactory | None = None,
) -> None:
    """Serve until ``stop`` is set, then finish what runs and release everything. ``ready`` is called once it is serving."""
    raise NotImplementedError
