"""Real processes of headrace for tests: started by the command line, on ports of their own choosing, ended in good order."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

START_SECONDS = 60.0


class Process:
    """A running ``headrace`` command whose log is read all the time, so that it can neither block nor be lost."""

    def __init__(self, arguments: list[str], environ: Mapping[str, str]) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        self.arguments = arguments
        self._child = subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            env={**inherited, "HEADRACE_LOG_FORMAT": "json", **environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("{"):
                self._records.put(json.loads(line))
        self._records.put(None)

    def wait_for(self, what: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next log record that ``wanted`` accepts."""
        ends = time.monotonic() + START_SECONDS
        while True:
            try:
                record = self._records.get(timeout=max(0.01, ends - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.arguments}: no {what} within {START_SECONDS} s:\n{self.log()}") from None
            if record is None:
                raise AssertionError(f"{self.arguments} ended before {what}:\n{self.log()}")
            if wanted(record):
                return record

    def port(self, name: str) -> int:
        """The port it took for ``http``, ``grpc`` or ``admin``."""
        record = self.wait_for(f"{name} port", lambda r: r["event"] == "listening" and r.get("on") == name)
        return int(record["port"])

    def log(self) -> str:
        return "\n".join(self.lines[-60:])

    def running(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        """End it the hard way."""
        self._child.kill()
        self._child.wait(30)
        self._close()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.running():
            self._child.terminate()
        try:
            status = self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(30)
            raise AssertionError(f"{self.arguments} did not stop:\n{self.log()}") from None
        finally:
            self._close()
        return status

    def _close(self) -> None:
        self._reader.join(10)
        if self._child.stderr is not None:
            self._child.stderr.close()


def wait_ready(url: str, process: Process, *, path: str = "/readyz", seconds: float = START_SECONDS) -> None:
    """Wait until ``url`` says that it is ready."""
    ends = time.monotonic() + seconds
    last = "nothing"
    while time.monotonic() < ends:
        if not process.running():
            raise AssertionError(f"{process.arguments} ended:\n{process.log()}")
        try:
            answer = httpx2.get(url + path, trust_env=False, timeout=5)
            if answer.status_code == 200:
                return
            last = answer.text
        except httpx2.HTTPError as error:
            last = str(error)
        time.sleep(0.05)
    raise AssertionError(f"{process.arguments} is not ready: {last}\n{process.log()}")
