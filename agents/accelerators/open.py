"""The source of device readings that settings name, and one look through it for ``headrace check``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agents.accelerators.base import DeviceReading, Devices, DeviceSample
from agents.accelerators.dcgm import DcgmDevices
from agents.accelerators.none import NoDevices
from agents.accelerators.nvml import NvmlDevices
from agents.accelerators.simulated import SimulatedDevices
from agents.settings import AgentSettings
from fleet.clock import Clock

FIRST_READING_SECONDS = 5.0


def open_devices(settings: AgentSettings, *, clock: Clock | None = None) -> Devices:
    """A source that has yet to be started."""
    kind, _, rest = settings.devices.partition(":")
    match kind:
        case "nvml":
            return NvmlDevices(interval_seconds=settings.interval_seconds, clock=clock)
        case "dcgm":
            return DcgmDevices(rest, interval_seconds=settings.interval_seconds, clock=clock)
        case "simulated":
            return SimulatedDevices(rest, node=settings.node, clock=clock)
        case _:
            return NoDevices()


@dataclass(frozen=True, slots=True)
class Look:
    """What one look showed."""

    devices: tuple[DeviceSample, ...]
    error: str


class OneLook:
    """A source read once, for people who are not going to watch it."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings

    def read(self) -> Look:
        """The devices, or why there are none. Blocks for at most about five seconds; not for an event loop."""
        reading = asyncio.run(self._first())
        return Look(reading.samples, reading.error)

    async def _first(self) -> DeviceReading:
        devices = open_devices(self._settings)
        happened = asyncio.Event()
        devices.start(happened.set)
        try:
            async with asyncio.timeout(FIRST_READING_SECONDS):
                while self._pending(devices.latest()):
                    happened.clear()
                    await happened.wait()
        except TimeoutError:
            pass  # the reading itself says that there is none yet
        finally:
            reading = devices.latest()
            await devices.aclose()
        return reading

    def _pending(self, reading: DeviceReading) -> bool:
        return not reading.samples and reading.error == DeviceReading.NOT_YET


def open_accelerators(settings: AgentSettings) -> OneLook:
    """For checks: ``open_accelerators(settings).read()``."""
    return OneLook(settings)
