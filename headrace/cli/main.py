"""The command line. ``main`` turns every failure into one line and an exit status; nobody sees a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import typer

from headrace.cli import access, actions, check, config, database, looking, processes, resources
from headrace.cli.errors import FAILED, CliError, lines_of, say

_HELP = "Headrace routes AI inference to GPUs across regions, zones and nodes."
_COMPLETE = "_HEADRACE_COMPLETE"
"""Set by the shell's completion script."""
_SERVING = "Serve"
_DECLARATIVE = "Say what you want"
_LOOKING = "Look"
_ACCESS = "Access and settings"

Commands = tuple[Callable[..., None], ...]
_COMMANDS: tuple[tuple[str, Commands], ...] = (
    (_SERVING, (processes.demo, processes.controlplane, processes.router, processes.agent)),
    (
        _DECLARATIVE,
        (
            *(resources.apply, resources.diff, resources.get, resources.describe, resources.delete, resources.watch),
            *(actions.cordon, actions.uncordon, actions.drain),
        ),
    ),
    (_LOOKING, (looking.gpus, looking.events, looking.audit, looking.locate)),
    (_ACCESS, (access.login, config.completion, config.version)),
)
_GROUPS: tuple[tuple[str, str, typer.Typer], ...] = (
    (_SERVING, "check", check.app),
    (_SERVING, "db", database.app),
    (_ACCESS, "key", access.key_app),
    (_ACCESS, "token", access.token_app),
    (_ACCESS, "context", access.context_app),
    (_ACCESS, "config", config.app),
)


def build() -> typer.Typer:
    """The whole command tree."""
    app = typer.Typer(
        name="headrace",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    for panel, commands in _COMMANDS:
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    for panel, name, group in _GROUPS:
        app.add_typer(group, name=name, rich_help_panel=panel)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run one command and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit status."""
    from fleet.errors import HeadraceError

    if _COMPLETE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        command = typer.main.get_command(build())
        status = command.main(args=list(arguments), prog_name="headrace", complete_var=_COMPLETE, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:
        text = error.format_message()
        if "\n" in text:  # a group without a command: its help
            print(text, file=sys.stderr)
        elif text:
            say(f"{text.rstrip('.')}; see headrace --help")
        return error.exit_code
    except CliError as error:
        for line in str(error).split("\n"):
            say(line)
        return error.status
    except HeadraceError as error:
        for line in lines_of(error):
            say(line)
        return FAILED
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of our output went away, as `head` does. Nothing can be said there any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the edge of the command: one plain line, never a traceback
        say(f"internal error, please report it: {type(error).__name__}: {error}")
        return FAILED


if __name__ == "__main__":
    main()
