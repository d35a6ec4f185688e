"""Leadership places: who may do a job now."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import Name, Table, Word


class LeaseRow(Table):
    """``token`` rises with every change of holder; every write of a leader checks it in its own transaction."""

    __tablename__ = "leases"

    place: Mapped[str] = mapped_column(Word, primary_key=True)
    holder: Mapped[str] = mapped_column(Name)
    token: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]
