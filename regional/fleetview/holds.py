"""Which operator's hold applies to an endpoint: its own, or that of a GPU, node, zone or region it is in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet.intent import HoldState, Intent
from regional.fleetview.changes import Changes
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.gpus import GpuIndex
from regional.fleetview.node import Node


def node_hold(node_uid: str, zone: str, intent: Intent, region: str) -> HoldState | None:
    """The strictest hold on a node, its zone or its region. Targets are uids, so a re-joined node stays held."""
    keys = [("node", node_uid)]
    if zone in intent.zones:
        keys.append(("zone", intent.zones[zone].uid))
    if region in intent.regions:
        keys.append(("region", intent.regions[region].uid))
    return _strictest(intent, keys)


def hold_of(endpoint: Endpoint, intent: Intent, region: str, gpus: GpuIndex) -> HoldState | None:
    """The strictest hold that reaches the endpoint; a hold on a GPU reaches its MIG instances."""
    if not intent.holds:
        return None
    keys = [("endpoint", endpoint.uid)]
    for uuid in endpoint.gpu_uuids:
        keys.append(("gpu", uuid))
        state = gpus.state(uuid)
        if state is not None:
            if state.parent_uuid:
                keys.append(("gpu", state.parent_uuid))
            owner = gpus.owner(uuid)
            if owner is not None and owner is not endpoint.node:
                keys.append(("node", owner.uid))
    below = _strictest(intent, keys)
    above = node_hold(endpoint.node.uid, endpoint.zone, intent, region)
    return HoldState.DRAINING if HoldState.DRAINING in (below, above) else below or above


def reached(
    changes: Changes,
    intents: tuple[Intent, Intent],
    nodes: Mapping[str, Node],
    endpoints: Mapping[str, Endpoint],
    gpus: GpuIndex,
) -> Iterator[Endpoint]:
    """Endpoints that holds may reach otherwise than before the change from the first intent to the second."""
    zones: set[str] = set(changes.zones)
    everywhere = changes.own_region
    for kind, target in changes.holds:
        match kind:
            case "endpoint" if target in endpoints:
                yield endpoints[target]
            case "node" if target in nodes:
                yield from nodes[target].endpoints.values()
                yield from gpus.users_of(nodes[target])
            case "gpu":
                yield from gpus.users_within(target)
            case "zone":
                zones.update(z.name for i in intents for z in i.zones.values() if z.uid == target)
            case "region":
                everywhere = True
            case _:
                pass  # of something that is not here
    if everywhere or zones:
        yield from [e for e in endpoints.values() if everywhere or e.zone in zones]


def _strictest(intent: Intent, keys: list[tuple[str, str]]) -> HoldState | None:
    found: HoldState | None = None
    for key in keys:
        hold = intent.holds.get(key)
        if hold is not None:
            if hold.state is HoldState.DRAINING:
                return HoldState.DRAINING
            found = hold.state
    return found
