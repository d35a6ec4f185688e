"""Which operator's hold applies to an endpoint: its own, or that of a GPU, node, zone or region it is in."""

from __future__ import annotations

from fleet.intent import HoldState, Intent
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.gpus import GpuIndex


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


def _strictest(intent: Intent, keys: list[tuple[str, str]]) -> HoldState | None:
    found: HoldState | None = None
    for key in keys:
        hold = intent.holds.get(key)
        if hold is not None:
            if hold.state is HoldState.DRAINING:
                return HoldState.DRAINING
            found = hold.state
    return found
