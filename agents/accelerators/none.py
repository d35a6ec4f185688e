"""A node without accelerators, or whose devices are nobody's business: engines are judged by their own health."""

from __future__ import annotations

from collections.abc import Callable

from agents.accelerators.base import DeviceReading


class NoDevices:
    """Source of no readings."""

    def start(self, on_change: Callable[[], None]) -> None:
        pass

    def latest(self) -> DeviceReading:
        return DeviceReading()

    async def aclose(self) -> None:
        pass
