"""What NVIDIA driver errors (XIDs) mean for a GPU: a table, and a pure judgement over what was seen.

The table follows NVIDIA's XID catalogue as summarised in docs/conventions (GPU and topology naming). Operators change single codes
with ``XID_POLICY``: ``109=out,13=keep,94=out:2/86400,74=nvlink``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.accelerator import DeviceHealth, XidEvent

DAY_SECONDS = 86_400.0


class XidAction(StrEnum):
    KEEP = "keep"
    """The application's fault: restart the model server, keep the GPU."""
    WATCH = "watch"
    """Usable, under watch for a day."""
    OUT = "out"
    """Take the GPU out; it comes back after a reset."""
    NVLINK = "nvlink"
    """Take out every GPU of its NVLink domain on this node."""
    NODE = "node"
    """Take out every GPU of this node: only a reboot helps."""


@dataclass(frozen=True, slots=True)
class XidRule:
    action: XidAction
    after: int = 1
    """Acts at this many occurrences within ``window_seconds``; fewer are watched."""
    window_seconds: float = DAY_SECONDS


def _table() -> dict[int, XidRule]:
    out, watch, keep = XidRule(XidAction.OUT), XidRule(XidAction.WATCH), XidRule(XidAction.KEEP)
    nvlink = XidRule(XidAction.NVLINK)
    rules: dict[int, XidRule] = {}
    rules.update(dict.fromkeys((46, 48, 54, 62, 64, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158), out))
    rules.update(dict.fromkeys((74, *range(144, 151)), nvlink))
    rules[79] = XidRule(XidAction.NODE)
    rules.update(dict.fromkeys((63, 92, 154, 160, 161), watch))
    rules[94] = XidRule(XidAction.OUT, after=2)
    # NVIDIA's catalogue wants a reset for 109 (context-switch timeout), its Kubernetes device plugin ignores it.
    rules[109] = XidRule(XidAction.OUT, after=2, window_seconds=600.0)
    rules.update(dict.fromkeys((8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 68, 69, 70, 71, 72), keep))
    return rules


CONTAINED_ECC = 94
"""An uncorrectable error that the hardware confined to one application; it explains one step of the ECC counter."""


@dataclass(frozen=True, slots=True)
class XidPolicy:
    rules: Mapping[int, XidRule] = field(default_factory=_table)
    unknown: XidRule = XidRule(XidAction.WATCH)
    """A code nobody has told us about is no reason to lose a GPU, nor to look away."""

    def rule(self, code: int) -> XidRule:
        return self.rules.get(code, self.unknown)


@dataclass(frozen=True, slots=True)
class XidVerdict:
    """What the errors of one GPU come to. ``scope`` says how far it reaches; OK has none."""

    health: DeviceHealth
    reason: str = ""
    scope: XidAction = XidAction.KEEP


def judge(xids: Iterable[XidEvent], policy: XidPolicy) -> XidVerdict:
    """The verdict over everything seen on one GPU since it was last reset. Ages decide, never wall time."""
    seen = list(xids)
    worst = XidVerdict(DeviceHealth.OK)
    for code in dict.fromkeys(x.code for x in seen):
        verdict = _judge_code(code, [x.age_seconds for x in seen if x.code == code], policy)
        if _RANK[verdict.scope] > _RANK[worst.scope]:
            worst = verdict
    return worst


_RANK = {a: i for i, a in enumerate((XidAction.KEEP, XidAction.WATCH, XidAction.OUT, XidAction.NVLINK, XidAction.NODE))}


def _judge_code(code: int, ages: list[float], policy: XidPolicy) -> XidVerdict:
    rule = policy.rule(code)
    if rule.action is XidAction.KEEP:
        return XidVerdict(DeviceHealth.OK)
    if rule.action is XidAction.WATCH:
        if min(ages) > rule.window_seconds:
            return XidVerdict(DeviceHealth.OK)
        return XidVerdict(DeviceHealth.DEGRADED, f"XID {code}: under watch", XidAction.WATCH)
    if _reached(ages, rule):
        times = f" {rule.after} times" if rule.after > 1 else ""
        return XidVerdict(DeviceHealth.FAILED, f"XID {code}{times}: {_ADVICE[rule.action]}", rule.action)
    if min(ages) <= rule.window_seconds:
        limit = f"out at {rule.after} in {rule.window_seconds:g} s"
        return XidVerdict(DeviceHealth.DEGRADED, f"XID {code}: under watch, {limit}", XidAction.WATCH)
    return XidVerdict(DeviceHealth.OK)


_ADVICE = {
    XidAction.OUT: "the GPU must be reset or replaced",
    XidAction.NVLINK: "NVLink fault, its whole NVLink domain is out until reset",
    XidAction.NODE: "the node must be rebooted",
}


def _reached(ages: list[float], rule: XidRule) -> bool:
    """True once ``after`` occurrences ever lay within one window: time alone does not mend a GPU that was condemned."""
    ordered = sorted(ages)
    return any(
        ordered[i + rule.after - 1] - ordered[i] <= rule.window_seconds for i in range(len(ordered) - rule.after + 1)
    )


_ITEM = re.compile(r"^(\d{1,4})(?:-(\d{1,4}))?=(keep|watch|out|nvlink|node)(?::(\d{1,3})/(\d{1,7}))?$")


def parse_policy(text: str) -> XidPolicy:
    """The default table with the changes in ``text``. Raises ValueError that names the item at fault."""
    rules = _table()
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        match = _ITEM.match(item)
        if match is None:
            raise ValueError(
                f"XID_POLICY item {item!r}: write CODE[-CODE]=keep|watch|out|nvlink|node, with :TIMES/SECONDS for repetition"
            )
        first, last, action, times, seconds = match.groups()
        rule = XidRule(XidAction(action), int(times or 1), float(seconds or DAY_SECONDS))
        if rule.after < 1 or int(last or first) < int(first):
            raise ValueError(f"XID_POLICY item {item!r}: TIMES is at least 1 and a range goes upwards")
        rules.update(dict.fromkeys(range(int(first), int(last or first) + 1), rule))
    return XidPolicy(rules)
