"""key, token, login, context: who may do what, and where commands go."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from headrace.cli.errors import USAGE, CliError
from headrace.cli.options import Context, Output, OutputOption, Selector, Server, seconds

key_app = typer.Typer(help="Tenants' keys.", no_args_is_help=True, rich_markup_mode=None)
token_app = typer.Typer(
    help="Tokens of people, programs, routers (admin tokens) and joining agents (join tokens).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
context_app = typer.Typer(help="Named control planes.", no_args_is_help=True, rich_markup_mode=None)

_ROLES = ("viewer", "operator", "admin", "router", "join")
Name = Annotated[str, typer.Argument(help="Name of the resource.", show_default=False)]
Expires = Annotated[
    str | None,
    typer.Option(
        "--expires", help="Lifetime, such as 90d; left out: for ever, but a day for a join token.", show_default=False
    ),
]


@key_app.command("create")
def create_key(
    name: Name,
    tenant: Annotated[str, typer.Option(help="Whose key it is.", show_default=False)],
    model: Annotated[list[str] | None, typer.Option(help="Model it may use (repeatable).", show_default=False)] = None,
    expires: Expires = None,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key; it is shown once."""
    spec: dict[str, Any] = {"tenant": tenant}
    if model:
        spec["models"] = model
    if expires:
        spec["expires_at"] = _expiry(expires)
    _create("keys", name, spec, server, context, output)


@key_app.command("list")
def list_keys(
    selector: Selector = None, server: Server = None, context: Context = None, output: OutputOption = Output.TABLE
) -> None:
    """Show keys; never their secrets."""
    from headrace.cli.resources import get

    get("keys", None, selector, None, False, server, context, output)


@key_app.command("revoke")
def revoke_key(name: Name, server: Server = None, context: Context = None) -> None:
    """Refuse a key from now on, everywhere."""
    from headrace.cli.api import connect, segment

    with connect(server, context) as api:
        api.post(f"keys/{segment(name)}:revoke")
    print(f"key/{name} revoked")


@token_app.command("create")
def create_token(
    name: Name,
    role: Annotated[str, typer.Option(help="viewer, operator, admin, router or join.", show_default=False)],
    region: Annotated[str | None, typer.Option(help="With role router: its region.", show_default=False)] = None,
    zone: Annotated[
        str | None, typer.Option(help="With role join: zone, or a prefix and *.", show_default=False)
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="With role join: node name, or a prefix and *.", show_default=False)
    ] = None,
    uses: Annotated[
        int | None, typer.Option(min=1, help="With role join: how many agents it lets in.", show_default=False)
    ] = None,
    expires: Expires = None,
    server: Server = None,
    context: Context = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token; it is shown once."""
    if role not in _ROLES:
        raise CliError(f"--role must be one of {', '.join(_ROLES)}; got {role!r}", USAGE)
    if role == "join":
        if region is not None:
            raise CliError("--region goes with role router; a join token has --zone", USAGE)
        spec: dict[str, Any] = {"zone": zone, "node": node, "uses": uses}
        if expires:
            spec["ttl_seconds"] = round(seconds(expires, "--expires"))
        _create("join-tokens", name, {k: v for k, v in spec.items() if v is not None}, server, context, output)
        return
    if zone is not None or node is not None or uses is not None:
        raise CliError("--zone, --node and --uses go with role join", USAGE)
    if (role == "router") != (region is not None):
        raise CliError("--region is wanted exactly when the role is router", USAGE)
    spec = {"role": role} | ({"region": region} if region else {})
    if expires:
        spec["expires_at"] = _expiry(expires)
    _create("admin-tokens", name, spec, server, context, output)


@token_app.command("list")
def list_tokens(
    selector: Selector = None, server: Server = None, context: Context = None, output: OutputOption = Output.TABLE
) -> None:
    """Show tokens of both kinds; never their secrets."""
    from headrace.cli.resources import get

    get("admin-tokens", None, selector, None, False, server, context, output)
    get("join-tokens", None, selector, None, False, server, context, output)


@token_app.command("revoke")
def revoke_token(name: Name, server: Server = None, context: Context = None) -> None:
    """Delete a token of either kind."""
    from headrace.cli.api import ApiError, connect, segment

    with connect(server, context) as api:
        for kind in ("admin-token", "join-token"):
            try:
                api.request("DELETE", f"{kind}s/{segment(name)}")
            except ApiError as error:
                if error.http_status != 404:
                    raise
                continue
            print(f"{kind}/{name} revoked")
            return
    raise CliError(f"there is no token {name}")


def login(
    server: Annotated[str, typer.Argument(help="Control plane's address.", show_default=False)],
    name: Annotated[str, typer.Option("--name", help="Name of the context.")] = "default",
    ca: Annotated[str, typer.Option("--ca", help="CA file of the control plane's certificate.")] = "",
) -> None:
    """Try a token and keep it in a context. It is asked for, or read from standard input when that is no terminal."""
    import getpass

    from headrace.cli.api import Api
    from headrace.cli.contexts import Target, current_environ, read_contexts

    token = (getpass.getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not token:
        raise CliError("no token was given", USAGE)
    target = Target(server.rstrip("/"), token, ca)
    with Api(target) as api:
        api.get("regions", page_size=1)
    contexts = read_contexts(current_environ())
    contexts.targets[name] = target
    contexts.current = name
    contexts.save()
    print(f"context {name} is now in use ({contexts.path})")


@context_app.command("list")
def list_contexts() -> None:
    """Show contexts; the current one has a star."""
    from headrace.cli.contexts import current_environ, read_contexts
    from headrace.cli.output import print_table

    contexts = read_contexts(current_environ())
    rows = [
        ["*" if name == contexts.current else "", name, target.server, bool(target.token)]
        for name, target in sorted(contexts.targets.items())
    ]
    if rows:
        print_table(["CURRENT", "NAME", "SERVER", "TOKEN"], rows)
    else:
        print("no contexts; `headrace login SERVER` makes one", file=sys.stderr)


@context_app.command("use")
def use_context(name: Annotated[str, typer.Argument(show_default=False)]) -> None:
    """Make a context the current one."""
    contexts = _with(name)
    contexts.current = name
    contexts.save()
    print(f"context {name} is now in use")


@context_app.command("delete")
def delete_context(name: Annotated[str, typer.Argument(show_default=False)]) -> None:
    """Forget a context and its token."""
    contexts = _with(name)
    del contexts.targets[name]
    if contexts.current == name:
        contexts.current = ""
    contexts.save()
    print(f"context {name} deleted")


def _with(name: str) -> Any:
    from headrace.cli.contexts import current_environ, read_contexts

    contexts = read_contexts(current_environ())
    if name not in contexts.targets:
        raise CliError(f"there is no context {name}; `headrace context list` shows them")
    return contexts


def _create(
    plural: str, name: str, spec: dict[str, Any], server: str | None, context: str | None, output: Output
) -> None:
    from headrace.cli.api import connect
    from headrace.cli.output import print_json, print_yaml

    with connect(server, context) as api:
        made = api.post(plural, {"name": name, "spec": spec})
    if output is Output.JSON:
        print_json(made)
    elif output is Output.YAML:
        print_yaml([made])
    else:
        # Only the secret goes to standard output, so that a script can take it.
        print(f"{made.get('kind')}/{name} created; it is shown this once:", file=sys.stderr)
        print(made.get("secret"))


def _expiry(text: str) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime.now(UTC) + timedelta(seconds=seconds(text, "--expires"))).isoformat(timespec="seconds")
