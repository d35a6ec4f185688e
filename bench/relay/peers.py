"""How each router is started: a command, and the files it reads."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.relay.harness import ROUTER_CPU, free_port, http_get, spawn, stop, wait_until

KEY = "sk-bench"

_HAPROXY = """
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 1s
  timeout client 120s
  timeout server 120s
  timeout http-keep-alive 60s
  http-reuse always
  option http-no-delay
  retries 3
  option redispatch 1
  retry-on conn-failure empty-response
frontend in
  bind 127.0.0.1:{port}
  default_backend engines
backend engines
  balance leastconn
  option httpchk GET /health
  default-server check inter 1s fall 2 rise 1
{servers}
"""

_FLEET = """kind: region
name: here
spec: {}
---
kind: zone
name: here-a
spec: {region: here}
---
kind: node
name: node-1
spec: {zone: here-a, gpus: [{product: h100-sxm-80, count: 8}]}
---
kind: model
name: mock
spec: {task: chat}
---
kind: tenant
name: bench
spec: {}
---
kind: key
name: bench-1
spec: {tenant: bench, secret: sk-bench}
"""

_ENDPOINT = """---
kind: endpoint
name: engine-{i}
spec: {{node: node-1, url: "http://127.0.0.1:{port}", engine: vllm, models: [mock], gpus: ["{i}"]}}
"""

NAMES = ("direct", "haproxy", "headrace")


def available(name: str) -> bool:
    return name != "haproxy" or shutil.which("haproxy") is not None


@dataclass
class Router:
    """A running router; ``direct`` is none at all."""

    name: str
    port: int
    start_seconds: float
    session: int | None

    def stop(self) -> None:
        pass


class _Started(Router):
    def __init__(self, name: str, directory: Path, engine_ports: Sequence[int]) -> None:
        port = free_port()
        command = _command(name, directory, port, engine_ports)
        began = time.monotonic()
        self._log = (directory / f"{name}.log").open("wb")
        self._process = spawn(command, ROUTER_CPU, self._log)
        super().__init__(name, port, 0.0, self._process.pid)
        try:
            wait_until(lambda: self._answers(engine_ports), 60, name)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - began

    def _answers(self, engine_ports: Sequence[int]) -> bool:
        body = '{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":4}'
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: see {self._log.name}")
        wanted = 2 * len(engine_ports)
        return all(
            http_get(self.port, "/v1/chat/completions", timeout=5, body=body, key=KEY)[0] == 200 for _ in range(wanted)
        )

    def stop(self) -> None:
        stop(self._process)
        self._log.close()


def start(name: str, directory: Path, engine_ports: Sequence[int]) -> Router:
    """Raises RuntimeError when it does not get ready."""
    if name == "direct":
        return Router(name, engine_ports[0], 0.0, None)
    return _Started(name, directory, engine_ports)


def _command(name: str, directory: Path, port: int, engine_ports: Sequence[int]) -> list[str]:
    if name == "haproxy":
        servers = "\n".join(f"  server s{i} 127.0.0.1:{p}" for i, p in enumerate(engine_ports))
        path = directory / "haproxy.cfg"
        path.write_text(_HAPROXY.format(port=port, servers=servers))
        return ["haproxy", "-db", "-f", str(path)]
    path = directory / "fleet.yaml"
    path.write_text(_FLEET + "".join(_ENDPOINT.format(i=i, port=p) for i, p in enumerate(engine_ports)))
    return [
        str(Path(sys.executable).parent / "headrace"),
        "router",
        "--fleet",
        str(path),
        "--region",
        "here",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--grpc-port",
        str(free_port()),
        "--admin-port",
        str(free_port()),
        "--log-level",
        "warning",
    ]
