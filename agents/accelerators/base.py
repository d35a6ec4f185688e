"""What a source of device readings gives, and the readings themselves. Judging them is ``agents.devicehealth``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One reading of one device, as the source gave it. ``None`` is unknown or unsupported, never zero."""

    uuid: str
    taken_at: float
    """Monotonic seconds of the reading."""
    index: int | None = None
    """For display only (case-G07)."""
    parent_uuid: str = ""
    raw_name: str = ""
    product: str = ""
    mig_profile: str = ""
    pci_bus_id: str = ""
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    utilisation: float | None = None
    """0 to 1."""
    temperature_celsius: float | None = None
    power_watts: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    recovery_action: str = ""
    """What the driver says the device needs: ``reset``, ``reboot``, ``drain``; empty when nothing or not said."""
    pids: tuple[int, ...] | None = None
    """Processes that compute on it, as seen from the driver's pid namespace; None when it does not say."""
    lost: bool = False
    """The driver answered "GPU is lost" (or no longer lists it): everything else is from the last good reading."""
    error: str = ""
    """Why it could not be read now; everything else is from the last good reading."""


@dataclass(frozen=True, slots=True)
class XidRecord:
    """One driver error report. ``uuid`` is the physical GPU."""

    uuid: str
    code: int
    at: float
    """Monotonic seconds."""
    serial: int = 0
    """Tells two reports of one instant apart."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """The newest state of all devices of a node. Immutable; a new one replaces it whole."""

    NOT_YET: ClassVar[str] = "devices have not been read yet"

    samples: tuple[DeviceSample, ...] = ()
    error: str = ""
    """Why devices are missing or stale, with what to do about it; empty when all is well."""
    xids: tuple[XidRecord, ...] = ()
    """All error reports seen since this source started, oldest first; bounded."""
    resets: tuple[tuple[str, float], ...] = ()
    """(uuid, monotonic seconds) of devices that were seen to come back after a reset; bounded."""


class Devices(Protocol):
    """A source of readings. It reads on its own time and never holds up the caller."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin reading. ``on_change`` is called on the event loop when something happened that should be told at once."""
        ...

    def latest(self) -> DeviceReading:
        """The newest reading, at once. How old it is stands in each sample."""
        ...

    async def aclose(self) -> None:
        """Stop reading and let go of the driver; returns within about a second even if the driver hangs."""
        ...
