"""Running the demo as a user does, and looking for what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path


async def start_demo(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    """``headrace demo`` with its state in ``folder``."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "headrace", "demo", "--keep", str(folder), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # As a shell without job control would, so that a signal to us is not one to it.
        start_new_session=True,
    )


def left_behind(folder: Path) -> list[str]:
    """Command lines of processes that belong to the demo of this folder: it is in their arguments or their environment."""
    mark = str(folder).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if mark in command or mark in (entry / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has just ended, or is not ours to see
    return found
