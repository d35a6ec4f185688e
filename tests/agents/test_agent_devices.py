"""From readings to verdicts: the XID table, scopes, ECC, MIG, history over restarts and reboots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.accelerators.base import DeviceReading, DeviceSample, XidRecord
from agents.devicehealth import DeviceHistory, judge_devices
from agents.products import PRODUCTS, sku_of
from agents.xid import XidAction, judge, parse_policy
from fleet.accelerator import AcceleratorState, DeviceHealth, XidEvent

POLICY = parse_policy("")
OUT_AT_ONCE = (46, 48, 54, 62, 64, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158)
NVLINK = (74, *range(144, 151))
KEPT = (8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 68, 69, 70, 71, 72)
WATCHED = (63, 92, 154, 160, 161, 7777)


@pytest.mark.parametrize("code", OUT_AT_ONCE)
def test_rel_r27_fatal_errors_take_the_gpu_out_at_once(code: int) -> None:
    verdict = judge([XidEvent(code, 0.0)], POLICY)
    assert (verdict.health, verdict.scope) == (DeviceHealth.FAILED, XidAction.OUT)
    assert judge([XidEvent(code, 400_000.0)], POLICY).health is DeviceHealth.FAILED, "time alone mends nothing"


@pytest.mark.parametrize("code", NVLINK)
def test_rel_r27_nvlink_errors_reach_the_whole_domain(code: int) -> None:
    assert judge([XidEvent(code, 0.0)], POLICY).scope is XidAction.NVLINK


@pytest.mark.parametrize("code", KEPT)
def test_rel_r27_application_faults_keep_the_gpu(code: int) -> None:
    assert judge([XidEvent(code, 0.0)] * 20, POLICY).health is DeviceHealth.OK


@pytest.mark.parametrize("code", WATCHED)
def test_rel_r27_others_are_watched_for_a_day(code: int) -> None:
    assert judge([XidEvent(code, 10.0)] * 5, POLICY).health is DeviceHealth.DEGRADED
    assert judge([XidEvent(code, 90_000.0)], POLICY).health is DeviceHealth.OK


@pytest.mark.parametrize(
    ("code", "ages", "health"),
    [
        (94, [5.0], DeviceHealth.DEGRADED),
        (94, [5.0, 80_000.0], DeviceHealth.FAILED),
        (94, [5.0, 90_000.0], DeviceHealth.DEGRADED),
        (94, [90_000.0], DeviceHealth.OK),
        (109, [1.0], DeviceHealth.DEGRADED),
        (109, [1.0, 599.0], DeviceHealth.FAILED),
        (109, [1.0, 700.0], DeviceHealth.DEGRADED),
        (109, [100_000.0, 100_500.0], DeviceHealth.FAILED),
    ],
)
def test_rel_r27_repetition_within_a_window(code: int, ages: list[float], health: DeviceHealth) -> None:
    assert judge([XidEvent(code, a) for a in ages], POLICY).health is health


def test_rel_r27_79_takes_the_node_and_the_worst_error_counts() -> None:
    assert judge([XidEvent(13, 0.0), XidEvent(79, 1.0), XidEvent(48, 2.0)], POLICY).scope is XidAction.NODE


def test_the_policy_can_be_changed() -> None:
    changed = parse_policy("13=out, 48=keep,144-150=watch,94=out:3/60")
    assert judge([XidEvent(13, 0.0)], changed).health is DeviceHealth.FAILED
    assert judge([XidEvent(48, 0.0)], changed).health is DeviceHealth.OK
    assert judge([XidEvent(147, 0.0)], changed).scope is XidAction.WATCH
    assert judge([XidEvent(94, 0.0)] * 2, changed).health is DeviceHealth.DEGRADED
    assert judge([XidEvent(94, 0.0)] * 3, changed).health is DeviceHealth.FAILED
    assert judge([XidEvent(95, 0.0)], changed).health is DeviceHealth.FAILED, "the rest stands"


@pytest.mark.parametrize("text", ["13", "13=boom", "x=out", "13=out:0/5", "20-10=out", "13=out:2", "13=out;14=out"])
def test_a_policy_that_cannot_be_read_names_the_item(text: str) -> None:
    with pytest.raises(ValueError, match="XID_POLICY item"):
        parse_policy(text)


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=lambda p: p.sku)
def test_every_product_is_known_by_its_raw_name(product: object) -> None:
    assert sku_of(product.raw_name, product.memory_mib) == product.sku  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("raw", "mib", "sku"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 40_536, "a100-sxm-40"),
        ("A100-SXM4-80GB", 81_251, "a100-sxm-80"),
        ("NVIDIA A100-SXM4-80GB", None, "a100-sxm-80"),
        ("NVIDIA H100 NVL", 95_830, "h100-nvl-94"),
        ("NVIDIA GeForce RTX 4090", 24_564, ""),
        ("", None, ""),
    ],
)
def test_names_of_drivers_old_and_new(raw: str, mib: int | None, sku: str) -> None:
    assert sku_of(raw, mib) == sku


def gpu(uuid: str, at: float = 100.0, product: str = "h100-sxm-80", **more: object) -> DeviceSample:
    return DeviceSample(uuid, at, product=product, **more)  # type: ignore[arg-type]


def judged(
    reading: DeviceReading, now: float = 100.0, history: DeviceHistory | None = None
) -> dict[str, AcceleratorState]:
    history = (history or DeviceHistory()).after(reading, now)
    return {d.uuid: d for d in judge_devices(reading, history, POLICY, now, 2.0)}


def test_one_gpus_fault_leaves_the_others_alone() -> None:
    reading = DeviceReading((gpu("a"), gpu("b")), xids=(XidRecord("a", 48, 99.0),))
    found = judged(reading)
    assert found["a"].health is DeviceHealth.FAILED
    assert "XID 48" in found["a"].health_reason
    assert found["a"].xids == (XidEvent(48, 1.0),)
    assert found["b"].health is DeviceHealth.OK


def test_node_and_nvlink_faults_spread() -> None:
    node = judged(DeviceReading((gpu("a"), gpu("b", product="l4-24")), xids=(XidRecord("a", 79, 99.0),)))
    assert all(not d.health.usable for d in node.values())
    assert "seen on a" in node["b"].health_reason
    domain = judged(DeviceReading((gpu("a"), gpu("b"), gpu("c", product="l4-24")), xids=(XidRecord("a", 74, 99.0),)))
    assert [domain[u].health.usable for u in "abc"] == [False, False, True]
    pcie = judged(
        DeviceReading((gpu("a", product="l4-24"), gpu("b", product="l4-24")), xids=(XidRecord("a", 74, 99.0),))
    )
    assert [pcie[u].health.usable for u in "ab"] == [False, True]


def test_uncorrectable_ecc_errors_but_for_contained_ones() -> None:
    assert judged(DeviceReading((gpu("a", ecc_uncorrected=0),)))["a"].health is DeviceHealth.OK
    assert judged(DeviceReading((gpu("a", ecc_uncorrected=1),)))["a"].health is DeviceHealth.FAILED
    contained = DeviceReading((gpu("a", ecc_uncorrected=1),), xids=(XidRecord("a", 94, 99.0),))
    assert judged(contained)["a"].health is DeviceHealth.DEGRADED, "94 explains the one count, and is watched"
    more = replace(contained, samples=(gpu("a", ecc_uncorrected=2),))
    assert judged(more)["a"].health is DeviceHealth.FAILED


def test_what_the_driver_asks_for_throttling_and_stale_readings() -> None:
    assert judged(DeviceReading((gpu("a", recovery_action="reset"),)))["a"].health is DeviceHealth.FAILED
    assert judged(DeviceReading((gpu("a", throttle_reasons=("hw_slowdown",)),)))["a"].health is DeviceHealth.DEGRADED
    assert judged(DeviceReading((gpu("a", throttle_reasons=("sw_power_cap",)),)))["a"].health is DeviceHealth.OK
    stale = judged(DeviceReading((gpu("a", utilisation=0.9),)), now=110.0)["a"]
    assert (stale.health, stale.sample_age_seconds) == (DeviceHealth.UNKNOWN, 10.0)


def test_a_condemned_gpu_stays_out_while_the_driver_is_silent() -> None:
    reading = DeviceReading((gpu("a", error="unknown error"),), "unknown error", (XidRecord("a", 48, 99.0),))
    assert judged(reading)["a"].health is DeviceHealth.FAILED


def test_a_gpu_that_vanished_is_lost_and_forgotten_after_a_day() -> None:
    history = DeviceHistory().after(DeviceReading((gpu("a"), gpu("b"))), 100.0)
    reading = DeviceReading((gpu("b", at=101.0),))
    assert judged(reading, 101.0, history)["a"].health is DeviceHealth.LOST
    silent = DeviceReading((), "library missing")
    assert judged(silent, 101.0, history)["a"].health is DeviceHealth.UNKNOWN, "nobody can say that it is gone"
    much_later = DeviceReading((gpu("b", at=90_000.0),))
    assert "a" not in judged(much_later, 90_000.0, history)


def test_errors_count_until_the_reset() -> None:
    history = DeviceHistory().after(DeviceReading((gpu("a"),), xids=(XidRecord("a", 48, 99.0),)), 100.0)
    after_reset = DeviceReading((gpu("a", at=201.0),), xids=(XidRecord("a", 48, 99.0),), resets=(("a", 200.0),))
    assert judged(after_reset, 201.0, history)["a"].health is DeviceHealth.OK
    again = replace(after_reset, xids=(XidRecord("a", 48, 99.0), XidRecord("a", 48, 201.0, 1)))
    assert judged(again, 201.0, history)["a"].health is DeviceHealth.FAILED
    cleared = history.cleared("a", 150.0)
    assert judged(DeviceReading((gpu("a", at=151.0),)), 151.0, cleared)["a"].health is DeviceHealth.OK


def test_history_outlives_the_process_but_errors_not_the_boot() -> None:
    reading = DeviceReading((gpu("a", raw_name="NVIDIA H100 80GB HBM3"),), xids=(XidRecord("a", 94, 40.0),))
    kept = DeviceHistory().after(reading, 100.0).dump(100.0, 5000.0, "boot-1")
    # Another process: its monotonic clock starts elsewhere; ten seconds have passed on the wall clock.
    same = DeviceHistory.load(kept, 7.0, 5010.0, "boot-1")
    assert same.xids[0].at == pytest.approx(7.0 - 70.0)
    assert same.known["a"].raw_name == "NVIDIA H100 80GB HBM3"
    second = DeviceReading((gpu("a", at=8.0),), xids=(XidRecord("a", 94, 7.5, 1),))
    assert judged(second, 8.0, same)["a"].health is DeviceHealth.FAILED, "the second in a day, over a restart"
    rebooted = DeviceHistory.load(kept, 7.0, 5010.0, "boot-2")
    assert (rebooted.xids, set(rebooted.known)) == ((), {"a"})


@pytest.mark.parametrize(
    "document", [None, 3, [], {"xids": [1]}, {"known": 5}, {"boot_id": "b", "xids": [{"uuid": "a"}], "known": [{}]}]
)
def test_a_damaged_history_is_no_history(document: object) -> None:
    assert DeviceHistory.load(document, 1.0, 1.0, "b") == DeviceHistory()


def test_case_g13_a_wall_clock_that_jumps_makes_no_negative_age() -> None:
    kept = (
        DeviceHistory()
        .after(DeviceReading((gpu("a"),), xids=(XidRecord("a", 94, 99.0),)), 100.0)
        .dump(100.0, 5000.0, "b")
    )
    earlier = DeviceHistory.load(kept, 50.0, 1400.0, "b")
    assert earlier.xids[0].at <= 50.0
    state = judged(DeviceReading((gpu("a", at=50.0),)), 50.0, earlier)["a"]
    assert state.xids[0].age_seconds >= 0
