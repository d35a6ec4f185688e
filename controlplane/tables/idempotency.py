"""Answers to calls that carried an Idempotency-Key, kept for 24 hours."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import Table, Uid, Word


class IdempotentCall(Table):
    """The answer is written in the transaction of the change it answers for, so both exist or neither."""

    __tablename__ = "idempotency"

    actor_uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    key_digest: Mapped[str] = mapped_column(Word, primary_key=True)
    request_digest: Mapped[bytes] = mapped_column(LargeBinary)
    owner: Mapped[str] = mapped_column(Uid)
    """The attempt that runs it; another takes over when it has been silent for a minute."""
    answer: Mapped[str | None]
    """Sealed {status, headers, body}; None while it runs."""
    started_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
