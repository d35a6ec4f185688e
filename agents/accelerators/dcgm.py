"""Devices as a DCGM exporter that already runs on the node shows them. Its XID gauge holds only the last error."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from agents.accelerators.base import DeviceReading, DeviceSample, XidRecord
from agents.engines.exposition import Page, Scanner
from agents.probes import EngineHttp, ProbeError
from agents.products import sku_of
from fleet.clock import Clock, SystemClock

MAX_EVENTS = 256
_FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": "utilisation",
    "DCGM_FI_DEV_FB_USED": "used",
    "DCGM_FI_DEV_FB_FREE": "free",
    "DCGM_FI_DEV_FB_RESERVED": "reserved",
    "DCGM_FI_DEV_GPU_TEMP": "temperature",
    "DCGM_FI_DEV_POWER_USAGE": "power",
    "DCGM_FI_DEV_SM_CLOCK": "clock",
    "DCGM_FI_DEV_XID_ERRORS": "xid",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failure",
}
SCANNER = Scanner(_FIELDS)


class DcgmDevices:
    """Source of readings from a DCGM exporter's page. See ``Devices`` for the contract."""

    def __init__(self, url: str, *, interval_seconds: float = 1.0, clock: Clock | None = None) -> None:
        parts = urlsplit(url)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path if parts.path not in ("", "/") else "/metrics"
        self._interval_seconds = interval_seconds
        self._clock = clock or SystemClock()
        self._http = EngineHttp(timeout_seconds=2.0)
        self._task: asyncio.Task[None] | None = None
        self._reading = DeviceReading(error=DeviceReading.NOT_YET)
        self._last_xid: dict[str, float] = {}
        self._xids: deque[XidRecord] = deque(maxlen=MAX_EVENTS)

    def start(self, on_change: Callable[[], None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(on_change))

    def latest(self) -> DeviceReading:
        return self._reading

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._http.aclose()

    async def _run(self, on_change: Callable[[], None]) -> None:
        while True:
            before = self._reading
            self._reading = await self._read()
            if self._reading.error != before.error or self._reading.xids != before.xids:
                on_change()
            await asyncio.sleep(self._interval_seconds)

    async def _read(self) -> DeviceReading:
        try:
            answer = await self._http.get(self._base, self._path)
            error = "" if answer.ok else f"the DCGM exporter answers HTTP {answer.status}"
        except ProbeError as failure:
            error = f"the DCGM exporter does not answer: {failure}"
        if error:
            stale = tuple(replace(s, error=error) for s in self._reading.samples)
            return replace(self._reading, samples=stale, error=error)
        now = self._clock.monotonic()
        samples = samples_of(SCANNER.scan(answer.body), now)
        for sample, xid in samples:
            # The first value may be days old and counts only when it is new; a cleared gauge (0) is no error.
            if sample.uuid in self._last_xid and xid not in (None, 0.0, self._last_xid[sample.uuid]):
                self._xids.append(XidRecord(sample.uuid, int(xid or 0), now, len(self._xids)))
            self._last_xid[sample.uuid] = xid or 0.0
        return DeviceReading(
            tuple(s for s, _ in samples), "" if samples else "the DCGM exporter shows 0 GPUs", tuple(self._xids)
        )


def samples_of(page: Page, now: float) -> list[tuple[DeviceSample, float | None]]:
    """Devices of a page, each with the last XID that it shows (None: not shown)."""
    values: dict[str, dict[str, Any]] = {}
    for family, name in _FIELDS.items():
        for series in page.series(family):
            labels = series.labels()
            gpu, instance = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
            if not gpu or instance:
                continue  # readings of a MIG instance carry its parent's UUID: they say nothing about the GPU
            entry = values.setdefault(gpu, {"labels": labels})
            entry[name] = series.value
    return [_sample(uuid, v, now) for uuid, v in values.items()]


def _sample(uuid: str, v: dict[str, Any], now: float) -> tuple[DeviceSample, float | None]:
    labels = v["labels"]
    used, free = v.get("used"), v.get("free")
    total = round(used + free + v.get("reserved", 0.0)) if used is not None and free is not None else None
    name = labels.get("modelName", "")
    index = labels.get("gpu", "")
    sample = DeviceSample(
        uuid=uuid,
        taken_at=now,
        index=int(index) if index.isdigit() else None,
        raw_name=name,
        product=sku_of(name, total),
        pci_bus_id=labels.get("pci_bus_id", ""),
        memory_total_mib=total,
        memory_used_mib=round(used) if used is not None else None,
        utilisation=min(v["utilisation"], 100.0) / 100 if "utilisation" in v else None,
        temperature_celsius=v.get("temperature"),
        power_watts=v.get("power"),
        sm_clock_mhz=round(v["clock"]) if "clock" in v else None,
        ecc_uncorrected=round(v["ecc"]) if "ecc" in v else None,
        recovery_action="reset" if v.get("remap_failure") else "",
    )
    return sample, v.get("xid")
