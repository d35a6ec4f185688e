"""The three steps, sessions, and laws that hold for every policy there is."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fleet.capacity import CapacityRow, RegionObserved, RouterObserved
from fleet.errors import InvalidInput
from fleet.intent import HoldState, Model, PolicyIntent
from fleet.locality import Coordinates, Origin
from fleet.request import RequestFacts, Usage
from fleet.tenancy import Residency, Tenant
from regional.fleetview.peers import PeerProbe
from regional.fleetview.pool import Pool
from regional.fleetview.standing import DEAD, EJECTED, FULL, OPEN, OUT, SUSPECT, tier_ceiling, tier_of
from regional.fleetview.view import FleetView
from regional.request.core import Core
from regional.request.steps import (
    AttemptResult,
    Outcome,
    Reject,
    RejectReason,
    SendToEndpoint,
    SendToRegion,
    Step,
)
from regional.routing.candidates import Candidates
from regional.routing.chance import Chance
from regional.routing.interfaces import Policy
from regional.routing.registry import Registry, build, builtin, discover
from tests.regional_decisions.fleets import (
    ASHBURN,
    MODEL,
    PARIS,
    TOKYO,
    ZONES,
    Rig,
    endpoint,
    facts,
    gpu,
    hold,
    intent,
    link,
    no_revoke,
    policy,
    rig,
    simple,
)

# Regions


def row(zone: str, wait: float = 0.05, ready: int = 4) -> CapacityRow:
    return CapacityRow(zone, MODEL, ready, ready, 4e5, 4e4, 0, 0, wait)


def peers(made: Rig, **waits: float | None) -> None:
    """Live probes of peer regions; None is one that does not answer."""
    for short, wait in waits.items():
        name = {"us": "us-east", "ap": "ap-east", "eu": "eu-west"}[short]
        url = made.view.intent.regions[name].public_url
        if wait is None:
            made.view.set_peer_probe(name, PeerProbe(url, ok=False), made.now)
        else:
            rtt = {"us": 0.08, "ap": 0.22, "eu": 0.08}[short]
            probe = PeerProbe(url, ok=True, rtt_seconds=rtt, rows=(row(f"{name}-a", wait),))
            made.view.set_peer_probe(name, probe, made.now)


def go(made: Rig, **changes: object) -> Step:
    life, step = made.core.begin(facts(**changes), made.now, no_revoke)
    life.on_end(Outcome.ABORTED, Usage(), made.now)
    return step


def region_of(step: Step, own: str = "eu-west") -> str:
    if isinstance(step, SendToRegion):
        return step.region
    assert isinstance(step, SendToEndpoint), step
    return own


@pytest.mark.parametrize(("origin", "home"), [(PARIS, "eu-west"), (TOKYO, "ap-east"), (ASHBURN, "us-east")])
def test_a_client_is_served_at_home_whichever_router_it_reaches(origin: Origin, home: str) -> None:
    for own in ("eu-west", "us-east", "ap-east"):
        made = simple({f"{own}-a": 2}, region=own)
        made.now += 0.2
        others = {s: 0.05 for s in ("eu", "us", "ap") if not own.startswith(s)}
        peers(made, **others)
        assert region_of(go(made, origin=origin), own) == home


def test_a_client_of_unknown_place_is_served_here() -> None:
    made = simple({"eu-west-a": 2})
    peers(made, us=0.01, ap=0.01)
    assert region_of(go(made)) == "eu-west"


def test_a_request_leaves_home_only_for_200_ms_and_a_fifth() -> None:
    made = rig()
    made.report("n", [endpoint("a1", ["g"])], gpus=[gpu("g")])
    made.tick(0.1)
    made.view.set_intent(intent(2, links=link("eu-west", "us-east", 0.080)), made.now)
    made.view.settle(made.now)

    def busy(seconds: float) -> str:
        """The region when so many seconds of prompts are ahead here and 50 ms there."""
        made.now += 0.2
        seat = made.view.pools[MODEL].seats[0]
        made.view.set_sibling_load("s", {"a1": (1, seconds / seat.prefill_per_token)}, made.now)
        peers(made, us=0.05)
        return region_of(go(made, origin=PARIS, max_output_tokens=1))

    assert busy(0.2) == "eu-west"
    assert busy(0.3) == "eu-west"
    assert busy(0.6) == "us-east"
    assert region_of(go(made, origin=PARIS, max_output_tokens=1, spill=False)) == "eu-west"


def test_a_region_that_is_down_or_held_or_empty_is_left() -> None:
    made = rig()
    made.tick()
    peers(made, us=0.05, ap=0.05)
    assert region_of(go(made, origin=PARIS)) == "us-east"
    assert region_of(go(made, origin=TOKYO)) == "ap-east"
    made.now += 2.0
    peers(made, us=0.05, ap=None)
    made.tick(1.1)  # three seconds since ap-east last answered
    assert region_of(go(made, origin=TOKYO)) == "us-east"
    peers(made, ap=0.05)
    made.tick(0.2)
    assert region_of(go(made, origin=TOKYO)) == "ap-east"
    made.view.set_intent(intent(2, holds=hold("region", "r-ap", HoldState.DRAINING)), made.now)
    assert region_of(go(made, origin=TOKYO)) == "us-east"


def test_a_region_never_probed_is_not_taken_for_live_because_the_centre_speaks_of_it() -> None:
    made = rig()
    routers = (RouterObserved("r", 1, 1, True, ("http://10.2.0.1:7600",), ()),)
    made.view.set_region_observed(RegionObserved("us-east", routers, (row("us-east-a"),), 0.0), made.now)
    assert isinstance(go(made), Reject)
    made.view.set_peer_probe("us-east", PeerProbe("http://10.2.0.1:7600", ok=True), made.now)
    made.now += 0.2
    assert region_of(go(made)) == "us-east"


def test_a_request_from_a_peer_is_never_passed_on() -> None:
    made = rig()
    peers(made, us=0.05)
    step = go(made, hop_from="ap-east", origin=ASHBURN)
    assert isinstance(step, Reject)
    assert step.reason is RejectReason.NO_ENDPOINT


def test_a_refused_spill_tries_the_next_region_and_hops_once_each() -> None:
    made = rig()
    peers(made, us=0.05, ap=0.05)
    life, step = made.core.begin(facts(origin=PARIS), made.now, no_revoke)
    assert isinstance(step, SendToRegion)
    assert (step.region, step.addresses) == ("us-east", ("http://10.2.0.1:7600",))
    step = life.on_attempt_failed(AttemptResult(Outcome.REFUSED_SPILL, 503), made.now)
    assert region_of(step) == "ap-east"
    step = life.on_attempt_failed(AttemptResult(Outcome.CONNECT_FAILED), made.now)
    assert not isinstance(step, SendToRegion)
    record = life.on_end(Outcome.REJECTED, Usage(), made.now)
    assert (record.failovers, record.attempts) == (2, 2)


def test_a_region_that_goes_down_gives_back_what_waits_there() -> None:
    made = rig()
    peers(made, us=0.05)
    revoked: list[str] = []
    waiting, _ = made.core.begin(facts("w"), made.now, lambda: revoked.append("w"))
    streaming, _ = made.core.begin(facts("s"), made.now, lambda: revoked.append("s"))
    streaming.on_first_byte(made.now)
    made.tick(3.1)
    assert revoked == ["w"]
    for life in (waiting, streaming):
        life.on_end(Outcome.ABORTED, Usage(), made.now)


def test_addresses_of_a_region_are_those_that_answer_nearest_first() -> None:
    made = rig()
    for url, rtt in (("http://slow", 0.2), ("http://quick", 0.1), ("http://dead", None)):
        made.view.set_peer_probe("us-east", PeerProbe(url, ok=rtt is not None, rtt_seconds=rtt), made.now)
    found = made.view.peers.addresses("us-east", "http://public", made.now)
    assert found == ("http://quick", "http://slow", "http://public")


# Residency and GPU classes


EU_ONLY = Residency(frozenset({"EU"}), relay_ingress=True)


def test_case_z08_no_request_crosses_its_border_before_or_during() -> None:
    made = simple({"eu-west-a": 2})
    peers(made, us=0.0, ap=0.0)
    life, step = made.core.begin(facts(residency=EU_ONLY), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    for _ in range(6):
        step = life.on_attempt_failed(AttemptResult(Outcome.CONNECT_FAILED), made.now)
        if not isinstance(step, SendToEndpoint):
            break
    assert not isinstance(step, SendToRegion)
    life.on_end(Outcome.REJECTED, Usage(), made.now)
    for n in ("a1", "a2"):
        made.report(f"node-{n}", [])
    step = go(made, residency=EU_ONLY)
    assert isinstance(step, Reject)
    assert step.reason in (RejectReason.NO_ENDPOINT, RejectReason.REGION_NOT_ALLOWED)


def test_a_router_outside_relays_inside_when_it_may() -> None:
    made = simple({"us-east-a": 2}, region="us-east")
    peers(made, eu=0.05, ap=0.05)
    step = go(made, residency=EU_ONLY, origin=ASHBURN)
    assert region_of(step, "us-east") == "eu-west"
    refused = go(made, residency=Residency(frozenset({"EU"})), origin=ASHBURN)
    assert isinstance(refused, Reject)
    assert refused.reason is RejectReason.REGION_NOT_ALLOWED


def test_residency_goes_by_zone_and_fails_closed() -> None:
    zones = dict(ZONES)
    zones["eu-west-b"] = replace(zones["eu-west-b"], jurisdictions=frozenset({"CH"}))
    zones["eu-west-c"] = replace(zones["eu-west-c"], jurisdictions=frozenset())
    made = simple({"eu-west-a": 1, "eu-west-b": 1, "eu-west-c": 1}, given=intent(zones=zones))
    made.report("node-x", [endpoint("x1", ["g-x"])], zone="eu-west-nowhere", gpus=[gpu("g-x")])
    made.tick(0.1)
    assert {where(made, residency=EU_ONLY) for _ in range(40)} == {"a1"}
    swiss = Residency(frozenset({"CH"}))
    assert {where(made, residency=swiss) for _ in range(40)} == {"b1"}
    assert {where(made) for _ in range(80)} == {"a1", "b1", "c1", "x1"}


def where(made: Rig, **changes: object) -> str:
    step = go(made, **changes)
    return step.target.name if isinstance(step, SendToEndpoint) else type(step).__name__


def test_a_tenants_regions_bind() -> None:
    made = simple({"eu-west-a": 1})
    peers(made, us=0.05, ap=0.05)
    assert region_of(go(made, allowed_regions=("us-*",))) == "us-east"
    step = go(made, allowed_regions=("mars-*",))
    assert isinstance(step, Reject)
    assert step.reason is RejectReason.REGION_NOT_ALLOWED


def test_gpu_classes_bind_and_an_unknown_product_is_none_of_them() -> None:
    made = rig()
    for name, product in (("h", "h100-sxm-80"), ("a", "a100-sxm-80"), ("u", "")):
        made.report(f"n-{name}", [endpoint(name, [f"g-{name}"])], gpus=[gpu(f"g-{name}", product=product)])
    made.tick(0.1)
    assert {where(made, allowed_gpu_classes=("a100-*",)) for _ in range(20)} == {"a"}
    assert isinstance(go(made, allowed_gpu_classes=("b200-*",)), Reject)


def test_a_prompt_goes_where_it_fits_and_to_the_longest_when_it_seems_to_fit_nowhere() -> None:
    made = rig()
    made.report("n", [endpoint("short", context_tokens=4096), endpoint("long", context_tokens=32768)])
    made.tick(0.1)
    assert {where(made) for _ in range(40)} == {"short", "long"}
    assert {where(made, input_tokens=10_000) for _ in range(20)} == {"long"}
    assert {where(made, input_tokens=900_000) for _ in range(20)} == {"long"}  # an image counts far too much


# Endpoints


def test_a_slow_product_gets_less_and_a_slow_engine_next_to_nothing() -> None:
    made = rig()
    for i, product in enumerate(("h100-sxm-80", "h100-sxm-80", "a100-sxm-80", "l4-24")):
        made.report(f"n{i}", [endpoint(f"e{i}", [f"g{i}"])], gpus=[gpu(f"g{i}", product=product)])
    made.beat(6.0)
    hits: Counter[str] = Counter()
    running: list[tuple[float, object, str]] = []
    late: Counter[str] = Counter()
    for i in range(4000):
        made.now += 0.01
        if i % 40 == 0:
            made.beat(0.1)
        life, step = made.core.begin(facts(str(i)), made.now, no_revoke)
        assert isinstance(step, SendToEndpoint)
        name = step.target.name
        hits[name] += 1
        if i > 1500:
            late[name] += 1
        seconds = 2.5 if name == "e1" else 0.25  # whatever its product promises
        running.append((made.now + seconds, life, name))
        for done in [r for r in running if r[0] <= made.now]:
            running.remove(done)
            done[1].on_headers(200, made.now)  # type: ignore[attr-defined]
            done[1].on_first_byte(made.now)  # type: ignore[attr-defined]
            done[1].on_end(Outcome.OK, Usage(100, 50, 0), made.now)  # type: ignore[attr-defined]
    assert late["e1"] / sum(late.values()) <= 0.02
    assert min(late.values()) < late["e0"]


def test_a_full_endpoint_comes_after_those_with_room() -> None:
    made = rig()
    made.report("n", [endpoint("small", max_inflight=2), endpoint("large", max_inflight=50)])
    made.tick(0.1)
    for i in range(52):
        made.core.begin(facts(str(i)), made.now, no_revoke)
    assert made.inflight() == {"small": 2, "large": 50}
    made.core.begin(facts(), made.now, no_revoke)
    assert sum(made.inflight().values()) == 53  # the engines queue what is more


def test_equals_share_and_the_same_seed_chooses_the_same() -> None:
    def order(seed: int) -> list[str]:
        made = simple({"eu-west-a": 4}, seed=seed)
        return [where(made) for _ in range(400)]

    first = order(7)
    assert first == order(7)
    assert first != order(8)
    assert min(Counter(first).values()) > 50


def test_tiers_never_mix() -> None:
    ordered = [OPEN, FULL, SUSPECT, EJECTED, DEAD]
    for lower, upper in itertools.pairwise(ordered):
        assert tier_ceiling(lower + 2e4) == upper
        assert tier_of(lower + 2e4) == lower
    assert tier_of(OUT) == OUT


# Sessions


def sessions(made: Rig, count: int) -> dict[str, str]:
    return {s: where(made, session=s) for s in (f"{i * 2654435761 % 2**64:016x}" * 4 for i in range(count))}


def test_case_n01_only_the_sessions_that_must_move_do() -> None:
    made = simple({"eu-west-a": 4})
    before = sessions(made, 1000)
    assert all(180 < n < 320 for n in Counter(before.values()).values())
    assert sessions(made, 1000) == before
    made.report("node-a2", [])
    made.tick(0.1)
    smaller = sessions(made, 1000)
    assert {s for s in before if smaller[s] != before[s]} == {s for s in before if before[s] == "a2"}
    made.report("node-a2", [endpoint("a2", ["GPU-a2"])], gpus=[gpu("GPU-a2")])
    made.report("node-a5", [endpoint("a5", ["GPU-a5"])], gpus=[gpu("GPU-a5")])
    made.tick(0.2)
    larger = sessions(made, 1000)
    moved = [s for s in before if larger[s] != before[s]]
    assert {larger[s] for s in moved} == {"a5"}
    assert 130 < len(moved) < 270  # about a fifth


def test_two_routers_agree_where_a_session_lives() -> None:
    one, two = simple({"eu-west-a": 3, "eu-west-b": 3}, seed=1), simple({"eu-west-a": 3, "eu-west-b": 3}, seed=2)
    assert sessions(one, 200) == sessions(two, 200)


def test_faster_products_hold_more_sessions() -> None:
    made = rig()
    for name, product in (("h", "h200-141"), ("l", "l40s-48")):
        made.report(f"n-{name}", [endpoint(name, [f"g-{name}"])], gpus=[gpu(f"g-{name}", product=product)])
    made.beat(6.0)
    counts = Counter(sessions(made, 1000).values())
    assert counts["h"] > 2.5 * counts["l"] > 0


def test_a_session_leaves_an_endpoint_that_is_overloaded_dead_or_drained_and_comes_home() -> None:
    made = simple({"eu-west-a": 3})
    made.beat(6.0)
    session = "c0ffee00" * 8
    home = where(made, session=session)
    seat = made.view.pools[MODEL].members[home]
    made.now += 0.01
    made.view.set_sibling_load(
        "s", {home: (1, 5.0 / seat.prefill_per_token)}, made.now
    )  # five seconds of prompts ahead
    second = where(made, session=session)
    assert second != home
    assert where(made, session=session) == second  # a stable second choice
    made.view.set_sibling_load("s", {}, made.now)
    assert where(made, session=session) == home
    made.view.set_intent(intent(2, holds=hold("endpoint", home, HoldState.DRAINING)), made.now)
    assert where(made, session=session) == second


def test_a_cordoned_endpoint_keeps_its_sessions_and_takes_no_new_ones() -> None:
    made = simple({"eu-west-a": 3})
    before = sessions(made, 200)
    made.view.set_intent(intent(2, holds=hold("endpoint", "a1")), made.now)
    assert sessions(made, 200) == before
    fresh = [where(made, session=f"{i:064x}"[::-1]) for i in range(1, 200)]
    assert "a1" not in fresh
    made.view.set_intent(intent(3, holds=hold("endpoint", "a1", HoldState.DRAINING)), made.now)
    assert "a1" not in sessions(made, 200).values()


def test_case_z08_staying_on_a_cordoned_endpoint_does_not_cross_a_border() -> None:
    made = simple({"eu-west-a": 1, "eu-west-b": 1}, given=intent())
    session = "ab" * 32
    home = where(made, session=session)
    made.view.set_intent(intent(2, holds=hold("endpoint", home)), made.now)
    assert where(made, session=session) == home
    assert where(made, session=session, residency=Residency(frozenset({"CH"}), relay_ingress=True)) == "Reject"
    assert where(made, session=session, allowed_gpu_classes=("b200-*",)) == "Reject"


def test_case_n03_odd_sessions_are_sessions_like_others() -> None:
    made = simple({"eu-west-a": 3})
    for session in ("", "%%%", "x" * 10_000, "-1", "0x12", "\u2603"):
        assert where(made, session=session) in ("a1", "a2", "a3")


# Policies


class Fixed:
    """Any numbers as chance."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def random(self) -> float:
        return self._rng.random()


def pool_of(count: int) -> Pool:
    made = simple({"eu-west-a": count})
    made.view.settle(made.now)
    return made.view.pools[MODEL]


POLICIES = sorted(discover())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(30))
def test_law_a_policy_chooses_one_of_the_best_tier(name: str, seed: int) -> None:
    rng = random.Random(seed)
    pool = pool_of(12)
    chosen = build(discover(), name, {})
    for _ in range(20):
        tiers = [rng.choice([OPEN, FULL, SUSPECT, EJECTED, DEAD, OUT]) for _ in range(12)]
        costs = np.array([t + rng.random() for t in tiers])
        if min(tiers) == OUT:
            continue
        start = rng.randrange(12)
        candidates = Candidates(pool, costs, start, 12)
        if float(candidates.costs.min()) == OUT:
            continue
        position = chosen.choose(candidates, Fixed(seed))
        assert tiers[start + position] == min(tiers[start:])


@pytest.mark.parametrize("name", POLICIES)
def test_law_a_policy_describes_itself_and_refuses_what_it_does_not_know(name: str) -> None:
    made = build(discover(), name, {})
    assert isinstance(made, Policy)
    assert made.name == name
    assert made.intent.endswith(".")
    assert "\n" not in made.intent
    with pytest.raises(InvalidInput, match="no such parameter"):
        build(discover(), name, {"no-such-thing": 1})


@pytest.mark.parametrize("name", POLICIES)
def test_law_the_same_chance_gives_the_same_choices(name: str) -> None:
    def choices() -> list[str]:
        made = simple({"eu-west-a": 5, "eu-west-b": 5}, given=intent(policies=policy(name)))
        return [where(made) for _ in range(100)]

    assert choices() == choices()


@pytest.mark.parametrize("name", POLICIES)
def test_law_under_a_standing_load_every_policy_uses_all_equals(name: str) -> None:
    made = simple({"eu-west-a": 5}, given=intent(policies=policy(name)))
    for i in range(100):
        made.core.begin(facts(str(i)), made.now, no_revoke)
    assert all(10 <= n <= 30 for n in made.inflight().values()), made.inflight()


def test_round_robin_takes_turns_through_comings_and_goings() -> None:
    made = simple({"eu-west-a": 4}, given=intent(policies=policy("round-robin")))
    assert [where(made) for _ in range(8)] == ["a1", "a2", "a3", "a4"] * 2
    assert where(made) == "a1"
    made.report("node-a2", [])
    made.tick(0.1)
    assert [where(made) for _ in range(4)] == ["a3", "a4", "a1", "a3"]


def test_least_connections_weighs_by_speed_unless_told_not_to() -> None:
    def spread(**parameters: object) -> dict[str, int]:
        made = rig(given=intent(policies=policy("least-connections", **parameters)))
        for name, product in (("fast", "h200-141"), ("slow", "l40s-48")):
            made.report(f"n-{name}", [endpoint(name, [f"g-{name}"])], gpus=[gpu(f"g-{name}", product=product)])
        made.beat(6.0)
        for i in range(60):
            made.core.begin(facts(str(i)), made.now, no_revoke)
        return made.inflight()

    assert spread(weighted=False) == {"fast": 30, "slow": 30}
    assert spread()["fast"] > 40


def test_the_policy_of_the_tenant_beats_the_models_beats_the_match() -> None:
    policies = {
        "wide": PolicyIntent("p1", "wide", "least-connections"),
        "narrow": PolicyIntent("p2", "narrow", "round-robin", models=(MODEL,)),
        "of-model": PolicyIntent("p3", "of-model", "round-robin"),
        "of-tenant": PolicyIntent("p4", "of-tenant", "expected-cost"),
    }
    models = {MODEL: Model("m-1", MODEL, "chat", weights_gib=15.0)}
    acme = {"acme": Tenant("t", "acme", "standard", policy="of-tenant")}

    def governing(**changes: object) -> object:
        given = intent(policies=policies, tenants=acme, models=changes.pop("models", models))
        made = simple({"eu-west-a": 2}, given=given)
        told = made.core.explain(facts(**changes), made.now)
        return told["versions"][0]["policy"]  # type: ignore[index]

    named = {MODEL: Model("m-1", MODEL, "chat", weights_gib=15.0, policy="of-model")}
    assert governing() == "narrow"
    assert governing(models=named) == "of-model"
    assert governing(models=named, tenant_name="acme") == "of-tenant"
    assert governing(models=named, policy="wide") == "wide"


def test_a_policy_that_cannot_be_built_is_told_and_expected_cost_stands_in() -> None:
    made = simple({"eu-west-a": 2}, given=intent(policies=policy("no-such-algorithm", depth=3)))
    assert where(made) in ("a1", "a2")
    assert "no-such-algorithm" in made.core.placing.policy_problems["default"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weighted": 1}, "must be of type bool"),
        ({"weighted": "yes"}, "must be of type bool"),
        ({"wieghted": True}, "has weighted"),
    ],
)
def test_parameters_are_typed(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(builtin(), "least-connections", parameters)


class Last:
    """A policy of somebody else's package."""

    name: ClassVar[str] = "last"
    intent: ClassVar[str] = "The last one; for tests."

    @dataclass(frozen=True, slots=True)
    class Parameters:
        depth: int = 1
        share: float = 0.5

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def choose(self, candidates: Candidates, rng: Chance) -> int:
        return int(candidates.eligible()[-1])


def test_a_policy_from_outside_is_used_like_ours() -> None:
    registry: Registry = {**builtin(), "last": Last}
    made = build(registry, "last", {"depth": 2, "share": 1})
    assert isinstance(made, Last)
    assert made.parameters == Last.Parameters(2, 1.0)
    outside = Rig(Core(FleetView("eu-west"), random.Random(1), registry=registry))
    outside.view.set_intent(intent(policies=policy("last")), outside.now)
    for i in range(1, 5):
        outside.report(f"n{i}", [endpoint(f"a{i}")])
    outside.tick(0.1)
    assert {where(outside) for _ in range(10)} == {"a4"}


# Explanations


def test_an_explanation_counts_filters_and_shows_the_eight_best() -> None:
    made = simple({"eu-west-a": 12, "eu-west-b": 2}, given=intent(holds=hold("zone", "z-eu-west-b")))
    life, step = made.core.begin(facts(), made.now, no_revoke)
    assert isinstance(step, SendToEndpoint)
    before = made.inflight()
    told = made.core.explain(facts(allowed_gpu_classes=("a100-*",)), made.now)
    (version,) = told["versions"]  # type: ignore[misc]
    assert version["removed"] == {"hold": 2, "gpu_class": 14}
    assert version["reason"]
    told = made.core.explain(facts(), made.now)
    (version,) = told["versions"]  # type: ignore[misc]
    assert len(version["best"]) == 8
    assert version["best"] == tuple(sorted(version["best"], key=lambda t: t["cost"]))
    assert made.inflight() == before
    life.on_end(Outcome.ABORTED, Usage(), made.now)


def test_facts_of_a_place_at_the_equator_are_facts() -> None:
    made = simple({"eu-west-a": 1})
    peers(made, us=0.05, ap=0.05)
    assert isinstance(facts(origin=Origin(coordinates=Coordinates(0.0, 0.0))), RequestFacts)
    assert region_of(go(made, origin=Origin(coordinates=Coordinates(0.0, 0.0)))) == "eu-west"


def test_a_router_that_moved_takes_its_distance_with_it() -> None:
    made = rig(given=intent())
    near, far = "http://10.2.0.7:7600", "http://10.2.0.8:7600"
    made.view.set_peer_probe("us-east", PeerProbe(near, ok=True, rtt_seconds=0.001), made.now)
    for second in range(1, 100):
        made.view.set_peer_probe("us-east", PeerProbe(far, ok=True, rtt_seconds=0.08), made.now + second)
    peer = made.view.peers.get("us-east")
    assert peer is not None
    assert peer.rtt_seconds == pytest.approx(0.08)
    assert set(peer.ready_at) == set(peer.address_rtt) == {far}


@pytest.mark.parametrize(
    ("limits", "served"),
    [
        ({"allowed_regions": ("us-east",)}, False),
        ({"allowed_regions": ("eu-*",)}, True),
        ({"residency": Residency(frozenset({"US"}))}, False),
        ({"residency": Residency(frozenset({"EU"}))}, True),
    ],
    ids=["other-regions", "this-region", "other-residency", "this-residency"],
)
def test_a_peer_that_sends_what_may_not_come_here_is_refused(limits: dict[str, object], served: bool) -> None:
    """Its intent may be older than ours: what arrives is judged by ours."""
    made = rig(given=intent())
    made.report("n", [endpoint("e")])
    made.tick(0.2)
    step = go(made, hop_from="us-east", **limits)
    if served:
        assert isinstance(step, SendToEndpoint)
    else:
        assert isinstance(step, Reject)
        assert step.reason is RejectReason.REGION_NOT_ALLOWED


def test_a_region_without_an_address_that_works_is_never_hopped_to() -> None:
    made = rig()
    made.tick(0.2)
    for region, host, rtt in (("us-east", "10.2.0.1", 0.08), ("ap-east", "10.3.0.1", 0.2)):
        row = CapacityRow(f"{region}-a", MODEL, 2, 2, expected_wait_seconds=0.0)
        made.view.set_peer_probe(region, PeerProbe(f"http://{host}:7600", True, True, rtt, (row,)), made.now)
    step = go(made)
    assert isinstance(step, SendToRegion)
    assert step.region == "us-east"
    # Its only router stops answering; the region itself counts as up for a while, and its price is still remembered.
    made.view.set_peer_probe("us-east", PeerProbe("http://10.2.0.1:7600", ok=False), made.now)
    assert made.view.peers.up("us-east", made.now)
    step = go(made)
    assert isinstance(step, SendToRegion)
    assert (step.region, step.addresses) == ("ap-east", ("http://10.3.0.1:7600",))
    made.view.set_peer_probe("ap-east", PeerProbe("http://10.3.0.1:7600", ok=False), made.now)
    for seconds in (0.0, 0.2):
        made.tick(seconds)
        step = go(made)
        assert isinstance(step, Reject)
        assert step.reason is not RejectReason.REGION_NOT_ALLOWED
