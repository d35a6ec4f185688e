"""The error tree of headrace.

    HeadraceError
    ├── InvalidInput            something a user wrote is wrong; names the field and changes nothing
    ├── StaleVersion            an (epoch, version) older than, or not following, what is held
    ├── DigestMismatch          content does not hash to what its sender says
    └── Unavailable             a part that is needed cannot be reached now

Expected outcomes of a request (shed, no endpoint, over quota) are values, never exceptions.
"""

from __future__ import annotations

from dataclasses import dataclass


class HeadraceError(Exception):
    """Root of all errors raised on purpose. Its text may be shown to operators and never holds a secret."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong in an input: ``pointer`` is an RFC 6901 JSON pointer, ``reason`` a plain sentence."""

    pointer: str
    reason: str
    source: str = ""
    """Where the input came from, such as ``fleet.yaml:12``; empty when it came over an API."""

    def __str__(self) -> str:
        place = f"{self.source}: " if self.source else ""
        return f"{place}{self.pointer or '/'}: {self.reason}"


class InvalidInput(HeadraceError):
    """An input is refused as a whole; ``errors`` names every field at fault."""

    def __init__(self, errors: list[FieldError]) -> None:
        self.errors = errors
        super().__init__("; ".join(str(e) for e in errors))


class StaleVersion(HeadraceError):
    """A snapshot or delta does not follow what is held. The receiver keeps what it has and asks for a full one."""


class DigestMismatch(HeadraceError):
    """Content does not hash to the digest that came with it. It is discarded."""


class Unavailable(HeadraceError):
    """A part (database, peer, control plane) cannot be reached now; retrying later may help."""
