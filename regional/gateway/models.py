"""``GET /v1/models``: the names a key may ask for, whatever is healthy just now (case-E07)."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from fleet.intent import Intent
from fleet.tenancy import matches
from regional.gateway.auth import Principal
from regional.gateway.errors import Refusal

PATH = b"/v1/models"
NOT_FOUND = Refusal(
    404, "invalid_request_error", "model_not_found", "There is no such model for this key.", "model", should_retry=False
)


def wanted_name(path: bytes) -> str | None:
    """The model that ``/v1/models/{id}`` asks for; ids may hold slashes. None for the list."""
    name = path[len(PATH) + 1 :]
    return unquote(name.decode("latin-1")) if name else None


def visible_models(intent: Intent, principal: Principal, discovered: frozenset[str] = frozenset()) -> list[str]:
    """Model names, aliases and routes that this key may use, sorted. ``discovered`` are served without being written down."""
    names: set[str] = set()
    for model in intent.models.values():
        if matches(principal.models, model.name):
            names.add(model.name)
            names.update(model.aliases)
    names.update(n for n in discovered if matches(principal.models, n))
    for endpoint in intent.endpoints.values():
        names.update(m.model for m in endpoint.models if matches(principal.models, m.model))
    for route in intent.routes:
        if matches(route.tenants, principal.tenant_name) and any(
            matches(principal.models, s.model) for s in route.split
        ):
            names.add(route.model)
    return sorted(names)


def _entry(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "headrace"}


def list_json(names: list[str]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_entry(n) for n in names]})


def one_json(name: str) -> bytes:
    return msgspec.json.encode(_entry(name))
