"""Printing resources: aligned columns for people, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.cli.options import Output

Item = Mapping[str, Any]
Column = tuple[str, Callable[[Item], Any]]


def field(path: str) -> Callable[[Item], Any]:
    """Reads a dotted path; None where it is not there."""
    parts = path.split(".")

    def read(item: Item) -> Any:
        value: Any = item
        for part in parts:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    return read


def condition(kind: str) -> Callable[[Item], Any]:
    """The status of a condition; ``Unknown`` when nobody has reported it."""

    def read(item: Item) -> Any:
        for entry in field("status.conditions")(item) or []:
            if entry.get("type") == kind:
                return entry.get("status")
        return "Unknown"

    return read


def state_by(kind: str) -> Callable[[Item], Any]:
    """The state last seen; ``unknown`` when the condition says that nobody sees it now."""

    def read(item: Item) -> Any:
        state = field("status.observed.state")(item)
        return "unknown" if state and condition(kind)(item) == "Unknown" else state

    return read


def age(item: Item) -> str:
    """How long ago the resource was made, in its largest unit."""
    created = item.get("created_at")
    try:
        then = datetime.fromisoformat(str(created).replace("Z", "+00:00"))
    except ValueError:
        return ""
    elapsed = max(0.0, (datetime.now(UTC) - then).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if elapsed >= size:
            return f"{int(elapsed // size)}{unit}"
    return f"{int(elapsed)}s"


def _served(item: Item) -> str:
    models = field("spec.models")(item) or field("status.models")(item) or []
    return ",".join(str(m.get("name") or m.get("model")) if isinstance(m, Mapping) else str(m) for m in models)


COLUMNS: Mapping[str, Sequence[Column]] = {
    "regions": (
        ("ROUTER", condition("RouterConnected")),
        ("JURISDICTIONS", field("spec.jurisdictions")),
        ("URL", field("spec.public_url")),
    ),
    "zones": (("REGION", field("spec.region")), ("JURISDICTIONS", field("spec.jurisdictions"))),
    "links": (
        ("FROM", field("spec.from")),
        ("TO", field("spec.to")),
        ("RTT_MS", field("spec.rtt_ms")),
        ("EGRESS_PER_GB", field("spec.egress_per_gb")),
    ),
    "nodes": (
        ("ZONE", field("spec.zone")),
        ("STATE", state_by("Ready")),
        ("DEVICES", condition("DevicesHealthy")),
        ("CORDONED", condition("Cordoned")),
        ("DRAINING", condition("Draining")),
    ),
    "gpus": (
        ("NODE", field("status.observed.node")),
        ("INDEX", field("status.observed.index")),
        ("PRODUCT", field("status.observed.product")),
        ("HEALTH", field("status.observed.health")),
        ("USED_MIB", field("status.observed.memory_used_mib")),
        ("TOTAL_MIB", field("status.observed.memory_total_mib")),
        ("CELSIUS", field("status.observed.temperature_celsius")),
        ("WHY", field("status.observed.health_reason")),
    ),
    "endpoints": (
        ("NODE", field("spec.node")),
        ("ENGINE", field("spec.engine")),
        ("MODELS", _served),
        ("STATE", state_by("Reachable")),
        ("URL", field("spec.url")),
    ),
    "models": (
        ("TASK", field("spec.task")),
        ("VERSION", field("spec.version")),
        ("CONTEXT", field("spec.context_tokens")),
        ("ALIASES", field("spec.aliases")),
    ),
    "deployments": (
        ("MODEL", field("spec.model")),
        ("PRODUCT", field("spec.product")),
        ("ZONES", field("spec.zones")),
        ("MIN", field("spec.replicas.min")),
        ("MAX", field("spec.replicas.max")),
    ),
    "routes": (("MODEL", field("spec.match.model")), ("STICKY", field("spec.sticky"))),
    "sla-classes": (
        ("PRIORITY", field("spec.priority")),
        ("TTFT_MS", field("spec.ttft_ms")),
        ("TPOT_MS", field("spec.tpot_ms")),
        ("SHEDDABLE", field("spec.sheddable")),
    ),
    "tenants": (
        ("CLASS", field("spec.sla_class")),
        ("WEIGHT", field("spec.weight")),
        ("RESIDENCY", field("spec.residency.allow")),
    ),
    "keys": (
        ("TENANT", field("spec.tenant")),
        ("EXPIRES", field("spec.expires_at")),
        ("REVOKED", field("spec.revoked")),
    ),
    "policies": (("ALGORITHM", field("spec.algorithm")),),
    "prices": (("MODEL", field("spec.model")), ("CURRENCY", field("spec.currency")), ("FROM", field("spec.from"))),
    "join-tokens": (
        ("ZONE", field("spec.zone")),
        ("NODE", field("spec.node")),
        ("USED", field("status.observed.used")),
        ("USES", field("spec.uses")),
        ("EXPIRES", field("status.observed.expires_at")),
    ),
    "admin-tokens": (
        ("ROLE", field("spec.role")),
        ("REGION", field("spec.region")),
        ("EXPIRES", field("spec.expires_at")),
    ),
}

_WIDE: Sequence[Column] = (
    ("GENERATION", lambda item: item.get("generation")),
    ("UID", lambda item: item.get("uid")),
    ("LABELS", lambda item: item.get("labels")),
)


def print_items(plural: str, items: Sequence[Item], output: Output, *, single: bool = False) -> None:
    """A list of resources of one kind, or one of them."""
    match output:
        case Output.JSON:
            print_json(items[0] if single else {"items": list(items)})
        case Output.YAML:
            print_yaml(items)
        case _:
            columns = [("NAME", field("name")), *COLUMNS.get(plural, ()), ("AGE", age)]
            if output is Output.WIDE:
                columns += _WIDE
            if items:
                print_table([name for name, _ in columns], [[read(item) for _, read in columns] for item in items])
            else:
                print(f"no {plural}", file=sys.stderr)


def print_records(columns: Sequence[Column], items: Sequence[Item], output: Output, none: str) -> None:
    """Records that are no resources, such as events."""
    match output:
        case Output.JSON:
            print_json({"items": list(items)})
        case Output.YAML:
            print_yaml(items)
        case _:
            if items:
                print_table([name for name, _ in columns], [[read(item) for _, read in columns] for item in items])
            else:
                print(none, file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_yaml(items: Iterable[Any]) -> None:
    import yaml

    print(yaml.safe_dump_all(list(items), sort_keys=False, allow_unicode=True, width=120), end="")


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as their content, two spaces apart. Nothing in a value can reach the terminal as a control."""
    cells = [[text(value) for value in row] for row in rows]
    widths = [max(len(header), *(len(row[i]) for row in cells)) for i, header in enumerate(headers)]
    for row in [list(headers), *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def text(value: Any) -> str:
    """A value as a table shows it."""
    match value:
        case None | "" | [] | {}:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ",".join(text(item) for item in value)
        case Mapping():
            return ",".join(f"{key}={text(item)}" for key, item in value.items())
        case _:
            return "".join(c if c.isprintable() else "\ufffd" for c in str(value))
