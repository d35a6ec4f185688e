"""Named secrets of the deployment that cannot be derived from ``SECRET_KEY``."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import Table, Word


class StoredSecret(Table):
    """``sealed`` is for the context ``secret/NAME``."""

    __tablename__ = "secrets_store"

    name: Mapped[str] = mapped_column(Word, primary_key=True)
    sealed: Mapped[str]
    updated_at: Mapped[datetime]
