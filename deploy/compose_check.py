"""Checks docker-compose.yml without a container engine: that it is valid, and that every command, option, port, variable and file
it names exists in the product. ``python deploy/compose_check.py [FILE]``; prints one line for each fault and exits 1, or ok.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from compose_model import Compose, ComposeError, Service, read_compose

from fleet.errors import InvalidInput
from fleet.process.health import HEALTH_PATHS
from fleet.process.schema import schema_of
from fleet.process.settings import PREFIX
from fleet.resources.file import Document, load
from headrace.cli.errors import lines_of
from headrace.cli.main import build
from headrace.settings import CLI_VARIABLES, PROCESSES, load_process, model_of

ROOT = Path(__file__).resolve().parents[1]
ENGINE_MODULE = "headrace.simulated_engine"
_OTHER_PORTS = {"postgres": 5432, "redis": 6379}
_URL = re.compile(r"https?://127\.0\.0\.1:(\d+)(/[a-z/]*)")
_PORT_FIELDS = ("port", "grpc_port", "admin_port")


class Check:
    """One look at one file. ``faults`` has a line for each thing that is wrong."""

    def __init__(self, compose: Compose, root: Path) -> None:
        self.compose = compose
        self.root = root
        self.faults: list[str] = []
        self._settings: dict[str, Any] = {}
        self._fleet: list[Document] = []
        self._cli = typer.main.get_command(build())

    def run(self) -> list[str]:
        for name, service in self.compose.services.items():
            self._structure(name, service)
            self._files(name, service)
            if service.build is not None:
                self._hardening(name, service)
                self._command(name, service)
        for name, service in self.compose.services.items():
            self._ports(name, service)
            self._health(name, service)
            self._addresses(name, service)
            self._places(name, service)
        self._networks()
        self._dockerfile()
        return self.faults

    def wrong(self, where: str, what: str) -> None:
        self.faults.append(f"{where}: {what}")

    # Structure

    def _structure(self, name: str, service: Service) -> None:
        for other, dependency in service.depends_on.items():
            target = self.compose.services.get(other)
            if target is None:
                self.wrong(name, f"depends on {other}, which is no service")
            elif dependency.condition == "service_healthy" and target.healthcheck is None:
                self.wrong(name, f"waits for {other} to be healthy, which has no health check")
            elif dependency.condition == "service_completed_successfully" and target.restart != "no":
                self.wrong(name, f"waits for {other} to end, which is restarted")
        for network in service.networks:
            if network not in self.compose.networks:
                self.wrong(name, f"network {network} is not declared")
        shared = service.network_mode.removeprefix("service:")
        if shared and shared not in self.compose.services:
            self.wrong(name, f"shares the network of {shared}, which is no service")
        if bool(shared) == bool(service.networks):
            self.wrong(name, "wants either networks or the network of another service")
        if service.restart != "no" and service.healthcheck is None and not name.startswith("load-"):
            self.wrong(name, "runs for ever without a health check")

    def _hardening(self, name: str, service: Service) -> None:
        uid = service.user.partition(":")[0]
        if not uid.isdigit() or uid == "0":
            self.wrong(name, "user must be a number other than 0")
        if not service.read_only or service.cap_drop != ["ALL"] or service.cap_add:
            self.wrong(name, "must have a read-only file system and no capabilities")
        if "no-new-privileges:true" not in service.security_opt:
            self.wrong(name, "must have no-new-privileges")

    # Files

    def _files(self, name: str, service: Service) -> None:
        for target, source in service.mounts.items():
            if source.startswith("./"):
                if not (self.root / source).exists():
                    self.wrong(name, f"mounts {source}, which does not exist")
            elif source not in self.compose.volumes:
                self.wrong(name, f"volume {source} is not declared")
            if not target.startswith("/"):
                self.wrong(name, f"mounts at {target}, which is no absolute path")
        for variable, value in service.environment.items():
            if (
                value.startswith("/")
                and self._in_repository(service, value) is None
                and not self._in_volume(service, value)
            ):
                self.wrong(name, f"{variable} names {value}, which is mounted from nowhere")

    def _in_repository(self, service: Service, path: str) -> Path | None:
        """The file of this repository that a path in the container is."""
        for target, source in service.mounts.items():
            if source.startswith("./") and path.startswith(f"{target}/"):
                file = self.root / source / path.removeprefix(f"{target}/")
                return file if file.exists() else None
        return None

    def _in_volume(self, service: Service, path: str) -> bool:
        return any(
            not source.startswith("./") and (path == target or path.startswith(f"{target}/"))
            for target, source in service.mounts.items()
        )

    # Commands and settings

    def _command(self, name: str, service: Service) -> None:
        match service.entrypoint:
            case []:
                self._headrace(name, service, service.command)
                if service.command and service.command[0] in PROCESSES:
                    self._process(name, service, service.command[0])
            case ["python", "-m", module]:
                self._module(name, module, service.command)
            case ["python", script] | [script, *_] if script.startswith("/"):
                file = self._in_repository(service, script)
                if file is None:
                    self.wrong(name, f"runs {script}, which is mounted from nowhere")
                elif file.suffix == ".sh":
                    self._script(name, service, file)
                else:
                    self._reads(name, service, file)
            case other:
                self.wrong(name, f"entry point {other} is not one that is known here")

    def _headrace(self, name: str, service: Service, words: list[str]) -> None:
        """Parse a ``headrace`` command line as the command itself would, without running it."""
        command: Any = self._cli
        path, rest = "headrace", list(words)
        while hasattr(command, "commands"):
            if not rest or rest[0] not in command.commands:
                self.wrong(name, f"there is no command {path} {rest[0] if rest else ''}".rstrip())
                return
            path, command = f"{path} {rest[0]}", command.commands[rest.pop(0)]
        try:
            command.make_context(path, rest)
        except typer.TyperException as error:
            self.wrong(name, f"{path}: {error.format_message()}")

    def _process(self, name: str, service: Service, process: str) -> None:
        """Load the settings as the process would. Secrets in files are made up, other paths are those of the repository."""
        environ = dict(service.environment)
        known = schema_of(model_of(process)).by_name
        for variable in service.environment:
            twin = variable.removesuffix("_FILE")
            key = known.get(twin.removeprefix(PREFIX).lower())
            if variable.endswith("_FILE") and key is not None and key.has_file_twin:
                del environ[variable]
                environ[twin] = "made-up-for-this-check"
        config = environ.pop(f"{PREFIX}CONFIG", None)
        file = self._in_repository(service, config) if config is not None else None
        try:
            self._settings[name] = load_process(process, config_file=file, environ=environ).settings
        except InvalidInput as error:
            for line in lines_of(error):
                self.wrong(name, line)

    def _module(self, name: str, module: str, words: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False, cwd=self.root
        )
        if done.returncode != 0:
            self.wrong(name, f"python -m {module} does not run")
            return
        for word in words:
            if word.startswith("--") and not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", done.stdout):
                self.wrong(name, f"python -m {module} has no option {word}")

    def _script(self, name: str, service: Service, file: Path) -> None:
        """Every ``headrace`` command in a shell script must be one."""
        if not os.access(file, os.X_OK):
            self.wrong(name, f"{file.name} is not executable")
        for words in _headrace_lines(file.read_text()):
            self._headrace(f"{name} ({file.name})", service, words)
        self._reads(name, service, file)
        fleet = file.parent / "fleet.yaml"
        if fleet.exists():
            try:
                self._fleet = load(fleet, service.environment)
            except InvalidInput as error:
                for line in lines_of(error):
                    self.wrong(name, line)

    def _reads(self, name: str, service: Service, file: Path) -> None:
        text = file.read_text()
        for variable in service.environment:
            own = variable.removeprefix(PREFIX).lower()
            taken = own in CLI_VARIABLES if variable.startswith(PREFIX) else f'"{variable}"' in text
            if not taken:
                self.wrong(name, f"{variable} is not read by {file.name}")

    # Ports, addresses, places

    def _listens(self, name: str) -> dict[str, int]:
        """Ports of a service by what they are for."""
        settings, service = self._settings.get(name), self.compose.services[name]
        if settings is not None:
            return {f: getattr(settings, f) for f in _PORT_FIELDS if getattr(settings, f, None) is not None}
        if service.entrypoint[-1:] == [ENGINE_MODULE]:
            words = service.command
            return {"port": int(words[words.index("--port") + 1])} if "--port" in words else {}
        image = service.image.partition(":")[0]
        return {"port": _OTHER_PORTS[image]} if image in _OTHER_PORTS else {}

    def _ports(self, name: str, service: Service) -> None:
        for published in service.ports:
            _, host, inner = published.split(":")
            if int(inner) not in self._listens(name).values():
                self.wrong(name, f"publishes {inner}, where nothing listens")
            others = [n for n, s in self.compose.services.items() for p in s.ports if p.split(":")[1] == host]
            if len(others) > 1:
                self.wrong(name, f"publishes on {host}, and so does {', '.join(o for o in others if o != name)}")

    def _health(self, name: str, service: Service) -> None:
        for word in service.healthcheck.test if service.healthcheck else ():
            for port, path in _URL.findall(word):
                if int(port) not in self._listens(name).values():
                    self.wrong(name, f"its health check asks port {port}, where nothing listens")
                if path not in HEALTH_PATHS:
                    self.wrong(name, f"its health check asks {path}, which is no health path")

    def _addresses(self, name: str, service: Service) -> None:
        """Whatever names host and port names a service that listens there and can be reached."""
        for variable, value in service.environment.items():
            for item in value.split(","):
                parts = urlsplit(item if "://" in item else f"//{item}")
                try:
                    host, port = parts.hostname, parts.port
                except ValueError:
                    continue
                if host is None or port is None or _is_address(host) or not re.fullmatch(r"[a-z0-9-]+", host):
                    continue
                if host not in self.compose.services:
                    self.wrong(name, f"{variable} names {host}, which is no service")
                elif port not in self._listens(host).values():
                    self.wrong(name, f"{variable} names {host}:{port}, where nothing listens")
                elif not set(self._networks_of(name)) & set(self._networks_of(host)):
                    self.wrong(name, f"{variable} names {host}, which shares no network with it")

    def _networks_of(self, name: str) -> list[str]:
        service = self.compose.services[name]
        shared = service.network_mode.removeprefix("service:")
        return self.compose.services[shared].networks if shared in self.compose.services else service.networks

    def _places(self, name: str, service: Service) -> None:
        """Regions and zones must be in the fleet file."""
        known = {kind: {d.name for d in self._fleet if d.kind == kind} for kind in ("region", "zone")}
        for kind in known:
            place = getattr(self._settings.get(name), kind, "")
            if place and place not in known[kind]:
                self.wrong(name, f"{kind} {place} is not in the fleet file")

    def _networks(self) -> None:
        seen: list[tuple[str, ipaddress.IPv4Network | ipaddress.IPv6Network]] = []
        for name, network in self.compose.networks.items():
            for entry in network.ipam.config if network.ipam else ():
                try:
                    subnet = ipaddress.ip_network(entry["subnet"])
                except ValueError as error:
                    self.wrong(f"network {name}", str(error))
                    continue
                for other, taken in seen:
                    if subnet.version == taken.version and subnet.overlaps(taken):
                        self.wrong(f"network {name}", f"overlaps with {other}")
                seen.append((name, subnet))
        used = {v for s in self.compose.services.values() for v in s.mounts.values()}
        for volume in self.compose.volumes:
            if volume not in used:
                self.wrong(f"volume {volume}", "is used by no service")

    def _dockerfile(self) -> None:
        for context, dockerfile in {
            (s.build.context, s.build.dockerfile) for s in self.compose.services.values() if s.build
        }:
            file = self.root / context / dockerfile
            if not file.exists():
                self.wrong("build", f"there is no {dockerfile}")
                continue
            text = file.read_text().replace("\\\n", " ")
            for line in text.splitlines():
                words = line.split()
                if words[:1] == ["COPY"] and not words[1].startswith("--from"):
                    for source in words[1:-1]:
                        if not (self.root / context / source).exists():
                            self.wrong(dockerfile, f"copies {source}, which does not exist")
            if not re.search(r"^USER (?!0\b|root\b)\S+", text, re.MULTILINE):
                self.wrong(dockerfile, "does not change to a user other than root")
            scripts = tomllib.loads((self.root / "pyproject.toml").read_text())["project"]["scripts"]
            entry = re.search(r'^ENTRYPOINT \["([\w-]+)"', text, re.MULTILINE)
            if entry is None or entry[1] not in scripts:
                self.wrong(dockerfile, "its entry point is no command of the project")


def _headrace_lines(text: str) -> Iterator[list[str]]:
    """The words of each ``headrace`` command in a shell script; variables become a plain word."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?<![\w/.-])headrace\s+([^;|&<>]+)", line)
        if found and not line.lstrip().startswith("#"):
            yield shlex.split(re.sub(r"\$\{?\w+\}?", "x", found[1]))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _by_compose_itself(path: Path) -> list[str]:
    """What ``docker compose config`` says, where it is installed."""
    if shutil.which("docker") is None:
        return []
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
        return []
    done = subprocess.run(
        ["docker", "compose", "-f", str(path), "config", "-q"], capture_output=True, text=True, check=False
    )
    return [] if done.returncode == 0 else done.stderr.strip().splitlines()


def main(arguments: list[str]) -> int:
    path = Path(arguments[0]) if arguments else ROOT / "docker-compose.yml"
    try:
        compose = read_compose(path, dict(os.environ))
        faults = Check(compose, ROOT).run() + _by_compose_itself(path)
    except ComposeError as error:
        faults = error.faults
    for fault in faults:
        sys.stderr.write(f"{path.name}: {fault}\n")
    if not faults:
        sys.stdout.write(f"{path.name}: ok, {len(compose.services)} services\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
