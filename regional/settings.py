"""What a regional router can be told. One typed object per process; each part is handed only what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, model_validator

from fleet.process.insecure import is_loopback
from fleet.process.settings import ProcessSettings
from fleet.resources.base import NAME_PATTERN

Port = Annotated[int, Field(ge=0, le=65535)]
"""0 lets the system choose (tests, demo)."""
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


class RouterSettings(ProcessSettings):
    """Settings of ``headrace router``: table ``[router]``, environment ``HEADRACE_ROUTER_*`` and the short aliases."""

    # Where it listens
    host: str = "127.0.0.1"
    port: Port = 7600
    """Inference HTTP."""
    grpc_port: Port = 7601
    admin_port: Port = 7605
    advertise: str = ""
    """Where agents and peers reach this router: a host, or the base URL of its inference port. Default: ``host``."""
    advertise_grpc: str = ""
    """``host:port`` for agents when it cannot be told from ``advertise`` and ``grpc_port``."""
    workers: int = Field(1, ge=1, le=256)
    """Processes that share the inference port; each is a router of its own."""

    # Who it is
    region: str = Field("", pattern=rf"^$|{NAME_PATTERN}")
    state_dir: str = ""
    """Snapshot, identities. Empty keeps nothing over a restart."""

    # Where its intent comes from: a control plane, or a file
    controlplane: list[str] = []
    """``host:port`` of control planes' gRPC; every address of a name is used."""
    router_token: str = Field("", repr=False)
    fleet: str = ""
    """Fleet file: standalone, without a control plane."""
    secret_key: list[str] = Field([], repr=False)
    """Standalone: peppers and signs; newest first. A generated one is kept in the state directory when there is none."""
    join_token: str = Field("", repr=False)
    """Standalone: what agents must show to join. Without one, agents may join over loopback only."""

    # What it shares and how it knows where clients are
    redis_url: str = Field("", repr=False)
    """State shared by the region's routers: ``redis://``, ``rediss://`` or ``redis+sentinel://host:port,host:port/master``."""
    geoip_db: str = ""
    trusted_proxies: list[str] = []
    """CIDRs whose forwarded headers count, matched from the right."""
    expose: Literal["", "none", "region", "all"] = ""
    """Placement headers in answers. Empty: ``all`` standalone on loopback, else ``region``."""

    admin_token: str = Field("", repr=False)
    """Bearer token for the debugging pages of the admin port; off loopback they are closed without one."""

    # Time limits and sizes
    timeout_connect_seconds: Seconds = 1.0
    timeout_first_byte_seconds: Seconds = 60.0
    timeout_idle_seconds: Seconds = 60.0
    """Longest silence inside a streamed answer."""
    timeout_total_seconds: Seconds = 600.0
    timeout_client_seconds: Seconds = 30.0
    """Longest time a client may take to send a request, or to read what it asked for."""
    retry_max: int = Field(3, ge=1, le=10)
    """Attempts for one request, over all tiers."""
    retry_budget: float = Field(0.1, ge=0, le=1)
    """Share of traffic that may be retries after an answer or a timeout; failovers are outside it."""
    limits_body_bytes: int = Field(32 * 1024 * 1024, ge=1024)
    limits_queue: int = Field(1000, ge=0)
    limits_streams: int = Field(10_000, ge=1)
    """Client connections at once."""
    shutdown_delay_seconds: Seconds = 0.0
    """Not ready, but still listening."""
    shutdown_grace_seconds: Seconds = 30.0
    """What running requests get before they are broken off."""
    agent_interval_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.4
    agent_lease_seconds: Annotated[float, Field(ge=0.1, le=600)] = 1.2
    agent_streams_per_second: int = Field(250, ge=1)

    _worker_index: int | None = PrivateAttr(None)
    _worker_grpc_ports: tuple[int, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _sources(self) -> RouterSettings:
        if self.fleet and self.controlplane:
            raise ValueError("give fleet (standalone) or controlplane, not both")
        return self

    @property
    def loopback(self) -> bool:
        """True when nothing outside this machine can reach the listening address."""
        return is_loopback(self.host)

    @property
    def worker_index(self) -> int | None:
        """Which of several workers this is; None when it is the only process."""
        return self._worker_index

    @property
    def worker_grpc_ports(self) -> tuple[int, ...]:
        """gRPC ports of all workers, so that agents reach each of them; empty when it is the only process."""
        return self._worker_grpc_ports

    @property
    def expose_level(self) -> str:
        return self.expose or ("all" if self.fleet and self.loopback else "region")

    def worker(self, index: int) -> RouterSettings:
        """Settings of worker ``index`` of several: the same inference port, its own other ports and state.

        Other ports move up by 100 a worker, which keeps clear of the ports other headrace processes have by default.
        """

        def moved(port: int, to: int) -> int:
            return port + 100 * to if port else 0

        worker = self.model_copy(
            update={
                "workers": 1,
                "grpc_port": moved(self.grpc_port, index),
                "admin_port": moved(self.admin_port, index),
                "state_dir": str(Path(self.state_dir) / f"worker-{index}")
                if self.state_dir and index
                else self.state_dir,
            }
        )
        worker._worker_index = index
        worker._worker_grpc_ports = tuple(moved(self.grpc_port, i) for i in range(self.workers) if self.grpc_port)
        return worker

    # Presets: differences from the default

    @classmethod
    def embedded(cls, **values: object) -> RouterSettings:
        """All in one process or machine: system-chosen ports, everything shown, quick shutdown."""
        defaults: dict[str, object] = {
            "port": 0,
            "grpc_port": 0,
            "admin_port": 0,
            "expose": "all",
            "shutdown_grace_seconds": 2.0,
        }
        return cls.model_validate(defaults | values)

    @classmethod
    def compose(cls, **values: object) -> RouterSettings:
        """In a container of a private network."""
        return cls.model_validate({"host": "0.0.0.0", "insecure": True, "state_dir": "/var/lib/headrace"} | values)

    @classmethod
    def production(cls, **values: object) -> RouterSettings:
        """Behind a load balancer that must see unreadiness before the port closes."""
        return cls.model_validate(
            {"host": "0.0.0.0", "state_dir": "/var/lib/headrace", "shutdown_delay_seconds": 5.0} | values
        )
