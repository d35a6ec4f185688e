"""What an agent keeps in its state directory, and what it learns from the operating system once."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fleet.process.incarnation import write_atomically

IDENTITY, DEVICES, PINS = "identity.json", "devices.json", "pins.json"


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """The node's identity as it was handed out. Wall times are this machine's own."""

    node_uid: str
    token: str = field(repr=False)
    received_wall: float
    expires_wall: float

    def renew_wall(self, share: float) -> float:
        return self.received_wall + (self.expires_wall - self.received_wall) * share


class StateFiles:
    """JSON files of one directory, replaced whole and readable by the owner only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> Any:
        """The document, or None when it is missing or damaged."""
        try:
            return json.loads((self._directory / name).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def write(self, name: str, document: object) -> None:
        """Raises OSError."""
        write_atomically(self._directory / name, json.dumps(document, allow_nan=False).encode(), mode=0o600)

    def identity(self) -> StoredIdentity | None:
        document = self.read(IDENTITY)
        try:
            return StoredIdentity(
                str(document["node_uid"]),
                str(document["token"]),
                float(document["received_wall"]),
                float(document["expires_wall"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def keep_identity(self, identity: StoredIdentity) -> None:
        """Raises OSError."""
        self.write(IDENTITY, asdict(identity))


def boot_id() -> str:
    """Changes with every boot of this machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def local_address_towards(host: str, port: int) -> str:
    """The address of this machine from which ``host`` is reached; empty when there is no way. Sends nothing."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _name, address in infos:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
                return str(probe.getsockname()[0]).partition("%")[0]
            except OSError:
                continue
    return ""


def split_host_port(address: str, default_port: int = 7601) -> tuple[str, int]:
    """``host:port``, ``[addr]:port`` or with a scheme before it. Raises ValueError."""
    bare = address.partition("://")[2] or address
    bare = bare.rstrip("/")
    if bare.startswith("["):
        host, _, port = bare[1:].partition("]")
        port = port.lstrip(":")
    elif bare.count(":") > 1:
        host, port = bare, ""
    else:
        host, _, port = bare.partition(":")
    if not host:
        raise ValueError(f"{address!r}: host:port expected")
    number = int(port) if port else default_port
    if not 0 < number < 65536:
        raise ValueError(f"{address!r}: port must be 1 to 65535")
    return host, number


def own_addresses(advertise: str, routers: Iterable[str]) -> tuple[str, ...]:
    """This node's addresses as routers may see them, the most likely first."""
    found = [advertise] if advertise else []
    for router in routers:
        try:
            host, port = split_host_port(router)
        except ValueError:
            continue
        address = local_address_towards(host, port)
        if address:
            found.append(address)
    return tuple(dict.fromkeys(found))
