"""One inference request, as decisions see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from fleet.locality import Origin
from fleet.tenancy import Residency
from fleet.value import value


class Task(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"


@value
class RequestFacts:
    """What is known when a request has been read. Values a client sent are checked and bounded before they get here."""

    request_uid: str
    """Ours, 128 random bits as hex; the client's ``x-request-id`` is only a label."""
    task: Task
    requested_model: str
    """As the client wrote it: a route, an alias or a name."""
    stream: bool
    input_tokens: int
    """Estimate (bytes / 4 unless learned better)."""
    max_output_tokens: int | None
    tenant_uid: str
    """Empty on a router that serves without tenants."""
    tenant_name: str
    key_uid: str
    sla_class: str
    priority: int
    session: str
    """HMAC of (tenant uid, session id) in hex; empty when the client gave none."""
    origin: Origin
    residency: Residency
    allowed_models: tuple[str, ...] = ("*",)
    allowed_regions: tuple[str, ...] = ("*",)
    allowed_gpu_classes: tuple[str, ...] = ("*",)
    policy: str = ""
    spill: bool = True
    first_byte_deadline_seconds: float = 60.0
    total_seconds: float = 600.0
    deadline_seconds: float | None = None
    """The caller's own deadline (``x-headrace-deadline-ms``), from arrival."""
    entry_region: str = ""
    hop_from: str = ""
    """Region of the peer router that sent it here; empty when a client did. A request with it is never sent on again."""
    attempts_used: int = 0
    """Attempts already made by the tier that sent it here; they count against the same limit (case-R01)."""
    route_headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers that routes may match on, by lower-case name; others need not be here."""


@value
class Usage:
    """Tokens of one finished answer as the engine counted them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
