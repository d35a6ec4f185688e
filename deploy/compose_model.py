"""The part of the Compose format that docker-compose.yml uses, as strict models: an unknown key or a wrong value is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

_VARIABLE = re.compile(r"\$(\$|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\})")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Build(Strict):
    context: str
    dockerfile: str


class Dependency(Strict):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]


class Healthcheck(Strict):
    test: list[str] = Field(min_length=2)
    interval: str = Field(pattern=r"^\d+s$")
    timeout: str = Field(pattern=r"^\d+s$")
    retries: int = Field(ge=1)
    start_period: str = Field(pattern=r"^\d+s$")


class Service(Strict):
    image: str
    build: Build | None = None
    user: str = ""
    read_only: bool = False
    tmpfs: list[str] = []
    cap_drop: list[str] = []
    cap_add: list[str] = []
    security_opt: list[str] = []
    restart: Literal["no", "unless-stopped"] = "no"
    entrypoint: list[str] = []
    command: list[str] = []
    environment: dict[str, str] = {}
    volumes: list[str] = []
    networks: list[str] = []
    network_mode: str = Field("", pattern=r"^(service:[a-z0-9-]+)?$")
    ports: list[str] = []
    depends_on: dict[str, Dependency] = {}
    healthcheck: Healthcheck | None = None

    @field_validator("ports")
    @classmethod
    def _loopback(cls, ports: list[str]) -> list[str]:
        for port in ports:
            if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port):
                raise ValueError(f"{port} is not published on loopback only, as 127.0.0.1:HOST:CONTAINER")
        return ports

    @property
    def mounts(self) -> dict[str, str]:
        """Where in the container to what: a named volume, or a path of the repository that begins with ``./``."""
        return {parts[1]: parts[0] for parts in (volume.split(":") for volume in self.volumes)}


class Ipam(Strict):
    config: list[dict[Literal["subnet"], str]]


class Network(Strict):
    ipam: Ipam | None = None


class Volume(Strict):
    pass


class Compose(Strict):
    name: str
    services: dict[str, Service]
    networks: dict[str, Network]
    volumes: dict[str, Volume]


class ComposeError(Exception):
    """The file is not what Compose would take; one line for each fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def read_compose(path: Path, environ: dict[str, str]) -> Compose:
    """The file with variables filled from ``environ`` or their defaults. Raises ComposeError."""
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ComposeError([" ".join(str(error).split())]) from None
    if not isinstance(data, dict):
        raise ComposeError(["must be a mapping"])
    faults: list[str] = []
    filled = _filled({k: v for k, v in data.items() if not str(k).startswith("x-")}, environ, faults, "")
    if faults:
        raise ComposeError(faults)
    try:
        return Compose.model_validate(filled)
    except ValidationError as error:
        raise ComposeError(
            [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors(include_url=False)]
        ) from None


def _filled(value: Any, environ: dict[str, str], faults: list[str], where: str) -> Any:
    if isinstance(value, dict):
        return {k: _filled(v, environ, faults, f"{where}.{k}" if where else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_filled(v, environ, faults, f"{where}.{i}") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        given = environ.get(found[2]) or found[3]
        if given is None:
            faults.append(f"{where}: variable {found[2]} has neither a value nor a default")
        return given or ""

    return _VARIABLE.sub(replace, value)
