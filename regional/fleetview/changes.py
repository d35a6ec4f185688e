"""What differs between two intents, or two reports of a node, as far as the live view is concerned.

So a change of one object costs its own size, and a report in which only loads differ next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fleet.accelerator import AcceleratorState
from fleet.endpoint import EndpointReport
from fleet.intent import Intent

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def changed(before: Mapping[_Key, _Value], after: Mapping[_Key, _Value]) -> dict[_Key, None]:
    """Keys that came, went or mean something else now, in a stable order. Nearly all values are the very same objects."""
    if before is after:
        return {}
    found = {key: None for key, new in after.items() if (old := before.get(key)) is not new and old != new}
    found.update((key, None) for key in before if key not in after)
    return found


def filtered_otherwise(before: Intent, after: Intent) -> bool:
    """Whether requests may be kept off other endpoints than before: by place, or by how long a context their model has."""
    return before.zones != after.zones or before.regions != after.regions or before.models != after.models


@dataclass(frozen=True, slots=True)
class Changes:
    """Names and uids; what depends on a changed zone or node is in ``nodes`` and ``endpoints`` too."""

    zones: dict[str, None]
    nodes: dict[str, None]
    """By name."""
    endpoints: dict[str, None]
    """Declared ones, by uid."""
    model_names: dict[str, None]
    """Names and aliases of models that came, went or lead elsewhere."""
    holds: dict[tuple[str, str], None]
    own_region: bool
    """Holds on the region apply to another uid."""

    @classmethod
    def between(cls, before: Intent, after: Intent, region: str) -> Changes:
        zones = changed(before.zones, after.zones)
        nodes = changed(before.nodes, after.nodes)
        if zones:
            for intent in (before, after):
                nodes.update((name, None) for name, node in intent.nodes.items() if node.zone in zones)
        endpoints = changed(before.endpoints, after.endpoints)
        if nodes:
            endpoints.update((uid, None) for uid, spec in after.endpoints.items() if spec.node in nodes)
        names = changed(before.aliases, after.aliases)
        names.update(_came_or_went(before.models, after.models))
        was, now = before.regions.get(region), after.regions.get(region)
        own_region = (None if was is None else was.uid) != (None if now is None else now.uid)
        return cls(zones, nodes, endpoints, names, changed(before.holds, after.holds), own_region)


def _came_or_went(before: Iterable[str], after: Iterable[str]) -> dict[str, None]:
    was, now = set(before), set(after)
    return dict.fromkeys(sorted(was ^ now))


def devices_changed(before: dict[str, AcceleratorState], after: dict[str, AcceleratorState]) -> bool:
    """Whether anything about devices differs that endpoints depend on; readings alone do not count."""
    if before.keys() != after.keys():
        return True
    for uuid, old in before.items():
        new = after[uuid]
        if old.health is not new.health or old.product != new.product or old.parent_uuid != new.parent_uuid:
            return True
        if old.throttle_reasons != new.throttle_reasons or (
            new.throttle_reasons and old.sm_clock_mhz != new.sm_clock_mhz
        ):
            return True
    return False


def same_but_load(before: EndpointReport, now: EndpointReport) -> bool:
    """Whether two reports of an endpoint differ in its load only: so it is with nearly all of them."""
    return (
        before.phase is now.phase
        and before.engine_incarnation == now.engine_incarnation
        and before.auth_failed is now.auth_failed
        and before.url == now.url
        and before.models == now.models
        and before.gpu_uuids == now.gpu_uuids
        and before.gpus_known is now.gpus_known
        and before.max_inflight == now.max_inflight
        and before.tensor_parallel == now.tensor_parallel
        and before.kv_tokens == now.kv_tokens
        and before.context_tokens == now.context_tokens
        and before.api_key == now.api_key
        and before.name == now.name
        and before.kind is now.kind
    )
