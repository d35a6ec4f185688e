"""cordon, uncordon, drain."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from headrace.cli.errors import CliError
from headrace.cli.options import Context, Server, seconds

Target = Annotated[
    str,
    typer.Argument(
        metavar="KIND/NAME", help="gpu, endpoint, node, zone or region; a bare name is a node.", show_default=False
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with it and shown in events.")]


def cordon(target: Target, reason: Reason = "", server: Server = None, context: Context = None) -> None:
    """Give it no new work; what runs goes on, and sessions that live there may stay."""
    _act(target, "cordon", reason, server, context)
    print(f"{target} cordoned")


def uncordon(target: Target, reason: Reason = "", server: Server = None, context: Context = None) -> None:
    """End a cordon or a drain."""
    _act(target, "uncordon", reason, server, context)
    print(f"{target} uncordoned")


def drain(
    target: Target,
    reason: Reason = "",
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing runs there any more.")] = False,
    deadline: Annotated[str, typer.Option("--deadline", help="With --wait: fail after this long.")] = "30m",
    abort: Annotated[bool, typer.Option("--abort", help="End a drain that is under way.")] = False,
    server: Server = None,
    context: Context = None,
) -> None:
    """Cordon it and let its sessions go; it is drained when nothing runs there."""
    limit = seconds(deadline, "--deadline")
    if abort:
        _act(target, "uncordon", reason, server, context)
        print(f"{target} drain ended")
        return
    began = datetime.now(UTC)
    _act(target, "drain", reason, server, context)
    if not wait:
        print(f"{target} draining")
        return
    _wait_until_empty(target, began, limit, server, context)
    print(f"{target} drained")


def _act(target: str, action: str, reason: str, server: str | None, context: str | None) -> Any:
    from headrace.cli.api import connect, segment
    from headrace.cli.kinds import held

    plural, name = held(target)
    with connect(server, context) as api:
        return api.post(f"{plural}/{segment(name)}:{action}", {"reason": reason} if reason else {})


def _wait_until_empty(target: str, began: datetime, limit: float, server: str | None, context: str | None) -> None:
    from headrace.cli.api import connect
    from headrace.cli.kinds import held

    plural, name = held(target)
    ends = time.monotonic() + limit
    with connect(server, context) as api:
        while True:
            running = (
                _running_in(api, plural, name)
                if plural in ("regions", "zones")
                else _running_on(api, plural, name, began)
            )
            if running == 0:
                return
            if time.monotonic() >= ends:
                said = "it is not known what runs there" if running is None else f"{running} requests still run there"
                raise CliError(f"{target} is not drained after {limit:g} s: {said}; it stays cordoned")
            print(f"{target}: {'unknown' if running is None else running} in flight", file=sys.stderr)
            time.sleep(1.0)


def _running_in(api: Any, plural: str, name: str) -> int | None:
    """Requests in flight in a region or zone, by its routers' latest reports; None while none of them reports."""
    capacity = api.get("capacity")
    rows = [row for row in capacity["items"] if row["region" if plural == "regions" else "zone"] == name]
    region = name if plural == "regions" else next((row["region"] for row in rows), None)
    if not any(r["connected"] for r in capacity["regions"] if r["name"] == region):
        return None
    return sum(int(row["inflight"]) + int(row["waiting"] or 0) for row in rows)


def _running_on(api: Any, plural: str, name: str, began: datetime) -> int | None:
    """Requests that engines on a node, behind an endpoint or on a GPU run; None unless all were read after ``began``."""
    total = 0
    for endpoint in api.listing("endpoints"):
        seen = endpoint["status"]["observed"]
        on_it = {
            "nodes": endpoint["spec"].get("node") == name,
            "endpoints": endpoint["name"] == name,
            "gpus": name in (seen.get("gpu_uuids") or []),
        }
        if not on_it[plural]:
            continue
        load = seen.get("load") or {}
        fresh = "last_seen_at" in seen and datetime.fromisoformat(seen["last_seen_at"]) > began
        if not fresh or load.get("running") is None:
            return None
        total += load["running"] + (load.get("waiting") or 0)
    return total
