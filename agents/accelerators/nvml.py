"""NVIDIA devices through NVML (nvidia-ml-py). One thread of its own makes every driver call.

A driver may take seconds, or never come back: the event loop only ever looks at the newest published reading, whose age shows.
The thread is a daemon that is not waited for when it hangs.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pynvml as nvml

from agents.accelerators.base import DeviceReading, DeviceSample, XidRecord
from agents.devicehealth import FORGET_AFTER_SECONDS
from agents.products import mig_profile_of, sku_of
from fleet.clock import Clock, SystemClock
from fleet.process.logs import get_logger

log = get_logger("agents.accelerators.nvml")

EVENT_WAIT_MS = 100
MAX_EVENTS = 256
LOST_RETRY_SECONDS = 30.0
"""How often the driver is opened anew to see whether a lost GPU is back; events of that moment are missed."""

PERMISSION_HINT = (
    "the driver refuses every call (unknown error): if this agent runs in a container, it has lost access to the "
    "devices; recreate the container"
)

_ABSENT = frozenset(
    {
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_NO_DATA,
        nvml.NVML_ERROR_DEPRECATED,
        nvml.NVML_ERROR_NOT_FOUND,
        nvml.NVML_ERROR_NOT_READY,
    }
)
"""Answers that mean: this reading is not to be had here. It is then unknown, not zero (case-G03)."""
_LOST = frozenset({nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND, nvml.NVML_ERROR_RESET_REQUIRED})

_THROTTLE_NAMES = (
    (nvml.nvmlClocksEventReasonSwPowerCap, "sw_power_cap"),
    (nvml.nvmlClocksEventReasonHwSlowdown, "hw_slowdown"),
    (nvml.nvmlClocksEventReasonSyncBoost, "sync_boost"),
    (nvml.nvmlClocksEventReasonSwThermalSlowdown, "sw_thermal_slowdown"),
    (nvml.nvmlClocksEventReasonHwThermalSlowdown, "hw_thermal_slowdown"),
    (nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hw_power_brake_slowdown"),
)
"""Idle and configured clocks are left out: they are no throttling."""
_RECOVERY = {
    nvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset",
    nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain peer-to-peer",
    nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain and reset",
}


@dataclass(frozen=True, slots=True)
class _Opened:
    """What belongs to one nvmlInit and ends with its nvmlShutdown."""

    at: float
    events: Any
    """Event set, or None when the driver has none."""
    names: dict[int, str]
    """Device handle to UUID, of the devices registered for events."""


class NvmlDevices:
    """Source of readings from the NVIDIA driver. See ``Devices`` for the contract."""

    def __init__(
        self, *, interval_seconds: float = 0.4, retry_seconds: float = 5.0, clock: Clock | None = None
    ) -> None:
        """``retry_seconds`` is how often a driver that is missing, or has no device, is tried again."""
        self._interval_seconds = interval_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._done: asyncio.Event | None = None
        self._reading = DeviceReading(error=DeviceReading.NOT_YET)
        self._busy_since: float | None = None
        """When the driver call that is running began; None between calls."""
        self._xids: deque[XidRecord] = deque(maxlen=MAX_EVENTS)
        self._resets: deque[tuple[str, float]] = deque(maxlen=MAX_EVENTS)
        self._serial = 0
        self._last: dict[str, DeviceSample] = {}
        """Newest sample of each device, good or not. Touched by the thread only."""

    def start(self, on_change: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        self._done = done

        def tell(what: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(what)
            except RuntimeError:
                pass  # the loop is closed: nobody is left to be told

        self._thread = threading.Thread(
            target=self._run, args=(lambda: tell(on_change), lambda: tell(done.set)), name="nvml", daemon=True
        )
        self._thread.start()

    def latest(self) -> DeviceReading:
        since = self._busy_since
        silent = self._clock.monotonic() - since if since is not None else 0.0
        if silent > max(3 * self._interval_seconds, 2.0):
            return replace(self._reading, error=f"the driver has not answered for {silent:.0f} s; readings are stale")
        return self._reading

    async def aclose(self) -> None:
        self._stop.set()
        if self._done is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._done.wait()
            except TimeoutError:
                log.warning("nvml_hangs", hint="a driver call does not return; its thread is left behind")

    # Everything below runs in the thread.

    def _run(self, changed: Callable[[], None], done: Callable[[], None]) -> None:
        opened: _Opened | None = None
        try:
            while not self._stop.is_set():
                started = self._busy_since = self._clock.monotonic()
                if opened is None:
                    opened, error = self._open(started)
                    if opened is None:
                        self._publish(self._stale(error), error, changed)
                        self._pause(self._retry_seconds)
                        continue
                samples, error = self._read_all()
                self._publish(samples, error, changed)
                if self._wants_reopening(opened, samples, error):
                    self._close(opened)
                    opened = None
                    continue
                self._wait(opened, started + self._interval_seconds, changed)
        finally:
            if opened is not None:
                self._close(opened)
            done()

    def _pause(self, seconds: float) -> None:
        self._busy_since = None
        self._stop.wait(seconds)

    def _open(self, now: float) -> tuple[_Opened | None, str]:
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return None, _open_error(error)
        return self._register(now), ""

    def _register(self, now: float) -> _Opened:
        """Ask for XID events of every device that has them. Without, XIDs are not seen and health rests on readings."""
        names: dict[int, str] = {}
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in _handles():
                if handle is None:
                    continue
                try:
                    supported = nvml.nvmlDeviceGetSupportedEventTypes(handle)
                    wanted = nvml.nvmlEventTypeXidCriticalError & supported
                    if wanted:
                        nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                        names[_address(handle)] = nvml.nvmlDeviceGetUUID(handle)
                except nvml.NVMLError:
                    continue  # lost or without events; the others still have theirs
        except nvml.NVMLError as error:
            log.warning("nvml_no_events", reason=str(error))
            return _Opened(now, None, names)
        return _Opened(now, events, names)

    def _close(self, opened: _Opened) -> None:
        try:
            if opened.events is not None:
                nvml.nvmlEventSetFree(opened.events)
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            log.warning("nvml_close", reason=str(error))

    def _wants_reopening(self, opened: _Opened, samples: list[DeviceSample], error: str) -> bool:
        """The driver counts devices when it is opened: what is missing, or refused, is seen again only after opening anew."""
        age = self._clock.monotonic() - opened.at
        if not samples or error == PERMISSION_HINT:
            return age >= self._retry_seconds
        return any(s.lost for s in samples) and age >= LOST_RETRY_SECONDS

    def _read_all(self) -> tuple[list[DeviceSample], str]:
        """Every device, and what is wrong with the node's devices as a whole."""
        now = self._clock.monotonic()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            hint = PERMISSION_HINT if error.value == nvml.NVML_ERROR_UNKNOWN else f"the driver does not answer: {error}"
            return self._stale(hint), hint
        if count == 0:
            return [], "the driver is there but reports 0 GPUs"
        samples: list[DeviceSample] = []
        lost = 0
        failed: dict[int, Any] = {}
        for index in range(count):
            try:
                samples += list(self._read_device(nvml.nvmlDeviceGetHandleByIndex(index), index, now))
            except nvml.NVMLError as error:
                if error.value in _LOST:
                    lost += 1
                else:
                    failed[index] = error
        samples += self._missing(samples, failed, now)
        if failed and len(failed) == count:
            first = next(iter(failed.values()))
            hint = PERMISSION_HINT if first.value == nvml.NVML_ERROR_UNKNOWN else f"no GPU can be read: {first}"
            return [replace(s, error=hint) for s in samples], hint
        lost = max(lost, sum(1 for s in samples if s.lost))
        problems = [f"{lost} GPUs lost"] if lost else []
        problems += [f"GPU with index {index} cannot be read: {error}" for index, error in failed.items()]
        return samples, "; ".join(problems)

    def _missing(self, read: list[DeviceSample], failed: dict[int, Any], now: float) -> list[DeviceSample]:
        """Devices known from before that gave nothing now.

        A vanished MIG instance of a GPU that answers is gone: the layout was changed (case-G03). A vanished GPU is lost, whether
        the driver says so or no longer counts it; a GPU that answers with another error is only not readable.
        """
        present = {s.uuid for s in read}
        missing: list[DeviceSample] = []
        for uuid, last in list(self._last.items()):
            if uuid in present:
                continue
            if (last.parent_uuid and last.parent_uuid in present) or now - last.taken_at > FORGET_AFTER_SECONDS:
                del self._last[uuid]
            elif last.parent_uuid:
                missing.append(replace(last, error="its parent GPU cannot be read"))
            elif last.index in failed:  # indices mean the same as long as the driver stays open
                missing.append(replace(last, error=str(failed[last.index])))
            else:
                missing.append(replace(last, lost=True))
        return missing

    def _read_device(self, handle: Any, index: int, now: float) -> Iterator[DeviceSample]:
        """A GPU and, in MIG mode, its instances. Raises NVMLError when the GPU as a whole does not answer."""
        uuid = nvml.nvmlDeviceGetUUID(handle)
        name = _optional(nvml.nvmlDeviceGetName, handle) or ""
        memory = _memory(handle)
        mig = _optional(nvml.nvmlDeviceGetMigMode, handle)
        in_mig_mode = mig is not None and mig[0] == 1
        rates = None if in_mig_mode else _optional(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = _optional(nvml.nvmlDeviceGetPowerUsage, handle)
        pci = _optional(nvml.nvmlDeviceGetPciInfo, handle)
        gpu = DeviceSample(
            uuid=uuid,
            taken_at=now,
            index=index,
            raw_name=name,
            product=sku_of(name, memory[0] if memory else None),
            pci_bus_id=pci.busId if pci is not None else "",
            memory_total_mib=memory[0] if memory else None,
            memory_used_mib=memory[1] if memory else None,
            utilisation=min(rates.gpu, 100) / 100 if rates is not None else None,
            temperature_celsius=_temperature(handle),
            power_watts=power / 1000 if power is not None else None,
            sm_clock_mhz=_optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=_optional(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            throttle_reasons=_throttle(handle),
            ecc_uncorrected=_optional(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            recovery_action=_recovery(handle),
            pids=_pids(handle),
        )
        yield gpu
        if in_mig_mode:
            yield from _read_instances(handle, gpu, now)

    def _stale(self, error: str) -> list[DeviceSample]:
        """What was last known, marked: nothing of it is sent as fresh (case-G05)."""
        return [replace(s, error=error) for s in self._last.values()]

    def _publish(self, samples: list[DeviceSample], error: str, changed: Callable[[], None]) -> None:
        now = self._clock.monotonic()
        for sample in samples:
            before = self._last.get(sample.uuid)
            if before is not None and before.lost and not sample.lost and not sample.error:
                self._resets.append((sample.uuid, now))
            self._last[sample.uuid] = sample
        old = self._reading
        self._reading = DeviceReading(tuple(samples), error, tuple(self._xids), tuple(self._resets))
        if error != old.error:
            if error:
                log.warning("devices", problem=error, devices=len(samples))
            else:
                log.info("devices_ok", devices=len(samples))
        if error != old.error or [(s.uuid, s.lost) for s in samples] != [(s.uuid, s.lost) for s in old.samples]:
            changed()

    def _wait(self, opened: _Opened, until: float, changed: Callable[[], None]) -> None:
        """Wait for the next reading; XIDs that come in meanwhile are published at once."""
        while not self._stop.is_set():
            left = until - self._clock.monotonic()
            if left <= 0:
                return
            if opened.events is None:
                self._pause(left)
                return
            self._busy_since = self._clock.monotonic()
            try:
                event = nvml.nvmlEventSetWait(opened.events, max(1, min(EVENT_WAIT_MS, round(left * 1000))))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
                self._pause(left)  # the next reading shows what is wrong
                return
            self._take_event(opened, event)
            changed()

    def _take_event(self, opened: _Opened, event: Any) -> None:
        uuid = opened.names.get(_address(event.device)) or _uuid_of(event.device)
        if not uuid or not event.eventType & nvml.nvmlEventTypeXidCriticalError:
            return
        self._serial += 1
        self._xids.append(XidRecord(uuid, int(event.eventData), self._clock.monotonic(), self._serial))
        self._reading = replace(self._reading, xids=tuple(self._xids))
        log.warning("xid", gpu=uuid, code=int(event.eventData))


def _open_error(error: Any) -> str:
    if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "0 GPUs: libnvidia-ml.so.1 cannot be loaded; is the NVIDIA driver installed (and passed into the container)?"
    if error.value == nvml.NVML_ERROR_UNKNOWN:
        return PERMISSION_HINT
    return f"0 GPUs: the driver cannot be opened: {error}"


def _handles() -> Iterator[Any]:
    """Handle of each device, None where one is lost."""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            yield nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError:
            yield None


def _address(handle: Any) -> int:
    """The value of an opaque handle, to compare handles by."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _uuid_of(handle: Any) -> str:
    try:
        return str(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError:
        return ""


def _optional(call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where the driver has none to give. Raises NVMLError when the device itself does not answer."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in _ABSENT:
            return None
        raise


def _memory(handle: Any) -> tuple[int, int] | None:
    """(total, used) in MiB. Version 2 leaves out what the driver keeps for itself; older drivers have only version 1."""
    info = _optional(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if info is None:
        info = _optional(nvml.nvmlDeviceGetMemoryInfo, handle)
    return (info.total >> 20, info.used >> 20) if info is not None else None


def _temperature(handle: Any) -> float | None:
    value = _optional(nvml.nvmlDeviceGetTemperatureV, handle, nvml.NVML_TEMPERATURE_GPU)
    if value is None:
        value = _optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    return float(value) if value is not None else None


def _throttle(handle: Any) -> tuple[str, ...]:
    mask = _optional(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if mask is None:
        mask = _optional(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return tuple(name for bit, name in _THROTTLE_NAMES if mask is not None and mask & bit)


def _recovery(handle: Any) -> str:
    values = _optional(nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return ""
    return _RECOVERY.get(values[0].value.uiVal, "")


def _pids(handle: Any) -> tuple[int, ...] | None:
    processes = _optional(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    return None if processes is None else tuple(p.pid for p in processes)


def _read_instances(handle: Any, parent: DeviceSample, now: float) -> Iterator[DeviceSample]:
    for slot in range(_optional(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if instance is None:
            continue  # an empty slot
        name = _optional(nvml.nvmlDeviceGetName, instance) or ""
        memory = _memory(instance)
        rates = _optional(nvml.nvmlDeviceGetUtilizationRates, instance)
        yield DeviceSample(
            uuid=nvml.nvmlDeviceGetUUID(instance),
            taken_at=now,
            index=slot,
            parent_uuid=parent.uuid,
            raw_name=name or parent.raw_name,
            product=parent.product,
            mig_profile=mig_profile_of(name),
            pci_bus_id=parent.pci_bus_id,
            memory_total_mib=memory[0] if memory else None,
            memory_used_mib=memory[1] if memory else None,
            utilisation=rates.gpu / 100 if rates is not None else None,
            throttle_reasons=parent.throttle_reasons,
            pids=_pids(instance),
        )
