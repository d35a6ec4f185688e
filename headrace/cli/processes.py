"""controlplane, router, agent, demo: the commands that serve."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.errors import CliError, lines_of
from headrace.cli.options import Config, ShowConfig

Host = Annotated[str | None, typer.Option("--host", help="Address to serve on.", show_default=False)]
Port = Annotated[int | None, typer.Option("--port", help="HTTP port; 0 takes a free one.", show_default=False)]
GrpcPort = Annotated[int | None, typer.Option("--grpc-port", help="gRPC port.", show_default=False)]
AdminPort = Annotated[
    int | None, typer.Option("--admin-port", help="Port of health, metrics and debugging.", show_default=False)
]
StateDir = Annotated[
    str | None, typer.Option("--state-dir", help="Directory that outlives the process.", show_default=False)
]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.", show_default=False)]


def controlplane(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    grpc_port: GrpcPort = None,
    state_dir: StateDir = None,
    log_level: LogLevel = None,
    show_config: ShowConfig = False,
) -> None:
    """Serve the control plane: REST API and gRPC."""
    flags = {"host": host, "port": port, "grpc_port": grpc_port, "state_dir": state_dir, "log_level": log_level}
    settings = _settings("controlplane", config, flags, show_config)
    if settings is not None:
        from controlplane.main import run

        _serve("controlplane", settings, lambda stop: run(settings, stop=stop, on_bound=_bound("controlplane")))


def router(
    config: Config = None,
    region: Annotated[str | None, typer.Option(help="Region of this router.", show_default=False)] = None,
    fleet: Annotated[
        str | None, typer.Option("--fleet", help="Fleet file: standalone, without a control plane.", show_default=False)
    ] = None,
    controlplane: Annotated[
        list[str] | None, typer.Option(help="host:port of a control plane's gRPC (repeatable).", show_default=False)
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the port.", show_default=False)] = None,
    host: Host = None,
    port: Port = None,
    grpc_port: GrpcPort = None,
    admin_port: AdminPort = None,
    state_dir: StateDir = None,
    geoip_db: Annotated[
        str | None, typer.Option("--geoip-db", help="Database in MaxMind's format.", show_default=False)
    ] = None,
    log_level: LogLevel = None,
    show_config: ShowConfig = False,
) -> None:
    """Serve a regional router: inference API, agents' gRPC, admin port."""
    flags = {
        "region": region,
        "fleet": fleet,
        "controlplane": controlplane or None,
        "workers": workers,
        "host": host,
        "port": port,
        "grpc_port": grpc_port,
        "admin_port": admin_port,
        "state_dir": state_dir,
        "geoip_db": geoip_db,
        "log_level": log_level,
    }
    settings = _settings("router", config, flags, show_config)
    if settings is not None:
        from headrace.embedded_agent import create
        from regional.main import run

        _serve(
            "router",
            settings,
            lambda stop: run(
                settings,
                stop=stop,
                ready=_ready("router"),
                on_bound=_bound("router"),
                embedded_agent_factory=create,
            ),
        )


def agent(
    config: Config = None,
    devices: Annotated[
        str | None,
        typer.Option(help="nvml, none, dcgm:URL or simulated:4xh100-sxm-80,4xa100-sxm-80.", show_default=False),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="KIND=URL, such as vllm=http://127.0.0.1:8000 (repeatable).", show_default=False),
    ] = None,
    routers: Annotated[
        list[str] | None,
        typer.Option("--router", help="host:port of a router's gRPC (repeatable).", show_default=False),
    ] = None,
    zone: Annotated[str | None, typer.Option(help="Zone of this node.", show_default=False)] = None,
    node: Annotated[str | None, typer.Option(help="Name of this node.", show_default=False)] = None,
    host: Host = None,
    port: Port = None,
    state_dir: StateDir = None,
    log_level: LogLevel = None,
    show_config: ShowConfig = False,
) -> None:
    """Serve a node agent: reports GPUs and engines to the routers of its region."""
    flags = {
        "devices": devices,
        "engines": engine or None,
        "routers": routers or None,
        "zone": zone,
        "node": node,
        "host": host,
        "port": port,
        "state_dir": state_dir,
        "log_level": log_level,
    }
    settings = _settings("agent", config, flags, show_config)
    if settings is not None:
        from agents.main import run

        _serve("agent", settings, lambda stop: run(settings, stop=stop, ready=_ready("agent")))


def demo(
    once: Annotated[bool, typer.Option("--once", help="Run the ladder and exit 0 only if every rung held.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the live table.")] = False,
    no_ladder: Annotated[bool, typer.Option("--no-ladder", help="Only bring it up.")] = False,
    engine: Annotated[str, typer.Option(help="simulated or llamacpp.")] = "simulated",
    regions: Annotated[int, typer.Option(min=1, max=3, help="How many regions.")] = 3,
    port_base: Annotated[
        int | None, typer.Option(help="First of the ports to use; free ones when left out.", show_default=False)
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Directory to keep state and logs in.", show_default=False)] = None,
) -> None:
    """The whole thing on this machine: three regions, traffic, and the failover ladder."""
    if engine not in ("simulated", "llamacpp"):
        raise CliError(f"--engine must be simulated or llamacpp, not {engine!r}", 2)
    from headrace.demo.main import run

    status = run(
        once=once, json=json, no_ladder=no_ladder, engine=engine, regions=regions, port_base=port_base, keep=keep
    )
    raise typer.Exit(status)


def _settings(process: str, config: Path | None, flags: Mapping[str, Any], show: bool) -> Any:
    """The settings, or None after showing them."""
    from fleet.errors import InvalidInput
    from fleet.process.schema import schema_of
    from fleet.process.show import show_settings
    from headrace.settings import load_process, model_of

    names = schema_of(model_of(process)).by_name
    try:
        loaded = load_process(process, config_file=config, flags={n: v for n, v in flags.items() if n in names})
    except InvalidInput as error:
        raise CliError("\n".join(lines_of(error)), 2) from None
    if show:
        print(show_settings(loaded, process), end="")
        return None
    return loaded.settings


def _ready(process: str) -> Callable[[], None]:
    def told() -> None:
        from fleet.process.logs import get_logger

        # What is here now stays to the end: collections need not walk it again. The relay leaves no cycles behind, so that
        # rarer collections lose nothing.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        get_logger(process).info("ready")

    return told


def _bound(process: str) -> Callable[[str, int], None]:
    def told(name: str, port: int) -> None:
        from fleet.process.logs import get_logger

        get_logger(process).info("listening", on=name, port=port)

    return told


def _serve(process: str, settings: Any, body: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run ``body`` until SIGTERM or SIGINT, which end it in good order; a second one ends it at once."""
    from fleet.errors import HeadraceError
    from fleet.process import logs

    log = getattr(settings, "log", None)
    level = log.level if log is not None else getattr(settings, "log_level", "info")
    form = log.format if log is not None else "auto"
    logs.setup(process, level=level, json=None if form == "auto" else form == "json")

    async def until_told() -> None:
        stop = asyncio.Event()
        task = asyncio.ensure_future(body(stop))
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        await task

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(until_told())
    except asyncio.CancelledError:
        raise CliError(f"{process} was told twice to stop and did so at once") from None
    except HeadraceError:
        raise
    except BaseExceptionGroup as group:
        _, unexpected = group.split(HeadraceError)
        if unexpected is None:
            raise CliError("\n".join(dict.fromkeys(_lines(group)))) from None
        raise _failure(process, unexpected) from None
    except Exception as error:  # noqa: BLE001 - the edge of the process: the log gets all of it, the terminal one line
        raise _failure(process, error) from None


def _failure(process: str, error: BaseException) -> CliError:
    from fleet.process.logs import get_logger

    get_logger(process).error("failed", exc_info=error)
    return CliError(f"{process} failed ({type(error).__name__}); the log above says why")


def _lines(group: BaseExceptionGroup[BaseException]) -> list[str]:
    """The texts of all errors in a group, however deep."""
    from fleet.errors import HeadraceError

    lines: list[str] = []
    for error in group.exceptions:
        lines += (
            _lines(error)
            if isinstance(error, BaseExceptionGroup)
            else lines_of(error)
            if isinstance(error, HeadraceError)
            else [str(error)]
        )
    return lines


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
