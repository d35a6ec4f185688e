"""Ports for the demo: a block that is free now and that nothing takes by chance."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from fleet.errors import Unavailable
from headrace.demo.layout import HOST

# Below where systems take ports of outgoing connections from: a restarted process must find its port free again.
_FIRST, _LAST = 15_000, 32_000


def is_free(port: int) -> bool:
    """Whether somebody could listen on it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def check_free(ports: Sequence[int]) -> None:
    """Raises Unavailable naming the first that is taken."""
    for port in ports:
        if not 0 < port < 65_536:
            raise Unavailable(f"port {port} does not exist; choose a lower --port-base")
        if not is_free(port):
            raise Unavailable(f"{HOST}:{port} is taken; choose another --port-base, or none for free ports")


def free_block(count: int) -> int:
    """First of ``count`` successive free ports. Raises Unavailable when none is found."""
    for _ in range(200):
        first = random.randrange(_FIRST, _LAST - count)  # noqa: S311  any block will do
        if all(is_free(first + offset) for offset in range(count)):
            return first
    raise Unavailable(f"no block of {count} free ports was found; choose one with --port-base")
