"""Small things around a router process: settings that cannot work, its identity on disk, signals, saying once that it is ready."""

from __future__ import annotations

import asyncio
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fleet.errors import FieldError, InvalidInput
from fleet.process.incarnation import write_atomically
from fleet.process.insecure import require_safe
from regional.settings import RouterSettings


def check(settings: RouterSettings) -> None:
    """Raises InvalidInput for what can be known to be wrong before anything is opened."""
    if not settings.fleet and not settings.controlplane:
        reason = "give --fleet FILE (standalone) or HEADRACE_CONTROLPLANE; a router needs one of them"
        raise InvalidInput([FieldError("controlplane", reason)])
    if settings.controlplane and not settings.region:
        raise InvalidInput([FieldError("region", "a router with a control plane must say which region it serves")])
    if settings.controlplane and not settings.router_token:
        reason = "is wanted with a control plane: headrace token create NAME --role router --region REGION makes one"
        raise InvalidInput([FieldError("router_token", f"{reason}; give it in HEADRACE_ROUTER_TOKEN")])
    require_safe(
        settings.host, tls=settings.tls.cert is not None, auth=True, insecure=settings.insecure, what="this router"
    )


def router_uid(state_dir: Path | None) -> str:
    """Kept in the state directory, so that a router that restarts is the same router; without one it is a new one."""
    if state_dir is None:
        return str(uuid.uuid4())
    path = state_dir / "router-uid"
    with suppress(OSError, ValueError):
        return str(uuid.UUID(path.read_text("ascii").strip()))
    uid = str(uuid.uuid4())
    write_atomically(path, uid.encode())
    return uid


def once(ready: Callable[[], None]) -> Callable[[bool], None]:
    """A readiness listener that passes on the first time only."""
    told = False

    def listener(is_ready: bool) -> None:
        nonlocal told
        if is_ready and not told:
            told = True
            ready()

    return listener


@contextmanager
def on_sighup(action: Callable[[], None] | None) -> Iterator[None]:
    """Call ``action`` at SIGHUP while the block runs. Signals are the main thread's; elsewhere there is none to take."""
    if action is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, action)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
