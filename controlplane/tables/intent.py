"""The intent feed: where its head is, and what each version changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import Table, Word


class IntentHead(Table):
    """One row. Whoever writes intent locks it first, so that commits serialise and versions have no gaps."""

    __tablename__ = "intent_head"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int] = mapped_column(BigInteger)
    """Raised when history may have been lost; starts at the Unix time of the database's making, so it never repeats."""
    version: Mapped[int] = mapped_column(BigInteger)
    chain: Mapped[bytes] = mapped_column(LargeBinary)
    """Digest over all changes up to ``version``."""
    system_id: Mapped[str] = mapped_column(Word, default="")
    """PostgreSQL's system identifier at the last write; empty on SQLite."""
    timeline: Mapped[str] = mapped_column(Word, default="")


class IntentChange(Table):
    """One row per version: the objects it changed and removed, as published, with their secrets sealed."""

    __tablename__ = "intent_changes"

    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    chain: Mapped[bytes] = mapped_column(LargeBinary)
    upserts: Mapped[list[Any]]
    """Objects {kind, uid, name, generation, spec, labels, sealed}."""
    removals: Mapped[list[Any]]
    """Pairs [kind, uid]."""
    created_at: Mapped[datetime]
