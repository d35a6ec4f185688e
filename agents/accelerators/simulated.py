"""Devices that exist only here, with faults that look like those of hardware. For the demo, tests and machines without GPUs.

devices = SimulatedDevices("4xh100-sxm-80,4xa100-sxm-80", node="eu-west-a-1")
devices.inject_xid(devices.uuids[0], 79)
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agents.accelerators.base import DeviceReading, DeviceSample, XidRecord
from agents.products import PRODUCTS, Product
from fleet.clock import Clock, SystemClock
from fleet.errors import FieldError, InvalidInput

_NAMESPACE = uuid.UUID("6f0f3c54-9d0a-5c0e-8a53-6a9c0a4d2a11")
_ITEM = re.compile(r"^(\d{1,3})x([a-z0-9-]+)$")
MAX_DEVICES = 64
MAX_EVENTS = 256
_FELL_OFF_THE_BUS = 79
_ECC_CODES = frozenset({48, 95})


@dataclass(slots=True)
class _Gpu:
    product: Product
    uuid: str
    index: int
    utilisation: float = 0.0
    memory_used_mib: int = 0
    lost: bool = False
    ecc_uncorrected: int = 0
    throttle_reasons: tuple[str, ...] = ()
    stuck_at: float | None = None
    """Monotonic time at which it stopped answering."""


class SimulatedDevices:
    """Source of made-up readings. See ``Devices`` for the contract; the rest is the operator of the simulation."""

    def __init__(self, description: str, *, node: str = "", clock: Clock | None = None) -> None:
        """``description`` is ``4xh100-sxm-80,4xa100-sxm-80``. The same description on the same ``node`` gives the same UUIDs.

        Raises InvalidInput for a product nobody knows.
        """
        self._clock = clock or SystemClock()
        self._gpus = {g.uuid: g for g in _gpus(description, node)}
        self._xids: deque[XidRecord] = deque(maxlen=MAX_EVENTS)
        self._resets: deque[tuple[str, float]] = deque(maxlen=MAX_EVENTS)
        self._serial = 0
        self._driver_error = ""
        self._driver_failed_at: float | None = None
        self._on_change: Callable[[], None] | None = None

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs by index."""
        return tuple(self._gpus)

    def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def latest(self) -> DeviceReading:
        now = self._clock.monotonic()
        samples = tuple(self._sample(g, now) for g in self._gpus.values())
        return DeviceReading(samples, self._driver_error, tuple(self._xids), tuple(self._resets))

    async def aclose(self) -> None:
        self._on_change = None

    # What happens to the hardware. All raise KeyError for a UUID that is not here.

    def set_load(self, uuid: str, *, utilisation: float, memory_used_mib: int | None = None) -> None:
        """What the engines on a device do to it; ``utilisation`` 0 to 1."""
        gpu = self._gpus[uuid]
        gpu.utilisation = min(max(utilisation, 0.0), 1.0)
        if memory_used_mib is not None:
            gpu.memory_used_mib = min(max(memory_used_mib, 0), gpu.product.memory_mib)

    def inject_xid(self, uuid: str, code: int) -> None:
        """The driver reports an error. 79 takes the device off the bus, 48 and 95 count an uncorrectable ECC error."""
        gpu = self._gpus[uuid]
        self._serial += 1
        self._xids.append(XidRecord(uuid, code, self._clock.monotonic(), self._serial))
        if code == _FELL_OFF_THE_BUS:
            gpu.lost = True
        if code in _ECC_CODES:
            gpu.ecc_uncorrected += 1
        self._changed()

    def lose(self, uuid: str) -> None:
        """The device answers "GPU is lost" from now on."""
        self._gpus[uuid].lost = True
        self._changed()

    def add_ecc_errors(self, uuid: str, count: int = 1) -> None:
        """Uncorrectable ECC errors are counted, without an error report."""
        self._gpus[uuid].ecc_uncorrected += count
        self._changed()

    def throttle(self, uuid: str, *reasons: str) -> None:
        """Clocks are held down for ``reasons`` (``hw_thermal_slowdown``, ...); none lifts it."""
        self._gpus[uuid].throttle_reasons = reasons
        self._changed()

    def stick(self, uuid: str) -> None:
        """The device's readings stay what they are and grow old."""
        self._gpus[uuid].stuck_at = self._clock.monotonic()
        self._changed()

    def fail_driver(self, message: str) -> None:
        """The driver refuses every call from now on; an empty message ends it."""
        self._driver_error = message
        self._driver_failed_at = self._clock.monotonic() if message else None
        self._changed()

    def recover(self, uuid: str) -> None:
        """The device is reset: every fault of it is gone."""
        gpu = self._gpus[uuid]
        gpu.lost, gpu.ecc_uncorrected, gpu.throttle_reasons, gpu.stuck_at = False, 0, (), None
        self._resets.append((uuid, self._clock.monotonic()))
        self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _sample(self, gpu: _Gpu, now: float) -> DeviceSample:
        product = gpu.product
        busy = gpu.utilisation
        stopped = [t for t in (gpu.stuck_at, self._driver_failed_at) if t is not None]
        clock = product.sm_clock_max_mhz if busy else 345
        return DeviceSample(
            uuid=gpu.uuid,
            taken_at=min(stopped) if stopped else now,
            index=gpu.index,
            raw_name=product.raw_name,
            product=product.sku,
            pci_bus_id=f"00000000:{gpu.index + 1:02X}:00.0",
            memory_total_mib=product.memory_mib,
            memory_used_mib=gpu.memory_used_mib,
            utilisation=busy,
            temperature_celsius=30.0 + 45.0 * busy,
            power_watts=product.power_limit_watts * (0.15 + 0.8 * busy),
            sm_clock_mhz=clock // 2 if gpu.throttle_reasons else clock,
            sm_clock_max_mhz=product.sm_clock_max_mhz,
            throttle_reasons=gpu.throttle_reasons,
            ecc_uncorrected=gpu.ecc_uncorrected,
            lost=gpu.lost,
            error=self._driver_error,
        )


def _gpus(description: str, node: str) -> list[_Gpu]:
    gpus: list[_Gpu] = []
    for item in (part.strip() for part in description.split(",")):
        match = _ITEM.match(item)
        product = PRODUCTS.get(match.group(2)) if match else None
        if match is None or product is None:
            known = ", ".join(sorted(PRODUCTS))
            raise InvalidInput([FieldError("devices", f"{item!r}: write COUNTxPRODUCT with PRODUCT one of {known}")])
        for _ in range(int(match.group(1))):
            index = len(gpus)
            gpus.append(_Gpu(product, f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}", index))
    if len(gpus) > MAX_DEVICES:
        raise InvalidInput([FieldError("devices", f"a node has at most {MAX_DEVICES} simulated devices")])
    return gpus
