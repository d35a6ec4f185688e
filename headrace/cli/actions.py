"""cordon, uncordon, drain."""

from __future__ import annotations

import sys
import time
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
        _act(target, "abort", reason, server, context)
        print(f"{target} drain ended")
        return
    _act(target, "drain", reason, server, context)
    if not wait:
        print(f"{target} draining")
        return
    _wait_until_empty(target, limit, server, context)
    print(f"{target} drained")


def _act(target: str, action: str, reason: str, server: str | None, context: str | None) -> Any:
    from headrace.cli.api import connect, segment
    from headrace.cli.kinds import held

    plural, name = held(target)
    with connect(server, context) as api:
        return api.post(f"{plural}/{segment(name)}:{action}", {"reason": reason} if reason else {})


def _wait_until_empty(target: str, limit: float, server: str | None, context: str | None) -> None:
    from headrace.cli.api import connect, segment
    from headrace.cli.kinds import held

    plural, name = held(target)
    ends = time.monotonic() + limit
    with connect(server, context) as api:
        while True:
            status = api.get(f"{plural}/{segment(name)}").get("status") or {}
            running = status.get("inflight")
            if running == 0:
                return
            if time.monotonic() >= ends:
                said = "it is not known what runs there" if running is None else f"{running} requests still run there"
                raise CliError(f"{target} is not drained after {limit:g} s: {said}; it stays cordoned")
            print(f"{target}: {'unknown' if running is None else running} in flight", file=sys.stderr)
            time.sleep(1.0)
