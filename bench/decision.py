"""What a decision costs: CPU of ``begin`` + ``on_first_byte`` + ``on_end``, and the time of ``begin`` alone, by size of the cell.

    python -m bench.decision [--sizes 16,64,1008,10080] [--regions 12] [--requests 3000] [--json]

One process, one core, no sockets. A cell has three zones and four endpoints a node, mixed products; ``--inflight`` requests are
under way at any time. Figures are microseconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections import deque

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.capacity import CapacityRow
from fleet.endpoint import EndpointPhase, EndpointReport, EngineKind, EngineLoad, ServedModel
from fleet.intent import Intent, Model
from fleet.locality import Coordinates, Origin, Region, Zone
from fleet.report import AgentPhase, NodeReport
from fleet.request import RequestFacts, Task, Usage
from fleet.tenancy import Residency
from regional.fleetview.peers import PeerProbe
from regional.fleetview.view import FleetView
from regional.request.core import Core
from regional.request.life import Life
from regional.request.steps import Outcome, SendToEndpoint

MODEL = "llama-3.1-8b"
PRODUCTS = ("h200-141", "h100-sxm-80", "a100-sxm-80")
PER_NODE = 4
START = 1000.0


def _intent(regions: int) -> Intent:
    places = {
        f"r{i}": Region(f"r{i}", f"r{i}", Coordinates(50.0 - 4 * i, 10.0 * i), frozenset({"X"})) for i in range(regions)
    }
    zones = {f"{r}-{z}": Zone(f"{r}-{z}", f"{r}-{z}", r, frozenset({"X"})) for r in places for z in "abc"}
    return Intent(region="r0", regions=places, zones=zones, models={MODEL: Model("m", MODEL, "chat", weights_gib=15.0)})


def _node(index: int, endpoints: int, sequence: int) -> NodeReport:
    uid = f"node-{index}"
    product = PRODUCTS[index % 3]
    return NodeReport(
        uid,
        uid,
        f"r0-{'abc'[index % 3]}",
        1,
        sequence,
        AgentPhase.RUNNING,
        0.5,
        tuple(AcceleratorState(f"GPU-{index}-{i}", product=product, health=DeviceHealth.OK) for i in range(endpoints)),
        tuple(
            EndpointReport(
                f"e-{index}-{i}",
                f"e{i}",
                EngineKind.VLLM,
                f"http://10.0.0.1:{8000 + i}",
                (ServedModel(MODEL, MODEL),),
                EndpointPhase.READY,
                gpu_uuids=(f"GPU-{index}-{i}",),
                gpus_known=True,
                load=EngineLoad(
                    running=2, waiting=0, kv_usage=0.3, generated_tokens_total=100.0 * sequence, sample_age_seconds=0.2
                ),
            )
            for i in range(endpoints)
        ),
        ("10.0.0.1",),
    )


def cell(endpoints: int, regions: int) -> Core:
    """A core that knows so many endpoints here and a probe of each other region."""
    view = FleetView("r0")
    core = Core(view, random.Random(1))
    view.set_intent(_intent(regions), START)
    for index in range((endpoints + PER_NODE - 1) // PER_NODE):
        core.on_report(_node(index, min(PER_NODE, endpoints - index * PER_NODE), 1), START)
    for i in range(1, regions):
        row = CapacityRow(f"r{i}-a", MODEL, 100, 100, 1e6, 1e5, 100, 0, 0.05)
        view.set_peer_probe(f"r{i}", PeerProbe(f"http://r{i}:7600", True, True, 0.1, (row,)), START)
    core.tick(START + 1.0)
    for index in range((endpoints + PER_NODE - 1) // PER_NODE):
        core.on_report(_node(index, min(PER_NODE, endpoints - index * PER_NODE), 2), START + 20.0)
    for _ in range(10):
        core.tick(START + 20.0)
    return core


def _facts(number: int, session: bool) -> RequestFacts:
    return RequestFacts(
        f"{number:032x}",
        Task.CHAT,
        MODEL,
        True,
        300 + number % 700,
        256,
        "",
        "",
        "",
        "standard",
        300,
        f"{number % 500:016x}" if session else "",
        Origin("192.0.2.1", "FR", "EU", Coordinates(48.0, 2.0 + number % 50), "database"),
        Residency(),
    )


def _no_revoke() -> None:
    pass


def measure(endpoints: int, regions: int, requests: int, inflight: int, session: bool) -> dict[str, float]:
    """Times of one cell, after a warm-up, with collection of garbage off as a relay has it."""
    core = cell(endpoints, regions)
    now = START + 20.0
    for i in range(1, regions):
        core.view.set_peer_probe(f"r{i}", PeerProbe(f"http://r{i}:7600", True, True, 0.1), now)
    running: deque[Life] = deque()
    usage = Usage(300, 100, 0)
    decisions: list[int] = []
    total = 0
    gc.collect()
    gc.disable()
    for number in range(requests + 500):
        facts = _facts(number, session)
        now += 0.0005
        cpu = time.process_time_ns()
        begin = time.perf_counter_ns()
        life, step = core.begin(facts, now, _no_revoke)
        decided = time.perf_counter_ns() - begin
        life.on_headers(200, now)
        life.on_first_byte(now + 0.0002)
        running.append(life)
        if not isinstance(step, SendToEndpoint):
            raise SystemExit(f"no endpoint was chosen: {step}")
        if len(running) > inflight:
            old = running.popleft()
            old.on_end(Outcome.OK, usage, now + 0.01)
        cpu = time.process_time_ns() - cpu
        if number >= 500:
            decisions.append(decided)
            total += cpu
    gc.enable()
    decisions.sort()
    start = time.process_time_ns()
    reports = 200
    for n in range(reports):
        index = n % max(1, endpoints // PER_NODE)
        core.on_report(_node(index, PER_NODE, 3 + n), now)
    report_us = (time.process_time_ns() - start) / 1000 / reports
    for index in range((endpoints + PER_NODE - 1) // PER_NODE):  # a tick among living nodes is what is wanted
        core.on_report(_node(index, min(PER_NODE, endpoints - index * PER_NODE), 1000), now)
    core.tick(now)
    start = time.process_time_ns()
    for n in range(20):
        core.tick(now + 0.05 * n)
    tick_us = (time.process_time_ns() - start) / 1000 / 20
    return {
        "endpoints": endpoints,
        "regions": regions,
        "cpu_us": round(total / len(decisions) / 1000, 1),
        "decision_us_p50": round(decisions[len(decisions) // 2] / 1000, 1),
        "decision_us_p99": round(decisions[len(decisions) * 99 // 100] / 1000, 1),
        "report_us": round(report_us, 1),
        "tick_us": round(tick_us, 1),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="4,16,64,1008,10080")
    parser.add_argument("--regions", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--inflight", type=int, default=64)
    parser.add_argument("--session", action="store_true", help="every request belongs to one of 500 sessions")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = [
        measure(int(size), args.regions, args.requests, min(args.inflight, 2 * int(size)), args.session)
        for size in args.sizes.split(",")
    ]
    if args.json:
        print(json.dumps(rows))
        return 0
    print("endpoints  regions  CPU us/request  decision us P50    P99   report of 4  tick")
    for r in rows:
        print(
            f"{r['endpoints']:9.0f} {r['regions']:8.0f} {r['cpu_us']:15.1f} {r['decision_us_p50']:16.1f} "
            f"{r['decision_us_p99']:6.1f} {r['report_us']:12.1f} {r['tick_us']:6.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
