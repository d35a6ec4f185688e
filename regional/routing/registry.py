"""All policies there are: ours, and those other packages offer under the entry point ``headrace.policies``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from fleet.errors import FieldError, InvalidInput
from regional.routing.interfaces import Policy
from regional.routing.policies.expected_cost import ExpectedCost
from regional.routing.policies.least_connections import LeastConnections
from regional.routing.policies.round_robin import RoundRobin

ENTRY_POINT = "headrace.policies"
PolicyClass = Any
"""A class with the shape of ``Policy`` and a dataclass ``Parameters``; checked when it is registered, not by the type system."""
OURS: tuple[PolicyClass, ...] = (ExpectedCost, RoundRobin, LeastConnections)

Registry = Mapping[str, PolicyClass]


def builtin() -> Registry:
    """Our own policies by name."""
    return {policy.name: policy for policy in OURS}


def discover() -> Registry:
    """Our own and other packages' policies. Raises InvalidInput when one of those cannot be loaded or takes a taken name."""
    found = dict(builtin())
    for point in sorted(entry_points(group=ENTRY_POINT), key=lambda p: p.name):
        try:
            policy = point.load()
        except (ImportError, AttributeError) as error:
            raise InvalidInput([FieldError("", f"cannot load: {error}", f"entry point {point.name}")]) from error
        name = getattr(policy, "name", "")
        if name != point.name or name in found or not dataclasses.is_dataclass(getattr(policy, "Parameters", None)):
            reason = "needs a name of its own, equal to the entry point's, and a dataclass Parameters"
            raise InvalidInput([FieldError("", reason, f"entry point {point.name}")])
        found[name] = policy
    return found


def build(registry: Registry, algorithm: str, parameters: Mapping[str, object]) -> Policy:
    """A policy with typed parameters. Raises InvalidInput naming the algorithm or parameter that is wrong."""
    policy = registry.get(algorithm)
    if policy is None:
        known = ", ".join(sorted(registry))
        raise InvalidInput([FieldError("/spec/algorithm", f"{algorithm!r} is not known; there are {known}")])
    kind = policy.Parameters
    fields = {f.name: f for f in dataclasses.fields(kind)}
    errors = [
        FieldError(f"/spec/parameters/{name}", _problem(algorithm, name, value, fields))
        for name, value in parameters.items()
        if _problem(algorithm, name, value, fields)
    ]
    if errors:
        raise InvalidInput(errors)
    values: dict[str, Any] = dict(parameters)
    values = {n: float(v) if fields[n].type == "float" else v for n, v in values.items()}
    try:
        built: Policy = policy(kind(**values))
    except ValueError as error:
        raise InvalidInput([FieldError("/spec/parameters", str(error))]) from error
    return built


_TYPES: Mapping[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}


def _problem(algorithm: str, name: str, value: object, fields: Mapping[str, dataclasses.Field[Any]]) -> str:
    """Why a parameter is refused; empty when it is not."""
    field = fields.get(name)
    if field is None:
        return f"{algorithm} has no such parameter" + (f"; it has {', '.join(fields)}" if fields else "; it has none")
    wanted = field.type if isinstance(field.type, str) else field.type.__name__
    types = _TYPES.get(wanted, (object,))
    if isinstance(value, bool) and bool not in types:
        return f"must be of type {wanted}"
    return "" if isinstance(value, types) else f"must be of type {wanted}"
