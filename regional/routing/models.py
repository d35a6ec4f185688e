"""From the model a client names to the versions that may answer, best first. A route beats an alias beats a name."""

from __future__ import annotations

from collections.abc import Collection

from fleet.intent import Intent, Model, Route
from fleet.request import RequestFacts, Task
from fleet.tenancy import matches
from regional.fleetview.pool import stable_hash
from regional.request.steps import RejectReason
from regional.routing.asked import session_hash
from regional.routing.chance import Chance

_Resolved = tuple[tuple[str, ...], RejectReason | None]
_MAX_PLAIN = 10_000
_TEXT = frozenset({"chat", "completion"})


def suits(task: Task, model: Model | None) -> bool:
    """Whether a model can do a task; one that is not written down, or of another kind, is left to its engine to judge."""
    if model is None or model.task in ("other", "rerank"):
        return True
    return task.value in _TEXT if model.task in _TEXT else task.value == model.task


class ModelTable:
    """Built anew for each intent."""

    def __init__(self, intent: Intent) -> None:
        self._intent = intent
        self._routes: dict[str, list[Route]] = {}
        for route in intent.routes:
            self._routes.setdefault(route.model, []).append(route)
        self._plain: dict[tuple[str, Task, str, tuple[str, ...]], _Resolved] = {}
        """Answers for names without routes, which are the same until intent changes."""

    def resolve(self, facts: RequestFacts, served: Collection[str], rng: Chance) -> _Resolved:
        """Versions in the order to try, or why there are none.

        ``served`` holds models that endpoints report without their being written down. A model of other tenants looks
        exactly like one that does not exist; only what the tenant has and the key has not is called forbidden.
        """
        if facts.requested_model not in self._routes:
            key = (facts.requested_model, facts.task, facts.tenant_name, facts.allowed_models)
            found = self._plain.get(key)
            if found is None or found[1] is not None:  # what was not there may be by now
                if len(self._plain) >= _MAX_PLAIN:
                    self._plain.clear()
                found = self._plain[key] = self._judge(facts, self._named(facts, served))
            return found
        return self._judge(facts, self._candidates(facts, served, rng))

    def _judge(self, facts: RequestFacts, names: tuple[str, ...]) -> _Resolved:
        """Which of the versions this client may have, and which can do what it asks."""
        if not names:
            return (), RejectReason.MODEL_NOT_FOUND
        tenant = self._intent.tenants.get(facts.tenant_name)
        if tenant is not None and tenant.models != ("*",):
            names = tuple(n for n in names if _permitted(tenant.models, n, facts.requested_model))
            if not names:
                return (), RejectReason.MODEL_NOT_FOUND
        if facts.allowed_models != ("*",):
            names = tuple(n for n in names if _permitted(facts.allowed_models, n, facts.requested_model))
            if not names:
                return (), RejectReason.MODEL_NOT_ALLOWED
        models = self._intent.models
        suiting = tuple(n for n in names if suits(facts.task, models.get(n)))
        return (suiting, None) if suiting else ((), RejectReason.WRONG_TASK)

    def _candidates(self, facts: RequestFacts, served: Collection[str], rng: Chance) -> tuple[str, ...]:
        requested = facts.requested_model
        for route in self._routes.get(requested, ()):
            if matches(route.tenants, facts.tenant_name) and _headers_match(route, facts):
                return split_order(route, facts.session, rng)
        return self._named(facts, served)

    def _named(self, facts: RequestFacts, served: Collection[str]) -> tuple[str, ...]:
        name = self._intent.aliases.get(facts.requested_model, facts.requested_model)
        return (name,) if name in self._intent.models or name in served else ()


def split_order(route: Route, session: str, rng: Chance) -> tuple[str, ...]:
    """The version drawn by weight, then the others by falling weight, then the fallbacks. Sticky routes draw by session."""
    splits = [s for s in route.split if s.weight > 0]
    total = sum(s.weight for s in splits)
    draw = _session_share(session, route.uid) if route.sticky and session else rng.random()
    left = draw * total
    chosen = splits[-1].model
    for split in splits:
        left -= split.weight
        if left < 0:
            chosen = split.model
            break
    others = sorted((s for s in splits if s.model != chosen), key=lambda s: (-s.weight, s.model))
    return tuple(dict.fromkeys((chosen, *(s.model for s in others), *route.fallback)))


def _session_share(session: str, route_uid: str) -> float:
    """Uniform in [0, 1), the same for a session on every router."""
    return stable_hash(f"{session_hash(session):x}/{route_uid}") / 2.0**64


def _permitted(patterns: tuple[str, ...], name: str, requested: str) -> bool:
    return matches(patterns, name) or matches(patterns, requested)


def _headers_match(route: Route, facts: RequestFacts) -> bool:
    return all(facts.route_headers.get(name.lower()) == value for name, value in route.headers.items())
