"""The heartbeat of a router's decisions: ticks, and carrying out what ticks, reports and probes ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fleet.clock import Clock
from regional.health.actions import Action, ProbeEndpoints, ProbeTarget
from regional.intake.probes import Prober
from regional.request.core import Core

TICK_SECONDS = 0.05


class Pulse:
    """Ticks ``core`` and probes what it wants probed; all other actions go to ``tell``, which counts and logs them."""

    def __init__(
        self,
        core: Core,
        prober: Prober,
        clock: Clock,
        tell: Callable[[Action], None],
        on_fault: Callable[[str, BaseException | None], None],
    ) -> None:
        """``on_fault(part, error)`` is told when a probe failed for a fault of ours."""
        self._core = core
        self._prober = prober
        self._clock = clock
        self._tell = tell
        self._on_fault = on_fault
        self._probes: set[asyncio.Task[None]] = set()

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Do what the core asks for. Needs a running loop; never waits."""
        for action in actions:
            if isinstance(action, ProbeEndpoints):
                for target in action.targets:
                    task = asyncio.get_running_loop().create_task(self._probe(target, action))
                    self._probes.add(task)
                    task.add_done_callback(self._probed)
            else:
                self._tell(action)

    async def run(self) -> None:
        """Tick until cancelled; probes under way are then broken off."""
        try:
            due_at = self._clock.monotonic()
            while True:
                now = self._clock.monotonic()
                late_seconds, due_at = max(0.0, now - due_at), now + TICK_SECONDS
                self.carry_out(self._core.tick(now, late_seconds, due_at))
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for task in self._probes:
                task.cancel()
            await asyncio.gather(*self._probes, return_exceptions=True)

    def _probed(self, task: asyncio.Task[None]) -> None:
        self._probes.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fault("probe", error)

    async def _probe(self, target: ProbeTarget, order: ProbeEndpoints) -> None:
        outcome = await self._prober.ask(target, order)
        self.carry_out(self._core.on_probe(target.endpoint_uid, outcome, self._clock.monotonic()))
