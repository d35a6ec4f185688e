"""config validate|show, version, completion."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace.cli.errors import CliError, lines_of
from headrace.cli.options import Config

app = typer.Typer(help="Settings of the processes.", no_args_is_help=True, rich_markup_mode=None)
Process = Annotated[str, typer.Argument(help="controlplane, router or agent.", show_default=False)]


@app.command()
def validate(config: Config = None) -> None:
    """Check a settings file and the environment for every process they speak of."""
    from fleet.errors import InvalidInput
    from headrace.settings import check_everything

    errors = check_everything(config, os.environ)
    if errors:
        raise CliError("\n".join(lines_of(InvalidInput(errors))))
    print("ok")


@app.command()
def show(process: Process, config: Config = None) -> None:
    """Print the settings of a process as they would be in force, with where each comes from; secrets are masked."""
    from fleet.errors import InvalidInput
    from fleet.process.show import show_settings
    from headrace.settings import PROCESSES, load_process

    if process not in PROCESSES:
        raise CliError(f"unknown process {process!r}; known are {', '.join(PROCESSES)}", 2)
    try:
        loaded = load_process(process, config_file=config)
    except InvalidInput as error:
        raise CliError("\n".join(lines_of(error))) from None
    print(show_settings(loaded, process), end="")


def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    print(f"headrace {installed('headrace')}")


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh, fish or powershell.", show_default=False)],
) -> None:
    """Print a completion script, for `source <(headrace completion bash)`."""
    from typer._completion_shared import get_completion_script

    if shell not in ("bash", "zsh", "fish", "powershell"):
        raise CliError(f"unknown shell {shell!r}; known are bash, zsh, fish, powershell", 2)
    print(get_completion_script(prog_name="headrace", complete_var="_HEADRACE_COMPLETE", shell=shell))
