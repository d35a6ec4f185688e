"""events, audit, gpus, locate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace.cli.options import Context, Output, OutputOption, Selector, Server
from headrace.cli.output import Column, field

EVENT_COLUMNS: Sequence[Column] = (
    ("TIME", field("occurred_at")),
    ("SEVERITY", field("severity")),
    ("REASON", field("reason")),
    ("OBJECT", lambda e: f"{e.get('kind', '')}/{e.get('name', '')}"),
    ("REGION", field("region")),
    ("MESSAGE", field("message")),
)
AUDIT_COLUMNS: Sequence[Column] = (
    ("TIME", field("occurred_at")),
    ("ACTOR", field("actor")),
    ("ACTION", field("action")),
    ("OBJECT", lambda e: f"{e.get('kind', '')}/{e.get('name', '')}"),
    ("OUTCOME", field("outcome")),
    ("REQUEST", field("request_id")),
)
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, newest last.")]
Of = Annotated[
    str | None, typer.Option("--of", metavar="KIND[/NAME]", help="Only of this kind or resource.", show_default=False)
]


def events(
    limit: Limit = 50,
    of: Of = None,
    region: Annotated[str | None, typer.Option(help="Only of this region.", show_default=False)] = None,
    reason: Annotated[str | None, typer.Option(help="Only this reason, such as NodeDead.", show_default=False)] = None,
    severity: Annotated[str | None, typer.Option(help="info, warning or error.", show_default=False)] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on and print new ones.")] = False,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What happened: nodes, GPUs and regions that died or came back, refused snapshots, drains."""
    wanted = _of(of) | {"region": region, "reason": reason, "severity": severity}
    _newest("events", EVENT_COLUMNS, limit, wanted, server, context, output, watch=watch)


def audit(
    limit: Limit = 50,
    of: Of = None,
    actor: Annotated[str | None, typer.Option(help="Only by this token.", show_default=False)] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, such as create.", show_default=False)] = None,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Who changed what."""
    wanted = _of(of) | {"actor": actor, "action": action}
    _newest("audit", AUDIT_COLUMNS, limit, wanted, server, context, output, watch=False)


def gpus(
    selector: Selector = None,
    field_selector: Annotated[
        str | None, typer.Option(help="Such as status.observed.node=eu-west-a-1.", show_default=False)
    ] = None,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Every GPU of the fleet as its agent sees it."""
    from headrace.cli.resources import get

    get("gpus", None, selector, field_selector, False, server, context, output)


def locate(
    address: Annotated[str, typer.Argument(help="IP address of a client.", show_default=False)],
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Where an address is, and the regions nearest to it."""
    from headrace.cli.api import connect
    from headrace.cli.output import print_json, print_table, print_yaml

    with connect(server, context) as api:
        result = api.post("locate", {"address": address})
    if output is Output.JSON:
        print_json(result)
    elif output is Output.YAML:
        print_yaml([result])
    else:
        origin = result.get("origin") or {}
        where = [origin.get(key) for key in ("address", "country", "continent", "latitude", "longitude", "source")]
        print_table(["ADDRESS", "COUNTRY", "CONTINENT", "LATITUDE", "LONGITUDE", "SOURCE"], [where])
        regions = result.get("regions") or []
        if regions:
            print()
            rows = [[r["name"], r["expected_ms"], r["routers_ready"], r["public_url"]] for r in regions]
            print_table(["REGION", "RTT_MS", "ROUTERS", "URL"], rows)


def _of(text: str | None) -> dict[str, Any]:
    """``KIND`` or ``KIND/NAME`` as the filters ``kind`` (singular) and ``name``."""
    from headrace.cli.kinds import PLURAL_TO_SINGULAR, kind_and_name

    if text is None:
        return {}
    plural, name = kind_and_name(text, None)
    return {"kind": PLURAL_TO_SINGULAR[plural], "name": name}


def _newest(
    path: str,
    columns: Sequence[Column],
    limit: int,
    wanted: dict[str, Any],
    server: str | None,
    context: str | None,
    output: Output,
    *,
    watch: bool,
) -> None:
    import time

    from headrace.cli.api import connect
    from headrace.cli.output import print_records

    with connect(server, context) as api:
        items = api.get(path, page_size=limit, **wanted)["items"]
        print_records(columns, list(reversed(items)), output, f"no {path}")
        seen = {item["uid"] for item in items} if watch else set()
        while watch:
            sys.stdout.flush()
            time.sleep(1.0)
            items = api.get(path, page_size=limit, **wanted)["items"]
            fresh = [item for item in reversed(items) if item["uid"] not in seen]
            if fresh:
                print_records(columns, fresh, output, "")
            seen |= {item["uid"] for item in fresh}
