"""What several routes take from a request: names, list parameters, preconditions, bodies that are JSON and nothing worse."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Request
from pydantic import BaseModel, ValidationError

from controlplane.api.problems import Problem, invalid
from fleet.errors import FieldError, InvalidInput

Named = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?$", max_length=253, description="Name of the resource"
    ),
]
PageSize = Annotated[int | None, Query(description="At most this many; coerced to 1..1000, 100 when absent")]
PageToken = Annotated[str, Query(max_length=2048, description="From the page before; bound to the same filters")]
LabelQuery = Annotated[
    str, Query(max_length=4096, description="a=b, a!=b, a in (b,c), a notin (b,c), a, !a; joined by commas")
]
FieldQuery = Annotated[str, Query(max_length=4096, description="path=value or path!=value, such as spec.zone=eu-a")]

MAX_DEPTH = 64
_ETAG = re.compile(r'^(?:"[\x21\x23-\x7e]*")(?:\s*,\s*"[\x21\x23-\x7e]*")*$')
M = TypeVar("M", bound=BaseModel)


def etag(resource_version: str) -> str:
    return f'"{resource_version}"'


def require_match(request: Request, resource_version: str) -> None:
    """Raises Problem (412) when ``If-Match`` names another version: somebody else was quicker."""
    wanted = request.headers.get("if-match")
    if wanted is None or wanted.strip() == "*":
        return
    if not _ETAG.match(wanted.strip()):
        raise invalid("/header/If-Match", 'must be "*" or ETags as they came with the resource')
    if etag(resource_version) not in [tag.strip() for tag in wanted.split(",")]:
        raise Problem("precondition-failed", f"it is at version {resource_version} now; read it again")


def not_modified(request: Request, resource_version: str) -> bool:
    known = request.headers.get("if-none-match", "")
    return etag(resource_version) in [tag.strip() for tag in known.split(",")]


def sound_json(value: Any, pointer: str = "", depth: int = 0) -> Any:
    """``value`` itself. Raises Problem (422) for text that no database keeps (NUL, lone surrogates) and for absurd nesting."""
    if depth > MAX_DEPTH:
        raise invalid(pointer, f"is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        if "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise invalid(pointer, "holds a character that is not text")
    elif isinstance(value, dict):
        for key, item in value.items():
            sound_json(key, pointer, depth)
            sound_json(item, f"{pointer}/{key}", depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            sound_json(item, f"{pointer}/{index}", depth + 1)
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise invalid(pointer, "is not a finite number")
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        raise invalid(pointer, "is larger than 64 bits")
    return value


def validated(model: type[M], value: Any) -> M:
    """``value`` as ``model``. Raises InvalidInput naming every field at fault."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidInput(
            [FieldError(_pointer(e["loc"]), e["msg"].removeprefix("Value error, ")) for e in error.errors()]
        ) from None


def _pointer(location: tuple[int | str, ...]) -> str:
    return "".join("/" + str(p).replace("~", "~0").replace("/", "~1") for p in location)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
