"""Who changed what: every mutating call, each entry bound to the one before by a hash."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import JsonObject, Name, Table, Uid, Word


class AuditEntry(Table):
    """Only ever added to. ``hash`` = BLAKE2b(previous hash, canonical JSON of the entry)."""

    __tablename__ = "audit"

    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """1, 2, 3, ... with no gap."""
    occurred_at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(Name)
    actor_uid: Mapped[str] = mapped_column(Uid)
    role: Mapped[str] = mapped_column(Word)
    action: Mapped[str] = mapped_column(Word)
    kind: Mapped[str] = mapped_column(Word)
    name: Mapped[str] = mapped_column(Name, index=True)
    outcome: Mapped[int]
    """HTTP status of the answer."""
    request_id: Mapped[str] = mapped_column(Word)
    detail: Mapped[JsonObject]
    """What changed; secrets appear as digests only."""
    hash: Mapped[bytes] = mapped_column(LargeBinary)
