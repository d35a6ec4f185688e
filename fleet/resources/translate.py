"""From intent objects (JSON specs) to the words decisions use. The one place where specs are read."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from fleet.endpoint import ServedModel
from fleet.intent import (
    DeclaredGpus,
    EndpointIntent,
    Hold,
    HoldState,
    Intent,
    Model,
    NodeIntent,
    PolicyIntent,
    Route,
    Secrets,
    Split,
)
from fleet.locality import Coordinates, Link, Region, Zone
from fleet.resources.base import Spec
from fleet.resources.kinds import KINDS
from fleet.resources.places import LinkSpec, NodeSpec, RegionSpec, ZoneSpec
from fleet.resources.serving import EndpointSpec, ModelSpec, PolicySpec, RouteSpec
from fleet.resources.tenants import DEFAULT_SLA_CLASSES, KeySpec, ResidencySpec, SlaClassSpec, TenantSpec
from fleet.snapshot import SECRETS_KIND, IntentObject, IntentVersion
from fleet.tenancy import Residency, SlaClass, Tenant, TenantKey

_Word = TypeVar("_Word")
HOLD_KIND = "hold"
"""Intent objects made by cordon and drain: spec {target_kind, target, state, reason}."""


def _spec(obj: IntentObject) -> Spec | None:
    """The typed spec; fields a newer neighbour added are dropped first. None when even so it is not valid."""
    kind = KINDS[obj.kind]
    known = {f.alias or name for name, f in kind.spec.model_fields.items()} | set(kind.spec.model_fields)
    data = {k: v for k, v in obj.spec.items() if k in known}
    try:
        return kind.spec.model_validate(data)
    except ValidationError:
        return None


class SpecCache:
    """Typed specs of objects read before. Between two versions of intent nearly all objects are the very same ones, and
    validating them again is most of the work. For one thread at a time."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], tuple[IntentObject, Spec | None]] = {}
        self._words: dict[tuple[str, str], tuple[IntentObject, object]] = {}

    def spec(self, obj: IntentObject) -> Spec | None:
        """As :func:`_spec`."""
        known = self._read.get(obj.key)
        if known is not None and known[0] is obj:
            return known[1]
        spec = _spec(obj)
        self._read[obj.key] = (obj, spec)
        return spec

    def word(self, obj: IntentObject, make: Callable[[], _Word]) -> _Word:
        """What ``make`` made of the object, the very same value as for the last intent: so what has changed is found quickly.

        It must depend on nothing but the object.
        """
        known = self._words.get(obj.key)
        if known is not None and known[0] is obj:
            return cast(_Word, known[1])
        word = make()
        self._words[obj.key] = (obj, word)
        return word

    def keep(self, keys: Collection[tuple[str, str]]) -> None:
        """Forget objects that are not among ``keys``."""
        if len(self._read) > len(keys):
            self._read = {key: value for key, value in self._read.items() if key in keys}
            self._words = {key: value for key, value in self._words.items() if key in keys}


def _residency(spec: ResidencySpec) -> Residency:
    return Residency(frozenset(spec.allow), spec.ingress == "relay")


def sla_class_word(uid: str, name: str, spec: SlaClassSpec) -> SlaClass:
    return SlaClass(
        uid,
        name,
        spec.priority,
        spec.first_byte_deadline_ms / 1000,
        spec.total_ms / 1000,
        spec.sheddable,
        spec.preemptible,
        spec.spill,
    )


def _key_word(obj: IntentObject, spec: KeySpec) -> TenantKey | None:
    digest = obj.secrets.get("secret_hmac")
    if not isinstance(digest, str):
        return None
    return TenantKey(
        obj.uid,
        obj.name,
        spec.tenant,
        bytes.fromhex(digest),
        spec.expires_at.timestamp() if spec.expires_at else None,
        spec.revoked,
        tuple(spec.models),
        _residency(spec.residency) if spec.residency else None,
    )


def _endpoint_word(obj: IntentObject, spec: EndpointSpec) -> EndpointIntent:
    served = tuple(ServedModel(m.name, m.served_as or m.name) for m in spec.models)
    return EndpointIntent(
        obj.uid,
        obj.name,
        spec.node,
        spec.url,
        spec.engine,
        served,
        tuple(spec.gpus),
        spec.tensor_parallel,
        spec.max_inflight,
        spec.kv_tokens,
        str(obj.secrets.get("api_key") or ""),
    )


def _node_word(obj: IntentObject, spec: NodeSpec) -> NodeIntent:
    gpus = tuple(DeclaredGpus(g.product, g.count, g.memory_gib) for g in spec.gpus)
    return NodeIntent(obj.uid, obj.name, spec.zone, gpus)


def _route_word(obj: IntentObject, spec: RouteSpec) -> Route:
    return Route(
        obj.uid,
        obj.name,
        spec.match.model,
        tuple(Split(s.model, s.weight) for s in spec.split),
        tuple(spec.match.tenants),
        spec.match.headers,
        spec.sticky == "session",
        tuple(spec.fallback),
    )


def _secrets_word(obj: IntentObject) -> Secrets:
    def items(name: str) -> tuple[bytes, ...]:
        return tuple(base64.b64decode(v) for v in obj.secrets.get(name, ()))

    return Secrets(items("peppers"), items("hop_keys"), items("identity_keys"))


def intent_of(
    at: IntentVersion, region: str, objects: Iterable[IntentObject], cache: SpecCache | None = None
) -> tuple[Intent, list[str]]:
    """The intent in words, and a line for each object that could not be read (it is left out; the rest still applies).

    ``cache`` remembers what was read for the next version.
    """
    read: Callable[[IntentObject], Spec | None] = _spec if cache is None else cache.spec
    words = SpecCache() if cache is None else cache
    regions: dict[str, Region] = {}
    zones: dict[str, Zone] = {}
    links: dict[tuple[str, str], Link] = {}
    nodes: dict[str, NodeIntent] = {}
    endpoints: dict[str, EndpointIntent] = {}
    models: dict[str, Model] = {}
    routes: list[Route] = []
    tenants: dict[str, Tenant] = {}
    keys: dict[bytes, TenantKey] = {}
    policies: dict[str, PolicyIntent] = {}
    holds: dict[tuple[str, str], Hold] = {}
    classes = {name: sla_class_word(f"builtin-{name}", name, spec) for name, spec in DEFAULT_SLA_CLASSES.items()}
    secrets = Secrets()
    unread: list[str] = []

    def take(obj: IntentObject) -> None:
        nonlocal secrets
        if obj.kind == SECRETS_KIND:
            secrets = _secrets_word(obj)
            return
        if obj.kind == HOLD_KIND:
            hold = _hold_word(obj.uid, obj.spec)
            if hold is None:
                unread.append(f"hold {obj.name}: not valid")
            else:
                holds[hold.target_kind, hold.target] = hold
            return
        if obj.kind not in KINDS:
            return  # a kind of a newer neighbour
        spec = read(obj)
        match spec:
            case RegionSpec():
                where = (
                    Coordinates(spec.latitude, spec.longitude)
                    if spec.latitude is not None and spec.longitude is not None
                    else None
                )
                regions[obj.name] = Region(
                    obj.uid,
                    obj.name,
                    where,
                    frozenset(spec.jurisdictions),
                    spec.public_url or "",
                    spec.edge.parent if spec.edge else "",
                    dict(obj.labels),
                )
            case ZoneSpec():
                zones[obj.name] = Zone(
                    obj.uid, obj.name, spec.region, frozenset(spec.jurisdictions), tuple(spec.endpoint_ranges)
                )
            case LinkSpec():
                links[spec.source, spec.target] = Link(
                    obj.uid,
                    obj.name,
                    spec.source,
                    spec.target,
                    None if spec.rtt_ms is None else spec.rtt_ms / 1000,
                    None if spec.egress_per_gb is None else float(spec.egress_per_gb),
                )
            case NodeSpec():
                nodes[obj.name] = words.word(obj, partial(_node_word, obj, spec))
            case EndpointSpec():
                endpoints[obj.uid] = words.word(obj, partial(_endpoint_word, obj, spec))
            case ModelSpec():
                models[obj.name] = Model(
                    obj.uid,
                    obj.name,
                    spec.task,
                    tuple(spec.aliases),
                    spec.version,
                    spec.context_tokens,
                    spec.weights_gib,
                    spec.policy or "",
                )
            case RouteSpec():
                routes.append(_route_word(obj, spec))
            case SlaClassSpec():
                classes[obj.name] = sla_class_word(obj.uid, obj.name, spec)
            case TenantSpec():
                tenants[obj.name] = Tenant(
                    obj.uid,
                    obj.name,
                    spec.sla_class,
                    spec.weight,
                    tuple(spec.models),
                    tuple(spec.regions),
                    tuple(spec.gpu_classes),
                    _residency(spec.residency),
                    spec.policy or "",
                )
            case KeySpec():
                key = _key_word(obj, spec)
                if key is None:
                    unread.append(f"key {obj.name}: no digest")
                else:
                    keys[key.digest] = key
            case PolicySpec():
                policies[obj.name] = PolicyIntent(
                    obj.uid,
                    obj.name,
                    spec.algorithm,
                    dict(spec.parameters),
                    tuple(spec.match.models),
                    tuple(spec.match.regions),
                    tuple(spec.match.classes),
                )
            case None:
                unread.append(f"{obj.kind} {obj.name}: not valid")

    for obj in objects:
        try:
            take(obj)
        except (ValueError, TypeError, RecursionError):
            unread.append(f"{obj.kind} {obj.name}: not valid")

    for name, zone in list(zones.items()):
        if not zone.jurisdictions and zone.region in regions:
            zones[name] = Zone(zone.uid, name, zone.region, regions[zone.region].jurisdictions, zone.endpoint_ranges)
    aliases = {alias: m.name for m in models.values() for alias in m.aliases}
    intent = Intent(
        at,
        region,
        regions,
        zones,
        links,
        nodes,
        endpoints,
        models,
        aliases,
        tuple(sorted(routes, key=lambda r: r.name)),
        tenants,
        keys,
        classes,
        policies,
        holds,
        secrets,
    )
    return intent, unread


def _hold_word(uid: str, spec: Mapping[str, Any]) -> Hold | None:
    try:
        return Hold(
            uid, str(spec["target_kind"]), str(spec["target"]), HoldState(spec["state"]), str(spec.get("reason", ""))
        )
    except (KeyError, ValueError):
        return None
