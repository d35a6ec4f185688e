"""Which endpoints stand on which GPU. Losing one takes out exactly those, wherever the rest of them is."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.accelerator import AcceleratorState
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.node import Node, NodeState


class GpuIndex:
    """GPUs by UUID: the node that reports each, and the endpoints that use it."""

    def __init__(self) -> None:
        self._owner: dict[str, Node] = {}
        self._users: dict[str, dict[str, Endpoint]] = {}

    def owner(self, uuid: str) -> Node | None:
        return self._owner.get(uuid)

    def state(self, uuid: str) -> AcceleratorState | None:
        node = self._owner.get(uuid)
        return None if node is None else node.gpus.get(uuid)

    def own(self, node: Node, before: Iterable[str]) -> None:
        """The node's report lists exactly ``node.gpus``; those it listed ``before`` and no longer does are nobody's."""
        for uuid in before:
            if uuid not in node.gpus and self._owner.get(uuid) is node:
                del self._owner[uuid]
        for uuid in node.gpus:
            self._owner[uuid] = node

    def disown(self, node: Node) -> None:
        for uuid in node.gpus:
            if self._owner.get(uuid) is node:
                del self._owner[uuid]

    def use(self, endpoint: Endpoint, uuids: tuple[str, ...]) -> None:
        """The endpoint now stands on exactly these GPUs."""
        for uuid in endpoint.gpu_uuids:
            users = self._users.get(uuid)
            if users is not None:
                users.pop(endpoint.uid, None)
                if not users:
                    del self._users[uuid]
        endpoint.gpu_uuids = uuids
        for uuid in uuids:
            self._users.setdefault(uuid, {})[endpoint.uid] = endpoint

    def users_of(self, node: Node) -> list[Endpoint]:
        """Endpoints on the node's GPUs and their MIG instances, of whichever node they are."""
        found: dict[str, Endpoint] = {}
        for uuid in node.gpus:
            found.update(self._users.get(uuid, {}))
        return list(found.values())

    def users_within(self, uuid: str) -> list[Endpoint]:
        """Endpoints on this GPU, and on MIG instances of it."""
        found = dict(self._users.get(uuid, {}))
        for used, users in self._users.items():
            state = self.state(used)
            if state is not None and state.parent_uuid == uuid:
                found.update(users)
        return list(found.values())

    def down(self, uuid: str, endpoint: Endpoint) -> str:
        """Why this GPU cannot serve the endpoint; empty when nothing speaks against it. Unknown is not a failure."""
        owner = self._owner.get(uuid)
        if owner is None:
            return ""
        if owner is not endpoint.node and owner.state is NodeState.DEAD:
            return f"node {owner.name} that holds GPU {uuid} is dead"
        state = owner.gpus.get(uuid)
        if state is None:
            return ""
        if not state.health.usable:
            return f"GPU {uuid} is {state.health.value}"
        parent = self.state(state.parent_uuid) if state.parent_uuid else None
        if parent is not None and not parent.health.usable:
            return f"GPU {state.parent_uuid} that holds {uuid} is {parent.health.value}"
        return ""

    def problem(self, endpoint: Endpoint) -> str:
        """Why one of the endpoint's GPUs cannot serve it; empty when all can."""
        for uuid in endpoint.gpu_uuids:
            problem = self.down(uuid, endpoint)
            if problem:
                return problem
        return ""

    def products(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Products of the endpoint's GPUs as far as they are known: as reported, else as its node is written down."""
        states = (self.state(uuid) for uuid in endpoint.gpu_uuids)
        found = {s.product for s in states if s is not None and s.product}
        if not found:
            found = {g.product for g in endpoint.node.declared_gpus}
        return tuple(sorted(found))
