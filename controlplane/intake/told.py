"""What one router has told this process over its present stream. Plain bookkeeping; nothing here waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.capacity import FleetEvent, InventoryNode, RegionReport, inventory_digest

MAX_NODES = 20_000
"""Of one router: twice a cell of one GPU per node. More is a fault of its sender."""
MAX_EVENTS = 1000
NODE_STATES = frozenset({"ready", "suspect", "degraded", "draining", "dead"})
MAX_UID = 64
MAX_NAME = 256
_MAX_ORDER = (1 << 63) - 1
"""Of an incarnation and a sequence: what a column holds. The wire has one bit more, and whoever reports may use it."""


def valid_order(incarnation: int, sequence: int) -> bool:
    return 0 <= incarnation <= _MAX_ORDER and 0 <= sequence <= _MAX_ORDER


def valid_uid(uid: str) -> bool:
    return 0 < len(uid) <= MAX_UID and "\x00" not in uid


def valid_node(node: InventoryNode) -> bool:
    """False for a node that no table could hold or nobody could read; it is left out, the rest of the report counts."""
    uids = [node.node_uid, *(g.uuid for g in node.gpus), *(e.uid for e in node.endpoints)]
    names = [node.node_name, node.zone, *(f"{node.node_name}.{e.name}" for e in node.endpoints)]
    return (
        all(valid_uid(u) for u in uids)
        and valid_order(node.incarnation, node.sequence)
        and all(0 < len(n) <= MAX_NAME and "\x00" not in n for n in names)
        and node.state in NODE_STATES
    )


@dataclass(slots=True)
class Told:
    """The inventory as told, for its digest, and what still has to be written down and acknowledged."""

    order: tuple[int, int] = (0, -1)
    nodes: dict[str, InventoryNode] = field(default_factory=dict)
    events: dict[str, FleetEvent] = field(default_factory=dict)
    """Not yet written, by uid."""
    acknowledged: dict[str, None] = field(default_factory=dict)
    """Written, and not yet told to the router."""

    def take(self, report: RegionReport) -> tuple[list[InventoryNode], list[InventoryNode], bool]:
        """Take in a newer report. Returns nodes that were told, nodes that were taken back, and whether the whole is wanted."""
        self.order = report.order
        if report.inventory_full:
            self.nodes.clear()
        removed = [node for uid in report.inventory_removed if (node := self.nodes.pop(uid, None)) is not None]
        for node in report.inventory:
            self.nodes[node.node_uid] = node
        for event in report.events:
            if len(self.events) < MAX_EVENTS:
                self.events[event.uid] = event
        too_many = len(self.nodes) > MAX_NODES
        if too_many:
            self.nodes.clear()
        wanted = too_many or inventory_digest(self.nodes.values()) != report.inventory_digest
        return list(report.inventory), removed, wanted

    def written(self, uids: Iterable[str]) -> None:
        """Events are safe now."""
        for uid in uids:
            self.events.pop(uid, None)
            self.acknowledged[uid] = None

    def acknowledge(self) -> tuple[str, ...]:
        """Events to acknowledge with the next directive. The router sends again what it does not hear back."""
        uids = tuple(self.acknowledged)
        self.acknowledged.clear()
        return uids
