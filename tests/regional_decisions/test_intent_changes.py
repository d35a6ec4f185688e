"""A new intent costs what has changed, and comes to the same as taking it from the start."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fleet.endpoint import EngineKind, ServedModel
from fleet.intent import DeclaredGpus, EndpointIntent, Hold, HoldState, Intent, Model, NodeIntent
from fleet.locality import Zone
from fleet.request import Usage
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.view import FleetView
from regional.request.core import Core
from regional.request.steps import Outcome, SendToEndpoint
from regional.routing import pricing
from regional.routing.registry import builtin
from tests.regional_decisions.fleets import MODEL, REGIONS, ZONES, endpoint, facts, gpu, hold, intent, no_revoke, rig

OTHER = "other-model"
NOW = 1000.0


def declared(uid: str, node: str, **changes: object) -> EndpointIntent:
    base = EndpointIntent(uid, uid, node, "http://10.0.0.1:8000", EngineKind.OPENAI, (ServedModel(MODEL, MODEL),))
    return replace(base, **changes)  # type: ignore[arg-type]


def one_change(now: Intent, chance: random.Random) -> Intent:
    """An intent in which one object was added, changed or removed."""
    zones, nodes, endpoints, holds = dict(now.zones), dict(now.nodes), dict(now.endpoints), dict(now.holds)
    models, aliases = dict(now.models), dict(now.aliases)
    pick = chance.choice
    match chance.randrange(9):
        case 0:
            name = f"n{chance.randrange(6)}"
            uid = f"{name}-{chance.randrange(2)}"
            gpus = (DeclaredGpus(pick(["h100-sxm-80", "a100-sxm-80"]), 8),)
            nodes[name] = NodeIntent(uid, name, pick(["eu-west-a", "eu-west-b", "us-east-a", "gone"]), gpus)
        case 1 if nodes:
            del nodes[pick(list(nodes))]
        case 2 | 3:
            uid = f"e{chance.randrange(12)}"
            served = pick([(MODEL,), (OTHER,), ("Llama",), (MODEL, OTHER)])
            endpoints[uid] = declared(
                uid,
                f"n{chance.randrange(6)}",
                url=f"http://{pick(['10.0.0.1', '10.9.0.1'])}:8000",
                models=tuple(ServedModel(m, m) for m in served),
                max_inflight=pick([4, 8]),
            )
        case 4 if endpoints:
            del endpoints[pick(list(endpoints))]
        case 5:
            kind, target = pick(
                [
                    ("endpoint", "e1"),
                    ("endpoint", "reported"),
                    ("node", "n1-0"),
                    ("node", "agent"),
                    ("gpu", "GPU-1"),
                    ("zone", "z-eu-west-a"),
                    ("zone", "z-eu-west-b"),
                    ("region", "r-eu"),
                ]
            )
            if (kind, target) in holds:
                del holds[kind, target]
            else:
                holds[kind, target] = Hold("h", kind, target, pick(list(HoldState)))
        case 6:
            name = pick(["eu-west-a", "eu-west-b"])
            if name in zones and chance.random() < 0.3:
                del zones[name]
            else:
                ranges = pick([(), ("10.0.0.0/24",)])
                uid = pick([f"z-{name}", f"z-{name}-again"])
                zones[name] = Zone(uid, name, pick(["eu-west", "eu-west", "us-east"]), frozenset({"IE"}), ranges)
        case 7:
            if OTHER in models:
                del models[OTHER]
            else:
                models[OTHER] = Model("m-2", OTHER, "chat", weights_gib=pick([None, 61.0]))
        case 8:
            if "Llama" in aliases:
                del aliases["Llama"]
            else:
                aliases["Llama"] = pick([MODEL, OTHER])
        case _:
            pass
    return replace(now, zones=zones, nodes=nodes, endpoints=endpoints, holds=holds, models=models, aliases=aliases)


def row(e: Endpoint) -> tuple[object, ...]:
    pools = sorted((s.model, s.served_as) for s in e.seats)
    return (e.name, e.url, e.node.uid, e.declared, e.reported, e.hold, e.models, pools, e.gpu_products, e.slots, e.gone)


def told(view: FleetView) -> dict[str, tuple[object, ...]]:
    return {uid: row(e) for uid, e in view.endpoints.items()}


@pytest.mark.parametrize("seed", range(60))
def test_many_small_changes_come_to_the_same_as_one_large_one(seed: int) -> None:
    """With an agent's node among what is declared: its endpoint stays, whatever intent says around it."""
    chance = random.Random(seed)
    step_by_step = rig(given=intent())
    reported = endpoint("reported", ["GPU-1"], models=[MODEL, "Llama"])
    step_by_step.report("agent", [reported], gpus=[gpu("GPU-1")])
    now = intent()
    for version in range(2, 30):
        now = replace(one_change(now, chance), at=replace(now.at, version=version))
        step_by_step.view.set_intent(now, NOW)
    home = ZONES["eu-west-a"]
    now = replace(now, zones={**now.zones, home.name: home})  # or the report would be refused at the end
    step_by_step.view.set_intent(now, NOW)
    at_once = rig(given=now)
    at_once.report("agent", [reported], gpus=[gpu("GPU-1")])
    assert told(step_by_step.view) == told(at_once.view)
    declared_nodes = {uid for uid, n in step_by_step.view.nodes.items() if n.in_intent}
    assert declared_nodes == {uid for uid, n in at_once.view.nodes.items() if n.in_intent}
    assert step_by_step.view.nodes.keys() == at_once.view.nodes.keys()


def large(count: int) -> Intent:
    nodes = {f"n{i}": NodeIntent(f"n{i}", f"n{i}", f"eu-west-{'ab'[i % 2]}") for i in range(count // 4)}
    endpoints = {f"e{i:05}": declared(f"e{i:05}", f"n{i // 4}") for i in range(count)}
    return intent(nodes=nodes, endpoints=endpoints)


@pytest.mark.parametrize("what", ["nothing", "endpoint", "hold", "node", "model", "removal"])
def test_a_change_of_one_object_is_worked_out_for_what_it_touches(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(FleetView("eu-west"), random.Random(1), registry=builtin())
    base = large(400)
    core.view.set_intent(base, NOW)
    core.tick(NOW)
    ask(core)
    rated: list[str] = []
    rate = pricing.rate

    def noted(e: Endpoint, *rest: object) -> None:
        rated.append(e.uid)
        rate(e, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(pricing, "rate", noted)
    match what:
        case "endpoint":
            new = replace(
                base, endpoints={**base.endpoints, "e00007": declared("e00007", "n1", url="http://10.0.0.2:1")}
            )
        case "removal":
            new = replace(base, endpoints={k: v for k, v in base.endpoints.items() if k != "e00007"})
        case "hold":
            new = replace(base, holds=hold("endpoint", "e00007"))
        case "node":
            new = replace(
                base, nodes={**base.nodes, "n1": NodeIntent("n1", "n1", "eu-west-b", (DeclaredGpus("h100-sxm-80", 8),))}
            )
        case "model":
            new = replace(base, models={**base.models, OTHER: Model("m-2", OTHER, "chat")})
        case _:
            # Equal, and yet another object, as after a fleet file was read again.
            new = replace(base, endpoints={k: replace(v) for k, v in base.endpoints.items()})
    core.view.set_intent(new, NOW)
    ask(core)
    assert len(rated) <= {"endpoint": 1, "hold": 1, "node": 4}.get(what, 0)
    assert ("e00007" in rated) is (what in ("endpoint", "hold", "node"))


def ask(core: Core) -> None:
    life, step = core.begin(facts(), NOW, no_revoke)
    assert isinstance(step, SendToEndpoint)
    life.on_end(Outcome.ABORTED, Usage(), NOW)


def test_a_hold_on_a_large_zone_is_applied_over_a_few_ticks() -> None:
    made = rig(given=large(5000))
    made.tick()
    made.view.set_intent(replace(large(5000), holds=hold("zone", ZONES["eu-west-a"].uid)), made.now)
    held = [e for e in made.view.endpoints.values() if e.node.zone == "eu-west-a"]
    assert len(held) == 2500
    assert any(e.hold for e in held), "at once for the first"
    for _ in range(3):
        made.tick()
    assert all(e.hold is HoldState.CORDONED for e in held)
    assert not any(e.hold for e in made.view.endpoints.values() if e.node.zone != "eu-west-a")
    made.view.set_intent(large(5000), made.now)
    for _ in range(3):
        made.tick()
    assert not any(e.hold for e in held)


def test_a_hold_on_the_zone_that_a_node_has_moved_to_reaches_it() -> None:
    made = rig(given=intent(holds=hold("zone", ZONES["eu-west-b"].uid)))
    made.report("n", [endpoint("e")])
    assert made.view.endpoints["e"].hold is None
    made.report("n", [endpoint("e")], zone="eu-west-b")
    assert made.view.endpoints["e"].hold is HoldState.CORDONED


def test_weights_of_a_model_that_become_known_change_its_speeds() -> None:
    made = rig()
    made.report("n", [endpoint("e", ["G"])], gpus=[gpu("G")])
    made.tick()
    (seat,) = made.view.endpoints["e"].seats
    light = seat.prefill_per_token
    heavy = replace(intent().models[MODEL], weights_gib=131.0)
    made.view.set_intent(intent(2, models={MODEL: heavy}), made.now)
    made.view.settle(made.now)
    assert seat.prefill_per_token > 2 * light


def test_the_own_region_under_a_new_uid_is_no_longer_held() -> None:
    made = rig(given=intent(holds=hold("region", "r-eu")))
    made.report("n", [endpoint("e")])
    assert made.view.endpoints["e"].hold is HoldState.CORDONED
    again = {**REGIONS, "eu-west": replace(REGIONS["eu-west"], uid="r-eu-again")}
    made.view.set_intent(intent(2, regions=again, holds=hold("region", "r-eu")), made.now)
    assert made.view.endpoints["e"].hold is None


def test_prices_stay_with_their_endpoints_when_others_come_and_go() -> None:
    made = rig()
    for i, product in enumerate(["h100-sxm-80", "a100-sxm-80", "h200-141", "h100-sxm-80"]):
        made.report(
            f"n{i}",
            [endpoint(f"e{2 * i}", [f"G{i}"])],
            gpus=[gpu(f"G{i}", product=product)],
            zone=f"eu-west-{'ab'[i % 2]}",
        )
    made.tick(10.0)
    pool = made.view.pools[MODEL]

    def prices() -> dict[str, tuple[float, ...]]:
        columns = (pool.fixed, pool.per_input, pool.per_output, pool.weights, pool.inflight, pool.hashes)
        return {s.endpoint.uid: tuple(float(c[s.position]) for c in columns) for s in pool.seats}

    before = prices()
    made.report("n9", [endpoint("e3", ["G9"])], gpus=[gpu("G9")])
    made.report("n1", [], zone="eu-west-b")
    made.tick()
    made.view.lay_out(pool, made.now)
    after = prices()
    assert after.keys() == (before.keys() | {"e3"}) - {"e2"}
    assert all(after[uid] == before[uid] for uid in before.keys() & after.keys())
    assert after["e3"][0] < 1e5, "and a newcomer has a price of its own"
    assert [z.zone for z in pool.zones] == ["eu-west-a", "eu-west-b"]
    assert [s.endpoint.zone for s in pool.seats] == sorted(s.endpoint.zone for s in pool.seats)


def test_what_is_written_of_a_nodes_devices_reaches_endpoints_that_its_agent_reports() -> None:
    written = NodeIntent("n", "n", "eu-west-a", (DeclaredGpus("a100-sxm-80", 8),))
    made = rig(given=intent(nodes={"n": written}))
    made.report("n", [endpoint("e")])
    assert made.view.endpoints["e"].gpu_products == ("a100-sxm-80",)
    made.view.set_intent(intent(2, nodes={"n": replace(written, gpus=(DeclaredGpus("h200-141", 8),))}), made.now)
    assert made.view.endpoints["e"].gpu_products == ("h200-141",)
