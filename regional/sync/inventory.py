"""What of the inventory goes into the next region report: all of it when asked for, else what matters of what changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.capacity import InventoryNode, inventory_digest

REFRESH_SECONDS = 5.0
"""Readings (temperatures, loads) of a node go up at most this often; a change of state goes up with the next report."""
MAX_BYTES_HINT_NODES = 500
"""Nodes in one report, so that it stays far below the message limit; the rest goes with the next."""


@dataclass(frozen=True, slots=True)
class InventoryPart:
    full: bool
    nodes: tuple[InventoryNode, ...]
    removed: tuple[str, ...]
    digest: bytes
    """Of the whole as the receiver holds it after this part."""


@dataclass(slots=True)
class InventoryTelling:
    """Remembers what has been told over the present stream."""

    _told: dict[str, tuple[float, InventoryNode]] = field(default_factory=dict)
    _full_wanted: bool = True

    def start_over(self) -> None:
        """The receiver knows nothing, or not what we think: the next part starts a new whole."""
        self._full_wanted = True

    def part(self, nodes: Iterable[InventoryNode], now: float) -> InventoryPart:
        """The next part, taken as told."""
        full = self._full_wanted
        if full:
            self._told.clear()
            self._full_wanted = False
        current = {node.node_uid: node for node in nodes}
        removed = tuple(uid for uid in self._told if uid not in current)
        for uid in removed:
            del self._told[uid]
        due = [node for uid, node in current.items() if self._due(uid, node, now)][:MAX_BYTES_HINT_NODES]
        for node in due:
            self._told[node.node_uid] = (now, node)
        return InventoryPart(full, tuple(due), removed, inventory_digest(node for _, node in self._told.values()))

    def _due(self, uid: str, node: InventoryNode, now: float) -> bool:
        told = self._told.get(uid)
        if told is None:
            return True
        at, before = told
        return _essence(before) != _essence(node) or (now - at >= REFRESH_SECONDS and before != node)


def _essence(node: InventoryNode) -> object:
    """What operators act on: never readings, ages or sequences, which differ every time."""
    return (
        node.node_name,
        node.zone,
        node.incarnation,
        node.state,
        node.device_error,
        tuple((g.uuid, g.product, g.health, g.health_reason, g.throttle_reasons) for g in node.gpus),
        tuple((e.uid, e.url, e.phase, e.reason, e.models, e.gpu_uuids, e.auth_failed) for e in node.endpoints),
    )
