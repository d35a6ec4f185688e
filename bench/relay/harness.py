"""Processes of a benchmark: started pinned, measured from /proc, ended for certain. Everything listens on 127.0.0.1."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
CPUS = sorted(os.sched_getaffinity(0))
ROUTER_CPU = {CPUS[-1]}
LOAD_CPUS = set(CPUS[:-1]) or set(CPUS)
ENGINES = 4
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def build(directory: Path) -> None:
    """Compile the mock engine and the load generator. Raises CalledProcessError, or FileNotFoundError without gcc."""
    for name in ("mock_backend", "loadgen"):
        subprocess.run(["gcc", "-O2", "-o", directory / name, HERE / f"{name}.c"], check=True)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def http_get(
    port: int, path: str, *, timeout: float = 1.0, body: str | None = None, key: str = ""
) -> tuple[int, bytes]:
    """(status, body); status 0 when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"} if body else {}
    try:
        connection.request("POST" if body else "GET", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def spawn(command: Sequence[str | Path], cpus: set[int], log: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """A child in a session of its own, so that its CPU, memory and end cover its children too."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),  # no threads here
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the session that :func:`spawn` began."""
    for number, wait in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def usage(session: int) -> tuple[float, float]:
    """(CPU seconds, resident MB) of a session so far."""
    cpu = pages = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            cpu += int(fields[11]) + int(fields[12])
            if int(name) == session:
                cpu += int(fields[13]) + int(fields[14])
            pages += int(fields[21])
    return cpu / _TICK, pages * _PAGE / 1e6


class Engines:
    """Four mock engines."""

    def __init__(self, directory: Path) -> None:
        self.ports = [free_port() for _ in range(ENGINES)]
        self._processes = [
            spawn([directory / "mock_backend", str(port)], LOAD_CPUS, subprocess.DEVNULL) for port in self.ports
        ]
        for port in self.ports:
            wait_until(lambda port=port: http_get(port, "/health")[0] == 200, 10, f"mock engine on {port}")

    def set(self, **values: float) -> None:
        """Change ``delay_ms`` or ``chunk_ms`` of all."""
        query = "&".join(f"{name}={value}" for name, value in values.items())
        for port in self.ports:
            http_get(port, f"/mock/set?{query}")

    def stop(self) -> None:
        for process in self._processes:
            stop(process)


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Raises RuntimeError when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not get ready")
        time.sleep(0.05)


def load(directory: Path, port: int, arguments: str, seconds: float) -> Mapping[str, Any]:
    """Run the load generator; what it found."""
    command = [str(directory / "loadgen"), "-p", str(port), "-d", f"{seconds:g}", *arguments.split()]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, LOAD_CPUS),
    )
    out, _ = process.communicate(timeout=seconds + 30)
    found = json.loads(out)
    assert isinstance(found, dict)
    return found
