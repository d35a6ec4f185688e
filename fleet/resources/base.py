"""What all resource specs have in common."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"

ResourceName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=253)]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^*\x00-\x1f]*\*?$")]
"""A name, or a prefix followed by one ``*``."""
Alias = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Jurisdiction = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9-]{0,31}$")]
LabelKey = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
Annotations = Annotated[dict[LabelKey, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=64)]

_URL = re.compile(r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?/?$")


def _base_url(value: str) -> str:
    if not _URL.match(value):
        raise ValueError(
            "must be http://host[:port] or https://host[:port], with no path, query or credentials; IPv6 in brackets"
        )
    port = value.rstrip("/").rpartition(":")[2]
    if port.isdigit() and not 0 < int(port) < 65536:
        raise ValueError("port must be 1 to 65535")
    return value.rstrip("/")


def _decimal(value: str) -> str:
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError('must be a decimal number in quotes, such as "0.05"') from None
    if not number.is_finite() or number < 0:
        raise ValueError("must be a finite number of at least 0")
    return value


BaseUrl = Annotated[str, AfterValidator(_base_url)]
Money = Annotated[str, StringConstraints(max_length=40), AfterValidator(_decimal)]
"""An exact decimal amount, as a string."""


class Strict(BaseModel):
    """Unknown fields are refused by name; numbers are finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, hide_input_in_errors=True)


class Spec(Strict):
    """Base of every resource's ``spec``."""

    secret_fields: ClassVar[frozenset[str]] = frozenset()
    """Top-level fields that are write-only: stored encrypted or digested, published apart, shown as a hint."""
    immutable: ClassVar[frozenset[str]] = frozenset()
    """Top-level fields that stay as they were when the resource was created: another value is another resource."""
    references: ClassVar[dict[str, str]] = {}
    """Dotted field path to the kind it names; ``[]`` stands for every element of a list. ``*`` patterns are not references."""
