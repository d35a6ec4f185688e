"""Child processes that never outlive the demo: each in a group of its own, ended in order, killed when it does not listen."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.errors import Unavailable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "SYSTEMROOT", "LD_LIBRARY_PATH")
_LOG_TAIL_BYTES = 4096


def child_environ(settings: Mapping[str, str]) -> dict[str, str]:
    """What a child sees: the bare machine and its settings, nothing of what the user has set for other deployments."""
    inherited = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return inherited | {"PYTHONUNBUFFERED": "1"} | dict(settings)


class Child:
    """One process by name; may be started again after it has ended."""

    def __init__(self, name: str, arguments: Sequence[str], settings: Mapping[str, str], log_dir: Path) -> None:
        self.name = name
        self.log = log_dir / f"{name}.log"
        self._arguments = list(arguments)
        self._environ = child_environ(settings)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.running and self._process is not None else None

    async def start(self) -> None:
        """Start it; its output goes to its log."""
        assert not self.running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._arguments,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Not in the terminal's group: Ctrl-C is for us, and we stop them in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    async def kill(self) -> None:
        """SIGKILL to it and whatever it has started."""
        await self._end(signal.SIGKILL, 10.0)

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM; SIGKILL when that does not help in time."""
        await self._end(signal.SIGTERM, grace_seconds)
        if self.running:
            await self.kill()

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    def check(self) -> None:
        """Raises Unavailable with the end of its log when it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise Unavailable(f"{self.name} ended with status {self._process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return "it wrote nothing"
        return " | ".join(text.strip().splitlines()[-3:]) or "it wrote nothing"

    async def _end(self, number: int, seconds: float) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        # The group, since a child may have children. It can be gone already.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()


def _die_with_parent() -> None:
    """In the child, before it becomes what it is to be: have the system kill it when the demo itself is killed."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
