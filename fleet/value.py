"""Values that are made on every request, or for every device and engine in every report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_T]) -> type[_T]:
    """``@dataclass(frozen=True, slots=True)`` to the type checker, which is who keeps such a value from being changed.

    At run time it is not frozen: a frozen dataclass sets its fields through ``object.__setattr__``, which for the 25 fields of
    ``RequestFacts`` takes 4.5 us instead of 0.3 us. Only for what is made thousands of times a second: by the relay for each
    request, by the intake for each device and endpoint of each report.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
