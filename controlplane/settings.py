"""What a control plane can be told. One typed object per process; each part is handed only what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fleet.process.settings import ProcessSettings

SQLITE_FILE = "controlplane.sqlite3"

Port = Annotated[int, Field(ge=0, le=65535)]
"""0 lets the system choose (tests, demo)."""
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


class ControlPlaneSettings(ProcessSettings):
    """Settings of ``headrace controlplane``: table ``[controlplane]``, environment ``HEADRACE_CONTROLPLANE_*`` and aliases."""

    # Where it listens
    host: str = "127.0.0.1"
    port: Port = 7610
    """REST, dashboard, health and metrics."""
    grpc_port: Port = 7611
    admin_port: Port | None = None
    """Health and metrics on a port of their own as well, where the REST port is open to many."""

    # Where its state is
    state_dir: str = "headrace-state"
    """Holds the default SQLite file and the generated secret key."""
    database_url: str = Field("", repr=False)
    """``postgres://`` (taken as psycopg) or ``sqlite:///FILE``. Default: a SQLite file in ``state_dir``."""
    database_direct_url: str = Field("", repr=False)
    """The same database past a pooler, for migrations and notifications."""
    migrate: bool = True
    """Bring the tables up to date at start; off where a job does it."""

    # Secrets
    bootstrap_admin_token: str = Field("", repr=False)
    """Works only while no admin token exists."""
    secret_key: list[str] = Field([], repr=False)
    """Newest first; peppers, signing and sealing keys are derived from it. Every copy needs the same."""

    # Where clients are
    geoip_db: str = ""
    trusted_proxies: list[str] = []

    # Times
    report_interval_seconds: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    """How often routers are told to report."""
    feed_poll_seconds: Annotated[float, Field(ge=0.02, le=5)] = 0.2
    """How often the intent feed is looked at; PostgreSQL's notifications are only a hint."""
    shutdown_delay_seconds: Seconds = 0.0
    """Not ready, but still listening."""
    shutdown_grace_seconds: Seconds = 5.0
    """What open requests and streams get before they are broken off."""

    def database(self) -> str:
        """The database URL in force."""
        return self.database_url or f"sqlite:///{Path(self.state_dir).absolute() / SQLITE_FILE}"

    # Presets: differences from the default

    @classmethod
    def embedded(cls, **values: object) -> ControlPlaneSettings:
        """All in one process or machine: SQLite, system-chosen ports, quick shutdown."""
        return cls.model_validate({"port": 0, "grpc_port": 0, "shutdown_grace_seconds": 1.0} | values)

    @classmethod
    def compose(cls, **values: object) -> ControlPlaneSettings:
        """In a container of a private network."""
        return cls.model_validate({"host": "0.0.0.0", "insecure": True, "state_dir": "/var/lib/headrace"} | values)

    @classmethod
    def production(cls, **values: object) -> ControlPlaneSettings:
        """Behind a load balancer that must see unreadiness before the port closes."""
        defaults = {"host": "0.0.0.0", "state_dir": "/var/lib/headrace", "shutdown_delay_seconds": 5.0}
        return cls.model_validate(defaults | values)
