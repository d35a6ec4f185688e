"""apply, diff, get, describe, delete, watch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.errors import CliError
from headrace.cli.options import Context, Output, OutputOption, Selector, Server

File = Annotated[str, typer.Option("--file", "-f", help="Fleet file, or - for standard input.", show_default=False)]


def apply(
    file: File,
    prune: Annotated[bool, typer.Option(help="Delete what --selector matches and the file does not have.")] = False,
    selector: Selector = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make the control plane's resources as the file says, all or nothing."""
    from headrace.cli.errors import USAGE

    if prune and not selector:
        raise CliError("--prune wants a selector (-l), so that it cannot delete everything", USAGE)
    result = _apply(file, server, context, dry_run=dry_run, prune=prune, selector=selector)
    if output in (Output.JSON, Output.YAML):
        _print(result, output)
        return
    for change in result["changes"]:
        print(f"{change['kind']}/{change['name']} {change['action']}{' (dry run)' if dry_run else ''}")
        if change.get("secret"):
            print(f"  secret, shown this once: {change['secret']}")


def diff(file: File, server: Server = None, context: Context = None, output: OutputOption = Output.TABLE) -> None:
    """What apply would change. Exit status: 0 nothing, 1 something, 3 failed."""
    try:
        result = _apply(file, server, context, dry_run=True, prune=False, selector=None)
    except CliError as error:
        raise CliError(str(error), 3 if error.status == 1 else error.status) from None
    changed = [c for c in result["changes"] if c["action"] != "unchanged"]
    if output in (Output.JSON, Output.YAML):
        _print(result, output)
    else:
        for change in changed:
            print(f"{change['kind']}/{change['name']} {change['action']}")
            for line in change["diff"]:
                print(f"  {line['pointer']}: {_value(line['from'])} -> {_value(line['to'])}")
    raise typer.Exit(1 if changed else 0)


def get(
    kind: Annotated[str, typer.Argument(help="Kind, singular or plural, or KIND/NAME.", show_default=False)],
    name: Annotated[str | None, typer.Argument(help="Name; all when left out.", show_default=False)] = None,
    selector: Selector = None,
    field_selector: Annotated[str | None, typer.Option(help="Such as spec.zone=eu-west-a.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on and print what changes.")] = False,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show resources."""
    from headrace.cli.api import connect, segment
    from headrace.cli.kinds import kind_and_name
    from headrace.cli.output import print_items

    plural, name = kind_and_name(kind, name)
    with connect(server, context) as api:
        if name is not None:
            items = [api.get(f"{plural}/{segment(name)}")]
        else:
            items = list(api.listing(plural, label_selector=selector, field_selector=field_selector))
        print_items(plural, items, output, single=name is not None)
        if watch:
            _follow(api, plural, name, selector, field_selector, items, output)


def watch(
    kind: Annotated[str, typer.Argument(help="Kind, or KIND/NAME.", show_default=False)],
    name: Annotated[str | None, typer.Argument(show_default=False)] = None,
    selector: Selector = None,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show resources and print what changes, until interrupted."""
    get(kind, name, selector, None, True, server, context, output)


def describe(
    kind: Annotated[str, typer.Argument(help="Kind, or KIND/NAME.", show_default=False)],
    name: Annotated[str | None, typer.Argument(show_default=False)] = None,
    server: Server = None,
    context: Context = None,
) -> None:
    """Everything about one resource, with its latest events."""
    from headrace.cli.api import connect, segment
    from headrace.cli.kinds import PLURAL_TO_SINGULAR, kind_and_name
    from headrace.cli.looking import EVENT_COLUMNS
    from headrace.cli.output import print_records, print_yaml

    plural, name = kind_and_name(kind, name)
    if name is None:
        raise CliError(f"say which: headrace describe {kind} NAME", 2)
    with connect(server, context) as api:
        print_yaml([api.get(f"{plural}/{segment(name)}")])
        events = api.get("events", kind=PLURAL_TO_SINGULAR[plural], name=name, page_size=20)["items"]
    print()
    print_records(EVENT_COLUMNS, events, Output.TABLE, "no events")


def delete(
    kind: Annotated[str, typer.Argument(help="Kind, or KIND/NAME.", show_default=False)],
    name: Annotated[str | None, typer.Argument(show_default=False)] = None,
    cascade: Annotated[bool, typer.Option(help="Delete what refers to it as well.")] = False,
    server: Server = None,
    context: Context = None,
) -> None:
    """Delete one resource."""
    from headrace.cli.api import connect, segment
    from headrace.cli.kinds import PLURAL_TO_SINGULAR, kind_and_name

    plural, name = kind_and_name(kind, name)
    if name is None:
        raise CliError(f"say which: headrace delete {kind} NAME", 2)
    with connect(server, context) as api:
        api.request("DELETE", f"{plural}/{segment(name)}", params={"cascade": True} if cascade else None)
    print(f"{PLURAL_TO_SINGULAR[plural]}/{name} deleted")


def _apply(
    file: str, server: str | None, context: str | None, *, dry_run: bool, prune: bool, selector: str | None
) -> dict[str, Any]:
    from fleet.resources.file import load
    from headrace.cli.api import connect

    if file == "-":
        documents = load(sys.stdin.read(), os.environ, name="standard input", complete=False)
    else:
        documents = load(Path(file), os.environ, complete=False)
    if not documents:
        raise CliError(f"{file}: there is no document in it")
    params: dict[str, Any] = {"dry_run": True} if dry_run else {}
    if prune:
        params["prune"] = selector
    with connect(server, context) as api:
        result: dict[str, Any] = api.request("POST", "apply", params=params, body=[d.manifest() for d in documents])
    return result


def _print(value: Any, output: Output) -> None:
    from headrace.cli.output import print_json, print_yaml

    print_json(value) if output is Output.JSON else print_yaml([value])


def _value(value: Any) -> str:
    import json

    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _follow(
    api: Any,
    plural: str,
    name: str | None,
    selector: str | None,
    field_selector: str | None,
    items: list[dict[str, Any]],
    output: Output,
) -> None:
    """Print each resource again when its version changes, and say what is gone. Runs until interrupted.

    The list is asked for again every second: it carries status as well as spec, which the feed of changes does not.
    """
    import time

    from headrace.cli.api import ApiError, segment
    from headrace.cli.output import print_items

    seen = {item["uid"]: item for item in items}
    while True:
        time.sleep(1.0)
        try:
            if name is not None:
                items = [api.get(f"{plural}/{segment(name)}")]
            else:
                items = list(api.listing(plural, label_selector=selector, field_selector=field_selector))
        except ApiError as error:
            if name is None or error.http_status != 404:
                raise
            items = []
        now = {item["uid"]: item for item in items}
        changed = [item for uid, item in now.items() if seen.get(uid) != item]
        if changed:
            print_items(plural, changed, output)
        for uid, item in seen.items():
            if uid not in now:
                print(f"{item['name']} deleted")
        sys.stdout.flush()
        seen = now
        if name is not None and not now:
            return
