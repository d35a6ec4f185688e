"""The failover ladder on a virtual clock: a GPU, a node, a zone and a region are lost under constant load, and come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.locality import Origin
from tests.regional_decisions.fleets import ASHBURN, PARIS, TOKYO
from tests.regional_decisions.virtual import World

RATE = 120.0
"""Requests a second over the three continents."""
PLACES: list[tuple[Origin, list[str]]] = [
    (PARIS, ["eu-west", "us-east", "ap-east"]),
    (ASHBURN, ["us-east", "eu-west", "ap-east"]),
    (TOKYO, ["ap-east", "us-east", "eu-west"]),
]


def load(world: World, seconds: float) -> None:
    """Clients ask at a constant rate for so long."""
    start = len(world.clients)
    for i in range(int(RATE * seconds)):
        origin, routers = PLACES[i % 3]
        world.after(i / RATE, lambda uid=f"q{start + i}", o=origin, r=routers: world.client(uid, o, r))  # type: ignore[misc]


def rung(world: World, places: set[str], lose: Callable[[], None]) -> tuple[float, int, int]:
    """Lose a place under load: (seconds until the last request went there, requests, failures)."""
    load(world, 8.0)
    world.run(2.0)
    first = len(world.clients)
    lost_at = world.now
    lose()
    world.run(25.0)
    mine = [c for c in world.clients if c.began_at <= lost_at + 6.0]
    assert first > 200
    assert all(c.done or c.streaming for c in mine), [c for c in mine if not c.done][:3]
    return max(0.0, world.last_send_to(places) - lost_at), len(mine), sum(c.failed for c in mine)


def settled(world: World) -> None:
    """Nothing is left in flight but streams that hang in a zone that is cut off."""
    hanging = sum(c.streaming and not c.done for c in world.clients)
    left = sum(e.own for r in world.routers.values() if not r.dead for e in r.core.view.endpoints.values())
    assert left == hanging


@pytest.mark.parametrize("seed", [1, 2])
def test_a_gpu_is_lost(seed: int) -> None:
    world = World(seed)
    node = world.nodes["eu-west-a1"]
    bad = node.endpoints[0]
    clear, asked, failed = rung(world, {bad}, lambda: node.failed_gpus.add(bad))
    assert (failed, clear <= 1.0) == (0, True), (clear, asked, failed)
    settled(world)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_node_is_lost_and_comes_back(seed: int) -> None:
    world = World(seed)
    node = world.nodes["eu-west-a1"]
    clear, asked, failed = rung(world, set(node.endpoints), lambda: world.kill(node))
    assert (failed, clear <= 2.0) == (0, True), (clear, asked, failed)
    world.revive(node)
    world.run(1.0)
    load(world, 4.0)
    world.run(6.0)
    assert world.last_send_to(set(node.endpoints)) > world.now - 4.0
    settled(world)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_zone_is_cut_off(seed: int) -> None:
    world = World(seed)
    cut = [n for n in world.nodes.values() if n.zone == "eu-west-a"]

    def lose() -> None:
        for node in cut:
            node.cut = True

    clear, asked, failed = rung(world, {u for n in cut for u in n.endpoints}, lose)
    assert (failed, clear <= 2.0) == (0, True), (clear, asked, failed)
    since = world.now
    load(world, 3.0)
    world.run(5.0)
    assert world.shares(since)["eu-west-b"] > 0
    assert world.shares(since)["eu-west-a"] == 0
    settled(world)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_region_is_lost_and_comes_home(seed: int) -> None:
    world = World(seed)
    mine = {u for n in world.nodes.values() if n.region == "eu-west" for u in n.endpoints}
    before = world.now
    load(world, 2.0)
    world.run(3.0)
    assert world.shares(before).keys() >= {"eu-west-a", "us-east-a", "ap-east-a"}
    clear, asked, failed = rung(world, mine, lambda: world.lose_region("eu-west"))
    assert clear <= 3.0
    assert failed <= asked / 1000, (clear, asked, failed)
    since = world.now - 20.0
    shares = world.shares(since)
    assert not any(zone.startswith("eu-west") for zone in shares)
    world.start_anew("eu-west")
    world.run(5.0)
    since = world.now
    load(world, 3.0)
    world.run(5.0)
    assert world.shares(since)["eu-west-a"] + world.shares(since)["eu-west-b"] > 80
    settled(world)


def test_the_same_seed_gives_the_same_run() -> None:
    def sends(seed: int) -> list[tuple[float, str, str]]:
        world = World(seed)
        node = world.nodes["us-east-b2"]
        rung(world, set(node.endpoints), lambda: world.kill(node))
        return world.sends

    assert sends(5) == sends(5)
    assert sends(5) != sends(6)
