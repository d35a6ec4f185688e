"""How a command fails: one plain line on standard error, and an exit status that scripts can rely on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.errors import HeadraceError

FAILED = 1
USAGE = 2


class CliError(Exception):
    """The operation failed; ``str(self)`` is the line to show. ``status`` is the exit status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


def say(message: str) -> None:
    """One line on standard error; line breaks and control characters in ``message`` do not get through."""
    text = "".join(c if c.isprintable() else " " for c in message.replace("\n", "; "))
    print(f"headrace: {text}", file=sys.stderr)


def lines_of(error: HeadraceError) -> list[str]:
    """An error as lines: one for each field at fault, or its text."""
    fields = getattr(error, "errors", None) or []
    return [": ".join(part for part in (f.source, f.pointer, f.reason) if part) for f in fields] or [str(error)]
