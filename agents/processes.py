"""Which processes listen on a port, and whose children they have: read from /proc, for engines whose GPUs nobody wrote down."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"


def listeners(ports: Iterable[int], proc: Path = Path("/proc")) -> dict[int, set[int]]:
    """Port to the pids that hold a listening TCP socket on it. What this process may not look into is left out."""
    inodes = _listening_inodes(set(ports), proc)
    found: dict[int, set[int]] = {}
    for pid in _pids(proc):
        try:
            descriptors = list((proc / str(pid) / "fd").iterdir())
        except OSError:
            continue  # gone, or somebody else's
        for descriptor in descriptors:
            try:
                link = os.readlink(descriptor)
            except OSError:
                continue
            if link.startswith("socket:[") and link[8:-1] in inodes:
                found.setdefault(inodes[link[8:-1]], set()).add(pid)
    return found


def parents(proc: Path = Path("/proc")) -> dict[int, int]:
    """Pid to parent pid of every process that can be seen."""
    table: dict[int, int] = {}
    for pid in _pids(proc):
        try:
            stat = (proc / str(pid) / "stat").read_text("utf-8", "replace")
        except OSError:
            continue
        # The name in the second field may hold anything; what follows the last bracket is numbers.
        fields = stat.rpartition(")")[2].split()
        if len(fields) > 1 and fields[1].isdigit():
            table[pid] = int(fields[1])
    return table


def _pids(proc: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _listening_inodes(ports: set[int], proc: Path) -> dict[str, int]:
    inodes: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN:
                continue
            port = int(fields[1].rpartition(":")[2], 16)
            if port in ports:
                inodes[fields[9]] = port
    return inodes
