"""Every resource of every kind that users write, joined nodes, holds, tokens: one row each, tombstones included."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import JsonObject, Name, Table, Uid, Word

_LIVE = text("deleted_at IS NULL")
_LIVE_KEY = text("deleted_at IS NULL AND kind = 'key'")


class Resource(Table):
    """``spec`` is as written (defaults left out, secrets taken out). ``generation`` rises with spec and secrets only."""

    __tablename__ = "resources"
    __table_args__ = (
        Index("uq_resources_live_name", "kind", "name", unique=True, postgresql_where=_LIVE, sqlite_where=_LIVE),
        Index(
            "uq_resources_live_key_digest",
            "secret_digest",
            unique=True,
            postgresql_where=_LIVE_KEY,
            sqlite_where=_LIVE_KEY,
        ),
        Index("ix_resources_deleted_at", "deleted_at"),
    )

    uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    kind: Mapped[str] = mapped_column(Word)
    name: Mapped[str] = mapped_column(Name)
    owner: Mapped[str] = mapped_column(Word, default="user")
    """``user``: written over the API. ``agent``: made by a join; its agent owns it while it reports."""
    labels: Mapped[JsonObject] = mapped_column(default=dict)
    annotations: Mapped[JsonObject] = mapped_column(default=dict)
    spec: Mapped[JsonObject] = mapped_column(default=dict)
    sealed: Mapped[str | None]
    """JSON object of the secrets, sealed for the context ``KIND/UID``."""
    secret_digest: Mapped[str | None] = mapped_column(Word)
    """Hex HMAC of the secret under the first pepper, for diffs; of a key, what it is known by."""
    secret_hint: Mapped[str | None] = mapped_column(Word)
    generation: Mapped[int] = mapped_column(BigInteger, default=1)
    resource_version: Mapped[str] = mapped_column(Word)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    """Set on a tombstone, which is kept for 90 days."""
