"""Where the control planes are: a list of names, each of which may stand for several addresses that change."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import FieldError, InvalidInput


@dataclass(frozen=True, slots=True)
class Target:
    """One address to connect to, and the name it was found under (which TLS checks)."""

    address: str
    """``host:port`` with an IP address, IPv6 in brackets."""
    name: str
    scheme: str = ""
    """``https`` or ``http`` where the setting says so; empty leaves it to whether there is a CA."""


def split_host_port(value: str, default_port: int) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[addr]:port``, with an optional scheme. Raises InvalidInput."""
    text = value.strip().rpartition("://")[2].rstrip("/")
    host, port = text, str(default_port)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidInput([FieldError("controlplane", f"{value!r} is not host:port")])
        port = rest[1:] or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput([FieldError("controlplane", f"{value!r} is not host:port")])
    return host, int(port)


def join_host_port(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve(listed: Sequence[str], default_port: int, rng: random.Random) -> list[Target]:
    """Every address of every name, in random order so that routers spread. Names that do not resolve now are left out."""
    loop = asyncio.get_running_loop()
    found: dict[str, Target] = {}
    for entry in listed:
        host, port = split_host_port(entry, default_port)
        scheme = entry.strip().partition("://")[0] if "://" in entry else ""
        try:
            ipaddress.ip_address(host)
            addresses = [host]
        except ValueError:
            try:
                infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError:
                continue
            addresses = [str(info[4][0]) for info in infos]
        for address in addresses:
            target = Target(join_host_port(address, port), host, scheme)
            found.setdefault(target.address, target)
    targets = list(found.values())
    rng.shuffle(targets)
    return targets
