"""Chance as an argument: the part of ``random.Random`` that decisions use."""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...
