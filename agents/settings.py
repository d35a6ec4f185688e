"""What a node agent can be told. One typed object per process; each part is handed only what it needs."""

from __future__ import annotations

import re
import socket
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agents.xid import XidPolicy, parse_policy
from fleet.endpoint import EngineKind
from fleet.process.settings import ProcessSettings
from fleet.resources.base import NAME_PATTERN, Alias, BaseUrl, ResourceName

Port = Annotated[int, Field(ge=0, le=65535)]
"""0 lets the system choose (tests, demo)."""
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]

_SIMULATED = re.compile(r"^simulated:\s*\d+x[a-z0-9-]+(\s*,\s*\d+x[a-z0-9-]+)*$")


class EngineSettings(BaseModel):
    """One ``[[engine]]`` table. The name is the engine's identity on its node; port and address may change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: ResourceName
    kind: EngineKind
    url: BaseUrl
    """Where the agent reaches it."""
    advertise: BaseUrl | None = None
    """Where routers reach it. Default: ``url``, with a loopback host replaced by the agent's ``advertise`` address."""
    gpus: list[str] = []
    """Index, UUID or MIG-...; empty: the driver's process list says; else condition GPUsUnknown."""
    models: dict[Alias, Alias] = {}
    """The engine's name of a model to ours; empty: all that it serves, under its own names."""
    api_key: str = Field("", repr=False)
    api_key_file: str = ""
    """Read again when the file changes."""
    tensor_parallel: int = Field(1, ge=1, le=64)
    max_inflight: int | None = Field(None, ge=1, le=100_000)
    kv_tokens: int | None = Field(None, ge=1)
    context_tokens: int | None = Field(None, ge=1)


class AgentSettings(ProcessSettings):
    """Settings of ``headrace agent``: table ``[agent]``, environment ``HEADRACE_AGENT_*`` and the short aliases."""

    # Where it listens
    host: str = "127.0.0.1"
    port: Port = 7602
    """Admin HTTP: health, metrics, state."""

    # Who it is
    node: ResourceName = Field(default_factory=lambda: node_name(socket.gethostname()), validate_default=True)
    """Name of this node; the host name by default."""
    zone: str = Field("", pattern=rf"^$|{NAME_PATTERN}")
    region: str = Field("", pattern=rf"^$|{NAME_PATTERN}")
    """Only a check when joining; the zone decides."""
    state_dir: str = ""
    """Identity, incarnation, what is known of devices. Empty keeps nothing over a restart: the node has to join again."""
    advertise: str = ""
    """This node's own address as routers reach it (a host, no port). Default: the address the routers are reached from."""

    # Whom it tells
    routers: list[str] = []
    """``host:port`` of routers' gRPC; every address of a name is used."""
    join_token: str = Field("", repr=False)
    """Shown once; after that the node has an identity of its own."""
    interval_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.4
    """How often it reports, and reads engines and devices."""
    reconnect_max_seconds: Annotated[float, Field(ge=0.1, le=300)] = 10.0
    """Longest back-off before a router is tried again."""

    # What it looks at
    devices: str = "nvml"
    """``nvml``, ``dcgm:URL``, ``none`` or ``simulated:4xh100-sxm-80,4xa100-sxm-80``."""
    xid_policy: str = ""
    """Changes to the XID policy: ``109=out,13=keep,94=out:2/86400``."""
    engines: list[EngineSettings] = []
    """``[[engine]]`` tables, or ``kind=URL`` (repeatable; the name is then kind-port)."""
    engine_timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0
    """One scrape or probe of an engine."""
    warmup_requests: int = Field(0, ge=0, le=64)
    """Requests of one token sent to an engine that was seen starting, before it is reported ready."""

    # How it leaves
    on_term: Literal["restart", "drain"] = "restart"
    """``restart``: engines keep traffic and routers probe them for the grace; ``drain``: the node is going away."""
    restart_grace_seconds: Seconds = 120.0
    drain_deadline_seconds: Seconds = 300.0
    """``drain``: how long to wait for engines to become idle."""

    @model_validator(mode="before")
    @classmethod
    def _engines_key(cls, values: Any) -> Any:
        """``engines`` (environment, flag) and ``engine`` (TOML tables) are one list."""
        if isinstance(values, dict) and "engine" in values:
            values = dict(values)
            tables = values.pop("engine")
            values["engines"] = [*_as_list(values.get("engines")), *_as_list(tables)]
        return values

    @field_validator("engines", mode="before")
    @classmethod
    def _engine_items(cls, value: Any) -> Any:
        return [engine_from_flag(item) if isinstance(item, str) else item for item in _as_list(value)]

    @field_validator("engines")
    @classmethod
    def _engine_names(cls, value: list[EngineSettings]) -> list[EngineSettings]:
        seen: set[str] = set()
        for engine in value:
            if engine.name in seen:
                raise ValueError(f"two engines are called {engine.name!r}; a name is an identity and must be unique")
            seen.add(engine.name)
        return value

    @field_validator("devices")
    @classmethod
    def _devices(cls, value: str) -> str:
        known = value in ("nvml", "none") or re.match(r"^dcgm:https?://\S+$", value) or _SIMULATED.match(value)
        if not known:
            raise ValueError("must be nvml, none, dcgm:http://host:9400 or simulated:4xh100-sxm-80[,COUNTxPRODUCT...]")
        return value

    @field_validator("xid_policy")
    @classmethod
    def _xid_policy(cls, value: str) -> str:
        parse_policy(value)
        return value

    @property
    def xid(self) -> XidPolicy:
        return parse_policy(self.xid_policy)

    # Presets: differences from the default

    @classmethod
    def embedded(cls, **values: object) -> AgentSettings:
        """All in one process or machine: system-chosen port, quick leave."""
        return cls.model_validate({"port": 0, "drain_deadline_seconds": 5.0, "reconnect_max_seconds": 2.0} | values)

    @classmethod
    def compose(cls, **values: object) -> AgentSettings:
        """In a container of a private network."""
        return cls.model_validate({"host": "0.0.0.0", "insecure": True, "state_dir": "/var/lib/headrace"} | values)


def node_name(host: str) -> str:
    """A host name as a resource name: lower case, other signs become hyphens."""
    return re.sub(r"[^a-z0-9.-]+", "-", host.lower()).strip("-.") or "node"


def _as_list(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return list(value)


def engine_from_flag(text: str) -> dict[str, str]:
    """``kind=URL`` as an engine table. Raises ValueError with what was expected."""
    kind, equals, url = text.partition("=")
    kinds = [k.value for k in EngineKind]
    if not equals or kind not in kinds:
        raise ValueError(f"an engine is KIND=URL with KIND one of {', '.join(kinds)}")
    port = url.rstrip("/").rpartition(":")[2]
    return {"name": f"{kind}-{port}" if port.isdigit() else kind, "kind": kind, "url": url}
