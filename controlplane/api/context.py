"""What the admin API is built from. One object, made in the process's ``main`` and handed to every router."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from controlplane.secrets import DeploymentSecrets
from controlplane.store.database import Database
from controlplane.store.intent import IntentFeed
from fleet.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class ApiContext:
    database: Database
    feed: IntentFeed
    secrets: DeploymentSecrets
    clock: Clock = field(default_factory=SystemClock)
    bootstrap_admin_token: str = field(default="", repr=False)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.wall(), UTC)
