"""What agents and controllers have seen of a resource, kept apart from what users want."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import JsonObject, Table, Uid, Word


class Status(Table):
    """Written by controllers only; never touches the intent version."""

    __tablename__ = "status"

    kind: Mapped[str] = mapped_column(Word, primary_key=True)
    uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    conditions: Mapped[list[Any]] = mapped_column(default=list)
    """Objects {type, status, reason, message, last_transition_time, observed_generation}."""
    observed: Mapped[JsonObject] = mapped_column(default=dict)
    updated_at: Mapped[datetime]
