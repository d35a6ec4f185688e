"""Things that happened, for people."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import Name, Table, Uid, Word


class Event(Table):
    """``uid`` is made by whoever saw it, so a repeated event is stored once. ``id`` gives the order of arrival here."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_kind_name", "kind", "name"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    uid: Mapped[str] = mapped_column(Uid, unique=True)
    reason: Mapped[str] = mapped_column(Word)
    """PascalCase and stable."""
    message: Mapped[str]
    kind: Mapped[str] = mapped_column(Word)
    name: Mapped[str] = mapped_column(Name)
    region: Mapped[str] = mapped_column(Name, default="")
    severity: Mapped[str] = mapped_column(Word, default="info")
    occurred_at: Mapped[datetime] = mapped_column(index=True)
    recorded_at: Mapped[datetime]
