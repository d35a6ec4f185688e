"""`python -m bench.relay`: what relaying costs, beside HAProxy. See README.md for what the columns mean."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.relay import harness, peers

# name: (load generator arguments, chunk every ms, seconds)
WORKLOADS = {
    "json": ("-c 32", 0, 5.0),
    "latency": ("-r 30", 0, 6.0),
    "stream": ("-c 64 -s 100 -g 1", 20, 6.0),
    "fast": ("-c 32 -s 200 -g 0.4", 2, 4.0),
}
MUST = {"us_request": 80.0, "us_chunk": 30.0, "added_first_token_ms": 1.0}
Row = dict[str, Any]


def measure(name: str, directory: Path, engines: harness.Engines, workloads: Iterable[str], scale: float) -> list[Row]:
    router = peers.start(name, directory, engines.ports)
    rows = []
    try:
        for workload in workloads:
            arguments, chunk_ms, seconds = WORKLOADS[workload]
            engines.set(delay_ms=0, chunk_ms=chunk_ms)
            harness.load(directory, router.port, arguments.replace("-s 100", "-s 20").replace("-s 200", "-s 50"), 1.5)
            before = harness.usage(router.session)[0] if router.session else 0.0
            found = harness.load(directory, router.port, arguments, seconds * scale)
            after, resident = harness.usage(router.session) if router.session else (0.0, 0.0)
            done = found["ok"] + found["fail"]
            rows.append(
                {
                    "router": name,
                    "workload": workload,
                    "requests": done,
                    "failed": found["fail"],
                    "requests_per_second": found["rps"],
                    "p50_ms": found["ms"]["p50"],
                    "p99_ms": found["ms"]["p99"],
                    "us_request": 1e6 * (after - before) / done if done and router.session else None,
                    "us_chunk": 1e6 * (after - before) / found["events"]
                    if found["events"] and router.session
                    else None,
                    "chunks_per_second": found["events_per_s"],
                    "first_token_p50_ms": (found.get("ttft_ms") or {}).get("p50"),
                    "rss_mb": resident,
                    "start_seconds": router.start_seconds,
                }
            )
    finally:
        router.stop()
    return rows


def median(rows: list[Row], name: str, workload: str, key: str) -> float | None:
    values = [r[key] for r in rows if r["router"] == name and r["workload"] == workload and r[key] is not None]
    return statistics.median(values) if values else None


def verdict(rows: list[Row]) -> Row:
    """This router's figures beside what they must be."""
    direct, ours = (median(rows, n, "fast", "first_token_p50_ms") for n in ("direct", "headrace"))
    added = ours - direct if ours is not None and direct is not None else None
    found: Row = {
        "us_request": median(rows, "headrace", "json", "us_request"),
        "us_chunk": median(rows, "headrace", "fast", "us_chunk"),
        "added_first_token_ms": added,
        "failed": sum(r["failed"] for r in rows if r["router"] == "headrace"),
    }
    measured = [found[k] <= limit for k, limit in MUST.items() if found[k] is not None]
    found["ok"] = bool(measured) and all(measured) and not found["failed"]
    return found


def show(rows: list[Row], names: list[str], workloads: list[str]) -> None:
    def number(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    for workload in workloads:
        arguments, chunk_ms, seconds = WORKLOADS[workload]
        streamed = "-s" in arguments
        cost = "us_chunk" if streamed else "us_request"
        base = median(rows, "haproxy", workload, cost)
        print(f"\n{workload}: loadgen {arguments}, a chunk every {chunk_ms} ms, {seconds:g} s")
        unit = "CPU us/chunk" if streamed else "CPU us/request"
        last = "first token p50 ms" if streamed else "p50 ms"
        print(
            f"{'router':<10}{unit:>16}{'x haproxy':>11}{'per second':>12}{last:>20}{'p99 ms':>10}{'RSS MB':>8}{'failed':>8}"
        )
        for name in names:
            value = median(rows, name, workload, cost)
            rate = median(rows, name, workload, "chunks_per_second" if streamed else "requests_per_second")
            failed = sum(r["failed"] for r in rows if r["router"] == name and r["workload"] == workload)
            print(
                f"{name:<10}{number(value):>16}{number(value / base if value and base else None, 2):>11}{number(rate, 0):>12}"
                f"{number(median(rows, name, workload, 'first_token_p50_ms' if streamed else 'p50_ms'), 2):>20}"
                f"{number(median(rows, name, workload, 'p99_ms')):>10}"
                f"{number(median(rows, name, workload, 'rss_mb'), 0):>8}{failed:>8}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("--routers", default=",".join(peers.NAMES), help="of direct, haproxy, headrace")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="of json, latency, stream, fast")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="stretch the seconds of each workload")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args()
    names = [n for n in options.routers.split(",") if peers.available(n)]
    workloads = options.workloads.split(",")
    if unknown := (set(names) - set(peers.NAMES)) | (set(workloads) - set(WORKLOADS)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        directory = Path(folder)
        try:
            harness.build(directory)
        except FileNotFoundError:
            print("the benchmark wants gcc", file=sys.stderr)
            return 1
        engines = harness.Engines(directory)
        try:
            for _ in range(options.rounds):
                for name in names:
                    rows += measure(name, directory, engines, workloads, options.scale)
        finally:
            engines.stop()
    facts = (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    )
    found = verdict(rows)
    if options.json:
        print(json.dumps({"machine": facts, "rows": rows, "verdict": found}))
    else:
        print(facts + (", without HAProxy: it is not installed" if not peers.available("haproxy") else ""))
        show(rows, names, workloads)
        request, chunk, token = MUST.values()
        limits = f"{request:g} us/request, {chunk:g} us/chunk, +{token:g} ms first token"
        print(f"\nmust: at most {limits} -> {'held' if found['ok'] else 'NOT held'}")
    return 0 if found["ok"] or "headrace" not in names else 1


if __name__ == "__main__":
    sys.exit(main())
