"""db: migrations and what follows a restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.errors import CliError, lines_of
from headrace.cli.options import Config

app = typer.Typer(help="Migrations of the control plane's database.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def upgrade(config: Config = None) -> None:
    """Bring the tables up to this version. Safe while other copies do the same."""
    from controlplane.store import migrate

    print(f"at {migrate.upgrade(_url(config))}")


@app.command()
def current(config: Config = None) -> None:
    """Show the database's revision. Exit status 1 when it is not this version's."""
    from controlplane.store import migrate

    revision = migrate.current(_url(config))
    print(f"{revision or 'no tables'}{'' if revision == migrate.head() else f' (this version wants {migrate.head()})'}")
    if revision != migrate.head():
        raise typer.Exit(1)


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Revision to go back to; base removes all tables.")],
    config: Config = None,
) -> None:
    """Take the tables back to an older revision. Data that only newer tables hold is lost."""
    from controlplane.store import migrate

    print(f"at {migrate.downgrade(_url(config), revision) or 'no tables'}")


@app.command()
def restored(config: Config = None) -> None:
    """After a restore from a backup: start a new epoch, so that routers take the restored intent as the truth."""
    from controlplane.store import migrate

    print(f"epoch {migrate.restored(_url(config))}")


def _url(config: Path | None) -> str:
    from fleet.errors import InvalidInput
    from headrace.settings import load_process

    try:
        settings = load_process("controlplane", config_file=config).settings
    except InvalidInput as error:
        raise CliError("\n".join(lines_of(error)), 2) from None
    # Past a pooler: locks that outlive a statement do not work through one.
    return str(settings.database_direct_url or settings.database())
