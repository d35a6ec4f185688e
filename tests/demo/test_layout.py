"""What the demo consists of, before anything runs."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest

from controlplane.api.kinds import API_KINDS
from fleet.errors import Unavailable
from fleet.geo.regions import builtin_regions
from fleet.geo.resolver import OriginResolver
from fleet.locality import great_circle_km
from headrace.demo.children import child_environ
from headrace.demo.layout import fleet_documents, layout, ports_needed
from headrace.demo.ports import check_free, free_block

DATABASE = Path(__file__).parents[2] / "fleet" / "geo" / "data" / "demo.mmdb"


def test_three_regions_of_two_zones_of_two_nodes_of_four_gpus() -> None:
    plan = layout(3, itertools.count(20_000))
    assert len(plan.regions) == 3
    assert all(len(region.zones) == 2 and all(len(zone.nodes) == 2 for zone in region.zones) for region in plan.regions)
    assert all(len(node.engines) == 4 for node in plan.nodes)
    assert {engine.product for node in plan.nodes for engine in node.engines} >= {"h100-sxm-80", "h200-141", "l40s-48"}
    assert plan.nodes[0].devices == "simulated:2xh100-sxm-80,2xa100-sxm-80"
    assert len(set(plan.ports)) == len(plan.ports) == ports_needed(3)


def test_clients_are_ranked_to_the_nearest_region_first() -> None:
    plan = layout(3, itertools.count(20_000))
    ranked = {region.city: plan.ranked(region) for region in plan.regions}
    for region in plan.regions:
        assert ranked[region.city][0] == region.public_url
    paris, _, tokyo = plan.regions
    ashburn = plan.region("eastus")
    assert ranked["Paris"][1] == ashburn.public_url
    assert ranked["Tokyo"][1] == ashburn.public_url
    assert ranked["Tokyo"][2] == paris.public_url
    assert tokyo.name == "japaneast"


def test_client_addresses_lie_in_their_cities() -> None:
    """In the database that ships with the package, and nearest to their own region."""
    plan = layout(3, itertools.count(20_000))
    resolver = OriginResolver(DATABASE)
    for region in plan.regions:
        assert len(set(region.client_addresses)) == 24
        for address in region.client_addresses:
            where = resolver.locate(address).coordinates
            assert where is not None
            nearest = min(plan.regions, key=lambda r: great_circle_km(where, builtin_regions()[r.name].coordinates))
            assert nearest is region
    resolver.close()


@pytest.mark.parametrize("regions", [1, 2, 3])
def test_the_fleet_is_what_the_api_takes(regions: int) -> None:
    documents = fleet_documents(layout(regions, itertools.count(20_000)), "hr-some-tenant-key")
    for document in documents:
        API_KINDS[document["kind"]].spec.model_validate(document["spec"])
    kinds = [document["kind"] for document in documents]
    assert kinds.count("link") == regions * (regions - 1)
    assert kinds.count("zone") == 2 * regions


def test_ports_are_found_free_and_a_taken_one_is_named() -> None:
    first = free_block(20)
    check_free(range(first, first + 20))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 7))
        taken.listen()
        with pytest.raises(Unavailable, match=rf"127.0.0.1:{first + 7} is taken"):
            check_free(range(first, first + 20))
    with pytest.raises(Unavailable, match="lower --port-base"):
        check_free([70_000])


def test_children_do_not_see_the_users_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE_URL", "postgres://production/headrace")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    seen = child_environ({"HEADRACE_REGION": "here"})
    assert seen["HEADRACE_REGION"] == "here"
    assert "HEADRACE_DATABASE_URL" not in seen
    assert "HTTP_PROXY" not in seen
    assert "PATH" in seen
