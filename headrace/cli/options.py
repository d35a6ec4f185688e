"""Options that several commands share, and values that several commands read."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.errors import USAGE, CliError


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Server = Annotated[
    str | None,
    typer.Option("--server", envvar="HEADRACE_SERVER", help="Control plane's address, such as http://127.0.0.1:7610."),
]
Context = Annotated[
    str | None, typer.Option("--context", envvar="HEADRACE_CONTEXT", help="Context to use instead of the current one.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]
Selector = Annotated[
    str | None, typer.Option("--selector", "-l", help="Label selector, such as tier=gold,stage!=test.")
]
Config = Annotated[
    Path | None, typer.Option("--config", envvar="HEADRACE_CONFIG", help="TOML file with settings.", show_default=False)
]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print the settings in force, secrets masked, and exit.")
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str, option: str) -> float:
    """A duration such as 30s, 5m or 12h. Raises CliError (usage)."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise CliError(f"{option} must be a number with s, m, h or d, such as 30m; got {text!r}", USAGE)
    return float(found[1]) * _SECONDS[found[2]]
