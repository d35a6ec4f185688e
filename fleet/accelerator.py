"""One GPU or similar device, as an agent saw it. ``None`` is *unknown*, which is never zero."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.value import value


class DeviceHealth(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    """Usable but slower or under watch (throttled, XID to watch)."""
    FAILED = "failed"
    """Present, but must not be used: fatal XID, uncorrectable ECC error."""
    LOST = "lost"
    """Fell off the bus; its UUID is the last one known."""
    UNKNOWN = "unknown"
    """It cannot be read now (permission lost, driver restarting); judge its engines by their own health (case-G05)."""

    @property
    def usable(self) -> bool:
        """False takes out exactly the endpoints on this device."""
        return self not in (DeviceHealth.FAILED, DeviceHealth.LOST)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An NVIDIA driver error report (XID)."""

    code: int
    age_seconds: float


@value
class AcceleratorState:
    """One reading of one device. Identity is ``uuid``; ``index`` is for display only (case-G07)."""

    uuid: str
    index: int | None = None
    parent_uuid: str = ""
    """The physical GPU of a MIG instance; empty for a whole GPU."""
    raw_name: str = ""
    product: str = ""
    """Normalised SKU such as ``h100-sxm-80``; empty when the name is not known to us."""
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
    xids: tuple[XidEvent, ...] = ()
    health: DeviceHealth = DeviceHealth.UNKNOWN
    health_reason: str = ""
    sample_age_seconds: float | None = None
    """Age of the reading when the report was made; None when it never succeeded."""
