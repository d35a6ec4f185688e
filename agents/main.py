"""One node agent, built and released in one place."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agents.accelerators.base import Devices
from agents.accelerators.open import open_devices
from agents.admin import registry_of, state_router
from agents.agent import Agent
from agents.settings import AgentSettings
from fleet.errors import FieldError, InvalidInput
from fleet.process.admin import admin_app
from fleet.process.health import Readiness
from fleet.process.incarnation import hold_state_directory
from fleet.process.insecure import require_safe
from fleet.process.logs import get_logger
from fleet.process.serve import serve_http
from fleet.process.tls import TlsFiles

log = get_logger("agents.main")


async def run(
    settings: AgentSettings,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None] | None = None,
    devices: Devices | None = None,
    on_bound: Callable[[str, int], None] | None = None,
    dial: Callable[[str], str] | None = None,
) -> None:
    """Serve until ``stop`` is set, then leave as ``on_term`` says and release everything. ``ready`` is called once it runs.

    ``devices`` replaces what the settings name; ``on_bound`` is told the admin port in use; ``dial`` turns
    the address a router is known by into the one it is reached under from here. Raises InvalidInput for settings
    that cannot work, BindError for a port that cannot be had.
    """
    _check(settings)
    tls = TlsFiles(settings.tls)
    readiness = Readiness("identity", "routers")
    with contextlib.ExitStack() as held:
        if settings.state_dir:
            state_dir = held.enter_context(hold_state_directory(Path(settings.state_dir)))
        else:
            state_dir = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="headrace-agent-")))
            log.warning("no_state_dir", hint="set HEADRACE_STATE_DIR, or this node joins anew at each start")
        agent = Agent(
            settings,
            devices=devices if devices is not None else open_devices(settings),
            state_dir=state_dir,
            readiness=readiness,
            tls=tls,
            version=_version(),
            dial=dial,
        )
        app = admin_app("agent", readiness, registry_of(agent), [state_router(agent)])
        left = asyncio.Event()
        admin = asyncio.get_running_loop().create_task(
            serve_http(
                app, host=settings.host, port=settings.port, tls=tls, stop=left, on_bound=on_bound, grace_seconds=1.0
            )
        )
        agent_task = asyncio.get_running_loop().create_task(agent.run(stop, ready))
        try:
            # The admin port answers until the agent has left; without it the agent does not go on.
            await asyncio.wait({admin, agent_task}, return_when=asyncio.FIRST_COMPLETED)
            if admin.done():
                admin.result()
            await agent_task
            left.set()
            await admin
        finally:
            for task in (agent_task, admin):
                task.cancel()
            await asyncio.gather(agent_task, admin, return_exceptions=True)


def _check(settings: AgentSettings) -> None:
    """Raises InvalidInput that says what is missing."""
    missing = [
        FieldError(name, reason)
        for name, value, reason in (
            ("routers", settings.routers, "name at least one router: HEADRACE_ROUTERS=host:7601"),
            ("zone", settings.zone, "say which zone this node is in: HEADRACE_ZONE"),
        )
        if not value
    ]
    if missing:
        raise InvalidInput(missing)
    # Nothing on this port needs a credential: state and faults are for this machine only, health and metrics tell no secret.
    require_safe(
        settings.host, tls=settings.tls.cert is not None, auth=True, insecure=settings.insecure, what="the agent"
    )


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "0"
