"""From readings to verdicts: which devices may be used. Pure; the history is a value that outlives the process as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agents.accelerators.base import DeviceReading, DeviceSample, XidRecord
from agents.products import shares_nvlink
from agents.xid import CONTAINED_ECC, XidAction, XidPolicy, XidVerdict, judge
from fleet.accelerator import AcceleratorState, DeviceHealth, XidEvent

FORGET_AFTER_SECONDS = 86_400.0
"""A whole GPU that the driver no longer lists is reported lost for this long; then it is taken as removed."""
MAX_XIDS = 256
"""Newest kept, over all devices of a node."""
XIDS_REPORTED = 16
"""Newest reported, per device."""

SLOWED = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"})
"""Throttle reasons that mean trouble; a power cap or an idle clock do not."""


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What is remembered about a node's devices: errors since the last reset, and who was ever seen."""

    xids: tuple[XidRecord, ...] = ()
    resets: Mapping[str, float] = field(default_factory=dict)
    """UUID to the monotonic time of its last reset; older errors no longer count."""
    known: Mapping[str, DeviceSample] = field(default_factory=dict)
    """Last good reading of each whole GPU, so that a lost one still has its name (case-G01)."""

    def after(self, reading: DeviceReading, now: float) -> DeviceHistory:
        """The history with a newer reading taken in."""
        resets = dict(self.resets)
        for uuid, at in reading.resets:
            resets[uuid] = max(at, resets.get(uuid, at))
        merged = dict.fromkeys((*self.xids, *reading.xids))
        xids = tuple(x for x in merged if x.at > resets.get(x.uuid, float("-inf")))
        known = {u: s for u, s in self.known.items() if now - s.taken_at <= FORGET_AFTER_SECONDS}
        for sample in reading.samples:
            if not sample.parent_uuid and not sample.lost and not sample.error:
                known[sample.uuid] = sample
        return DeviceHistory(xids[-MAX_XIDS:], resets, known)

    def cleared(self, uuid: str, now: float) -> DeviceHistory:
        """The history after an operator has said that ``uuid`` was reset."""
        return DeviceHistory(tuple(x for x in self.xids if x.uuid != uuid), {**self.resets, uuid: now}, self.known)

    def dump(self, now: float, wall: float, boot_id: str) -> dict[str, Any]:
        """As JSON. Times become wall times, since monotonic ones mean nothing to the next process."""
        return {
            "boot_id": boot_id,
            "xids": [{"uuid": x.uuid, "code": x.code, "wall": wall - (now - x.at)} for x in self.xids],
            "known": [
                {
                    "uuid": s.uuid,
                    "index": s.index,
                    "raw_name": s.raw_name,
                    "product": s.product,
                    "pci_bus_id": s.pci_bus_id,
                    "memory_total_mib": s.memory_total_mib,
                    "wall": wall - (now - s.taken_at),
                }
                for s in self.known.values()
            ],
        }

    @classmethod
    def load(cls, document: object, now: float, wall: float, boot_id: str) -> DeviceHistory:
        """From JSON of an earlier process; what is damaged is left out. Errors from before a reboot are gone with it."""
        if not isinstance(document, dict):
            return cls()

        def when(item: dict[str, Any]) -> float:
            return now - min(max(0.0, wall - float(item["wall"])), 10 * FORGET_AFTER_SECONDS)

        xids: list[XidRecord] = []
        known: dict[str, DeviceSample] = {}

        def items(name: str) -> list[Any]:
            found = document.get(name)
            return found if isinstance(found, list) else []

        same_boot = bool(boot_id) and document.get("boot_id") == boot_id
        for serial, item in enumerate(items("xids") if same_boot else ()):
            try:
                xids.append(XidRecord(str(item["uuid"]), int(item["code"]), when(item), -1 - serial))
            except (KeyError, TypeError, ValueError):
                continue
        for item in items("known"):
            try:
                memory = item["memory_total_mib"]
                known[str(item["uuid"])] = DeviceSample(
                    str(item["uuid"]),
                    when(item),
                    item["index"] if isinstance(item["index"], int) else None,
                    raw_name=str(item["raw_name"]),
                    product=str(item["product"]),
                    pci_bus_id=str(item["pci_bus_id"]),
                    memory_total_mib=memory if isinstance(memory, int) else None,
                )
            except (KeyError, TypeError, ValueError):
                continue
        return cls(tuple(xids[-MAX_XIDS:]), {}, known)


def judge_devices(
    reading: DeviceReading, history: DeviceHistory, policy: XidPolicy, now: float, stale_after_seconds: float
) -> tuple[AcceleratorState, ...]:
    """Every device of the node with its verdict; ``history`` already contains ``reading``.

    LOST and FAILED beat UNKNOWN, which beats DEGRADED: that a driver does not answer mends nothing, and hides nothing.
    """
    samples = list(reading.samples)
    present = {s.uuid for s in samples}
    for uuid, last in history.known.items():
        if uuid not in present:
            # With no whole answer from the driver nobody can say that a device is gone, only that it cannot be seen.
            silent = bool(reading.error) and not any(not s.parent_uuid and not s.error for s in samples)
            samples.append(replace(last, lost=not silent, error=reading.error if silent else ""))

    verdicts = {s.uuid: judge(_events(history, s.uuid, now), policy) for s in samples if not s.parent_uuid}
    products = {s.uuid: s.product for s in samples}
    node_fault = _worst(verdicts, XidAction.NODE)
    nvlink_fault = _worst(verdicts, XidAction.NVLINK)

    states: dict[str, AcceleratorState] = {}
    for sample in samples:
        if sample.parent_uuid:
            continue
        verdict = verdicts[sample.uuid]
        if node_fault and sample.uuid != node_fault[0]:
            verdict = XidVerdict(DeviceHealth.FAILED, f"{node_fault[1]} (seen on {node_fault[0]})", XidAction.NODE)
        elif nvlink_fault and sample.uuid != nvlink_fault[0] and _same_domain(products, sample.uuid, nvlink_fault[0]):
            verdict = XidVerdict(
                DeviceHealth.FAILED, f"{nvlink_fault[1]} (seen on {nvlink_fault[0]})", XidAction.NVLINK
            )
        health, reason = _health(sample, verdict, history, now, stale_after_seconds)
        states[sample.uuid] = _state(sample, health, reason, _events(history, sample.uuid, now), now)
    for sample in samples:
        if not sample.parent_uuid:
            continue
        health, reason = _health(sample, XidVerdict(DeviceHealth.OK), history, now, stale_after_seconds)
        parent = states.get(sample.parent_uuid)
        if parent is not None and _passes_down(parent.health, health):
            health, reason = parent.health, f"parent {parent.uuid}: {parent.health_reason}"
        states[sample.uuid] = _state(sample, health, reason, [], now)
    return tuple(states[s.uuid] for s in samples)


def _passes_down(parent: DeviceHealth, own: DeviceHealth) -> bool:
    """A parent's fault takes its MIG instances; its being slowed slows them."""
    return not parent.usable or (parent is DeviceHealth.DEGRADED and own is DeviceHealth.OK)


def _events(history: DeviceHistory, uuid: str, now: float) -> list[XidEvent]:
    return [XidEvent(x.code, max(0.0, now - x.at)) for x in history.xids if x.uuid == uuid]


def _worst(verdicts: Mapping[str, XidVerdict], scope: XidAction) -> tuple[str, str] | None:
    """(uuid, reason) of a device whose fault reaches as far as ``scope``."""
    return next(((uuid, v.reason) for uuid, v in verdicts.items() if v.scope is scope), None)


def _same_domain(products: Mapping[str, str], uuid: str, other: str) -> bool:
    return products[uuid] == products[other] and shares_nvlink(products[uuid])


def _health(
    sample: DeviceSample, xid: XidVerdict, history: DeviceHistory, now: float, stale_after_seconds: float
) -> tuple[DeviceHealth, str]:
    if sample.lost:
        return DeviceHealth.LOST, sample.error or "the driver says that the GPU is lost"
    if xid.health is DeviceHealth.FAILED:
        return xid.health, xid.reason
    if sample.recovery_action:
        return DeviceHealth.FAILED, f"the driver asks for recovery: {sample.recovery_action}"
    contained = sum(1 for x in history.xids if x.uuid == sample.uuid and x.code == CONTAINED_ECC)
    if sample.ecc_uncorrected is not None and sample.ecc_uncorrected > contained:
        return DeviceHealth.FAILED, f"{sample.ecc_uncorrected} uncorrectable ECC errors since the driver was loaded"
    age = now - sample.taken_at
    if sample.error:
        return DeviceHealth.UNKNOWN, sample.error
    if age > stale_after_seconds:
        return DeviceHealth.UNKNOWN, f"not read for {age:.0f} s"
    slowed = [r for r in sample.throttle_reasons if r in SLOWED]
    if slowed:
        return DeviceHealth.DEGRADED, f"throttled: {', '.join(slowed)}"
    return xid.health, xid.reason


def _state(
    sample: DeviceSample, health: DeviceHealth, reason: str, xids: list[XidEvent], now: float
) -> AcceleratorState:
    return AcceleratorState(
        uuid=sample.uuid,
        index=sample.index,
        parent_uuid=sample.parent_uuid,
        raw_name=sample.raw_name,
        product=sample.product,
        mig_profile=sample.mig_profile,
        pci_bus_id=sample.pci_bus_id,
        memory_total_mib=sample.memory_total_mib,
        memory_used_mib=sample.memory_used_mib,
        utilisation=sample.utilisation,
        temperature_celsius=sample.temperature_celsius,
        power_watts=sample.power_watts,
        sm_clock_mhz=sample.sm_clock_mhz,
        sm_clock_max_mhz=sample.sm_clock_max_mhz,
        throttle_reasons=sample.throttle_reasons,
        ecc_uncorrected=sample.ecc_uncorrected,
        xids=tuple(xids[-XIDS_REPORTED:]),
        health=health,
        health_reason=reason,
        sample_age_seconds=max(0.0, now - sample.taken_at),
    )
