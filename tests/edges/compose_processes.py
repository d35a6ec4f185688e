"""The services of docker-compose.yml as plain processes of this machine: same commands, same environment, same order of starting.

What a container network gives is put in place by hand: each service has a loopback address of its own, so ports stay those of
the file, and names in the environment become those addresses. Volumes become folders. PostgreSQL and Redis are the tests' own.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "deploy"))

from compose_model import Compose, Service, read_compose  # noqa: E402

START_SECONDS = 300.0
_GIVEN = ("postgres", "redis-")
"""Services that the tests bring themselves."""
_URL = re.compile(r"http://127\.0\.0\.1(:\d+/[a-z/]*)")


class ComposeProcesses:
    """Start with :meth:`up`; always end with :meth:`down`."""

    def __init__(
        self, folder: Path, database_url: str, redis_urls: Mapping[str, str], overrides: Mapping[str, str]
    ) -> None:
        self.compose: Compose = read_compose(ROOT / "docker-compose.yml", {})
        self._folder = folder
        self._database_url = database_url
        self._redis_urls = redis_urls
        self._overrides = overrides
        rng = random.Random()
        prefix = f"127.{rng.randrange(110, 250)}.{rng.randrange(1, 250)}"
        self.addresses: dict[str, str] = {}
        for number, name in enumerate(self.compose.services, start=1):
            self.addresses[name] = f"{prefix}.{number}"
        for name, service in self.compose.services.items():
            shared = service.network_mode.removeprefix("service:")
            if shared:
                self.addresses[name] = self.addresses[shared]
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._http = httpx2.Client(trust_env=False, timeout=5)
        self._done: set[str] = {n for n in self.compose.services if n.startswith(_GIVEN)}

    def up(self) -> None:
        """Start everything as soon as what it depends on is healthy, or has ended well."""
        ends = time.monotonic() + START_SECONDS
        waiting = {n for n in self.compose.services if n not in self._done}
        while waiting or not all(self._settled(name) for name in self._children):
            for name in sorted(waiting):
                if all(self._settled(other) for other in self.compose.services[name].depends_on):
                    self._start(name)
                    waiting.discard(name)
            if time.monotonic() > ends:
                late = [n for n in self.compose.services if not self._settled(n)]
                raise AssertionError(f"not up: {late}\n" + "\n".join(self.log(n) for n in late if n in self._children))
            time.sleep(0.1)

    def down(self) -> dict[str, int]:
        """SIGTERM to all, loads first; exit status by service."""
        self._http.close()
        for name in sorted(self._children, key=lambda n: not n.startswith("load-")):
            if self._children[name].poll() is None:
                self._children[name].send_signal(signal.SIGTERM)
                if name.startswith("load-"):
                    self._children[name].wait(60)
        statuses = {}
        for name, child in self._children.items():
            try:
                statuses[name] = child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                statuses[name] = child.wait(30)
        return statuses

    def kill(self, *names: str) -> None:
        """End services the hard way."""
        for name in names:
            self._children[name].kill()
            self._children[name].wait(30)

    def report(self, name: str) -> dict[str, Any]:
        """The latest line of a load generator; empty before the first."""
        lines = (self._folder / f"{name}.out").read_text().splitlines()
        whole = [line for line in lines if line.endswith("}")]
        found: dict[str, Any] = json.loads(whole[-1]) if whole else {}
        return found

    def log(self, name: str) -> str:
        text = (self._folder / f"{name}.err").read_text(errors="replace")
        return f"--- {name}\n" + "\n".join(text.splitlines()[-20:])

    def url(self, name: str, port: int) -> str:
        return f"http://{self.addresses[name]}:{port}"

    # One service

    def _start(self, name: str) -> None:
        service = self.compose.services[name]
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "LOAD_"))}
        environ |= {variable: self._here(name, service, value) for variable, value in service.environment.items()}
        environ |= {k: v for k, v in self._overrides.items() if k in service.environment or k.startswith("LOAD_")}
        if name.startswith("agent-"):
            environ["HEADRACE_ADVERTISE"] = self.addresses[name]  # a container's own address is found by itself
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        words = [*(service.entrypoint or ["headrace"]), *service.command]
        command = [self._here(name, service, word) for word in words]
        with (self._folder / f"{name}.out").open("wb") as out, (self._folder / f"{name}.err").open("wb") as err:
            self._children[name] = subprocess.Popen(
                command, env=environ, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=self._folder
            )

    def _here(self, name: str, service: Service, value: str) -> str:
        """A value of the file as it is on this machine."""
        if value.startswith("postgres://"):
            return self._database_url
        if value.startswith("redis://"):
            return self._redis_urls[value.removeprefix("redis://").partition(":")[0]]
        for target, source in service.mounts.items():
            if value == target or value.startswith(f"{target}/"):
                return str(self._mounted(name, source) / value.removeprefix(target).lstrip("/"))
        value = value.replace("0.0.0.0", self.addresses[name])
        names = "|".join(sorted(map(re.escape, self.addresses), key=len, reverse=True))
        return re.sub(rf"(?<![\w.-])({names})(?=:\d|$|,)", lambda found: self.addresses[found[1]], value)

    def _mounted(self, name: str, source: str) -> Path:
        if not source.startswith("./"):
            folder = self._folder / "volumes" / source
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        if not name.startswith("agent-"):
            return ROOT / source
        # Of an agent: its engine is on this node's address, which in a container is 127.0.0.1.
        own = self._folder / name
        if not own.exists():
            own.mkdir()
            text = (ROOT / source / "agent.toml").read_text()
            (own / "agent.toml").write_text(text.replace("127.0.0.1", self.addresses[name]))
        return own

    def _settled(self, name: str) -> bool:
        """Healthy, or ended well where it is to end. Raises AssertionError for a service that has failed."""
        if name in self._done:
            return True
        child = self._children.get(name)
        if child is None:
            return False
        service = self.compose.services[name]
        status = child.poll()
        if status is not None:
            if status != 0 or service.restart != "no":
                raise AssertionError(f"{name} ended with {status}\n{self.log(name)}")
            self._done.add(name)
        elif service.healthcheck is not None:
            port_and_path = next(found[1] for word in service.healthcheck.test if (found := _URL.search(word)))
            try:
                answer = self._http.get(f"http://{self.addresses[name]}{port_and_path}")
            except httpx2.HTTPError:
                return False
            if answer.status_code == 200:
                self._done.add(name)
        elif service.restart != "no":
            self._done.add(name)  # runs for ever, and nobody asks how it is
        return name in self._done
