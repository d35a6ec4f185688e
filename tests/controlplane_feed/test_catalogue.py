"""What a region is told: who sees what, and that following changes leads to the same place as starting anew."""

from __future__ import annotations

import random

import pytest

from controlplane.registry.catalogue import Catalogue, ObjectChange
from controlplane.registry.history import RegionHistory, Start
from controlplane.secrets import DeploymentSecrets
from fleet.delta import apply
from fleet.snapshot import SECRETS_KIND, IntentObject, IntentSnapshot, IntentVersion, content_digest
from tests.controlplane_feed.copies import BASIC, obj

SECRETS = DeploymentSecrets.of(["a secret key of sufficient length"]).published()
REGIONS = ("eu-west", "us-east", "nowhere")


def _at(number: int) -> IntentVersion:
    return IntentVersion(1, number, str(number).encode())


def _names(snapshot: IntentSnapshot, kind: str) -> set[str]:
    return {o.name for o in snapshot.objects.values() if o.kind == kind}


def test_other_regions_are_told_of_summarily() -> None:
    fleet = [
        *BASIC,
        obj("link", "l-1", "eu-west.us-east", **{"from": "eu-west", "to": "us-east"}),
        obj("endpoint", "e-eu", node="eu-1", url="http://10.2.0.1:1", models=["llama"]),
        obj("endpoint", "e-us", node="us-1", url="http://10.3.0.1:1", models=["llama"]),
        obj("deployment", "d-eu", model="llama", zones=["eu-west-a"], product="h100"),
        obj("deployment", "d-us", model="llama", zones=["us-east-a"], product="h100"),
        obj("hold", "h-eu", target_kind="node", target="n-eu", state="cordoned"),
        obj("hold", "h-us", target_kind="node", target="n-us", state="cordoned"),
        obj("hold", "h-gpu", target_kind="gpu", target="GPU-unknown-here", state="cordoned"),
        obj("hold", "h-region", target_kind="region", target="r-us", state="draining"),
        obj("price", "p-1"),
        obj("key", "k-1"),
        obj("admin-token", "a-1"),
        obj("join-token", "j-1"),
        obj("something-new", "x-1"),
    ]
    told = Catalogue(_at(1), fleet, SECRETS).snapshot("eu-west")
    assert _names(told, "region") == {"eu-west", "us-east"}
    assert _names(told, "zone") == {"eu-west-a", "us-east-a"}
    assert _names(told, "node") == {"eu-1"}
    assert _names(told, "endpoint") == {"e-eu"}
    assert _names(told, "deployment") == {"d-eu"}
    assert _names(told, "hold") == {"h-eu", "h-gpu", "h-region"}
    assert _names(told, "tenant") | _names(told, "key") | _names(told, "price") == {"acme", "k-1", "p-1"}
    assert not any(o.kind in ("admin-token", "join-token", "something-new") for o in told.objects.values())
    assert _names(told, SECRETS_KIND) == {SECRETS_KIND}
    assert told.content == content_digest(told.objects.values())


def _change(rng: random.Random, objects: dict[tuple[str, str], IntentObject]) -> ObjectChange:
    kind = rng.choice(["region", "zone", "node", "endpoint", "deployment", "hold", "tenant", "key"])
    uid = f"{kind}-{rng.randint(0, 4)}"
    if rng.random() < 0.3 and (kind, uid) in objects:
        return ObjectChange((kind, uid), None)
    number = rng.randint(0, 3)
    spec = {
        "region": {"latitude": number},
        "zone": {"region": rng.choice(REGIONS), "endpoint_ranges": ["10.0.0.0/8"]},
        "node": {"zone": f"zone-{number}"},
        "endpoint": {"node": f"node-{number}"},
        "deployment": {"zones": [f"zone-{number}"]},
        "hold": {"target": f"{rng.choice(['node', 'endpoint', 'zone'])}-{number}", "state": "cordoned"},
        "tenant": {"weight": number},
        "key": {"tenant": f"tenant-{number}"},
    }[kind]
    return ObjectChange((kind, uid), obj(kind, uid, uid, rng.randint(1, 9), **spec))


@pytest.mark.parametrize("seed", range(25))
def test_following_changes_leads_to_the_same_place_as_starting_anew(seed: int) -> None:
    rng = random.Random(seed)
    catalogue = Catalogue(_at(1), [], SECRETS)
    held = {region: catalogue.snapshot(region) for region in REGIONS}
    routers = dict(held)
    for number in range(2, 40):
        changes = [_change(rng, dict(catalogue.objects)) for _ in range(rng.randint(1, 3))]
        keys = catalogue.advance(_at(number), changes)
        fresh = Catalogue(_at(number), catalogue.objects.values(), SECRETS)
        for region in REGIONS:
            held[region], delta = catalogue.next_snapshot(held[region], keys)
            routers[region] = apply(routers[region], delta)
            assert held[region] == fresh.snapshot(region) == routers[region]


def test_copies_that_would_publish_anything_else_never_agree_on_a_chain() -> None:
    one = Catalogue(_at(1), BASIC, SECRETS)
    rotated = DeploymentSecrets.of(["another key of sufficient length", "a secret key of sufficient length"])
    other_secrets = Catalogue(_at(1), BASIC, rotated.published())
    chains = {
        one.snapshot("eu-west").at.chain,
        one.snapshot("us-east").at.chain,
        other_secrets.snapshot("eu-west").at.chain,
        Catalogue(IntentVersion(1, 1, b"other history"), BASIC, SECRETS).snapshot("eu-west").at.chain,
    }
    assert len(chains) == 4
    assert one.snapshot("eu-west") == Catalogue(_at(1), BASIC, SECRETS).snapshot("eu-west")


def test_a_history_remembers_a_bounded_number_of_versions() -> None:
    catalogue = Catalogue(_at(1), BASIC, SECRETS)
    history = RegionHistory(catalogue.snapshot("eu-west"), keep=5)
    seen = [history.snapshot]
    for number in range(2, 12):
        keys = catalogue.advance(_at(number), [ObjectChange(("model", "m"), obj("model", "m", "m", number))])
        history.advance(*catalogue.next_snapshot(history.snapshot, keys))
        seen.append(history.snapshot)
    assert history.start(IntentVersion()) == (Start.FULL, None)
    for old in seen[:-6]:
        assert history.start(old.at) == (Start.FULL, None)
    for old in seen[-6:]:
        start, delta = history.start(old.at)
        assert start is Start.DELTA
        assert delta is not None
        assert apply(old, delta) == history.snapshot
    head = history.snapshot.at
    assert history.start(IntentVersion(1, head.version + 1, b"?"))[0] is Start.AHEAD
    assert history.start(IntentVersion(2, 1, b"?"))[0] is Start.AHEAD
    assert history.start(IntentVersion(1, head.version, b"?"))[0] is Start.FOREIGN
    assert history.start(IntentVersion(1, head.version - 2, b"?"))[0] is Start.FOREIGN
    assert history.start(IntentVersion(0, 1, b"?"))[0] is Start.FULL


def test_broken_references_do_not_break_a_snapshot() -> None:
    odd = [
        obj("node", "n", zone=7),
        obj("endpoint", "e"),
        obj("zone", "z", region=None),
        obj("deployment", "d", zones="not a list"),
        obj("hold", "h"),
    ]
    told = Catalogue(_at(1), odd, SECRETS).snapshot("eu-west")
    assert _names(told, "node") | _names(told, "endpoint") | _names(told, "deployment") == set()
