"""events, audit, gpus, locate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace.cli.options import Context, Output, OutputOption, Selector, Server
from headrace.cli.output import Column, field

EVENT_COLUMNS: Sequence[Column] = (
    ("TIME", field("created_at")),
    ("SEVERITY", field("severity")),
    ("REASON", field("reason")),
    ("OBJECT", lambda e: f"{e.get('kind', '')}/{e.get('name', '')}"),
    ("REGION", field("region")),
    ("MESSAGE", field("message")),
)
AUDIT_COLUMNS: Sequence[Column] = (
    ("TIME", field("created_at")),
    ("ACTOR", field("actor")),
    ("ACTION", field("action")),
    ("OBJECT", lambda e: f"{e.get('kind', '')}/{e.get('name', '')}"),
    ("OUTCOME", field("outcome")),
    ("REQUEST", field("request_id")),
)
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, newest last.")]
Fields = Annotated[str | None, typer.Option("--field-selector", help="Such as kind=node,name=eu-west-a-1.")]


def events(
    limit: Limit = 50,
    field_selector: Fields = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on and print new ones.")] = False,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What happened: nodes, GPUs and regions that died or came back, refused snapshots, drains."""
    _newest("events", EVENT_COLUMNS, limit, field_selector, server, context, output, watch=watch)


def audit(
    limit: Limit = 50,
    field_selector: Fields = None,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Who changed what."""
    _newest("audit", AUDIT_COLUMNS, limit, field_selector, server, context, output, watch=False)


def gpus(
    selector: Selector = None,
    field_selector: Fields = None,
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
        rows = [[r.get("region"), _milliseconds(r)] for r in result.get("regions") or []]
        if rows:
            print()
            print_table(["REGION", "RTT_MS"], rows)


def _milliseconds(region: dict[str, Any]) -> str | None:
    value = region.get("rtt_ms")
    return None if value is None else f"{value:.0f}"


def _newest(
    path: str,
    columns: Sequence[Column],
    limit: int,
    field_selector: str | None,
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
        items = api.get(path, page_size=limit, field_selector=field_selector).get("items", [])
        print_records(columns, list(reversed(items)), output, f"no {path}")
        seen = {item.get("uid") for item in items}
        while watch:
            sys.stdout.flush()
            time.sleep(1.0)
            items = api.get(path, page_size=limit, field_selector=field_selector).get("items", [])
            fresh = [item for item in reversed(items) if item.get("uid") not in seen]
            if fresh:
                print_records(columns, fresh, output, "")
            seen |= {item.get("uid") for item in fresh}
