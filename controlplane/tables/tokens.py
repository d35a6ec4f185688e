"""Tokens as they are checked. Their descriptions (labels, spec) are resources; the tokens themselves are nowhere."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import Name, Table, Uid, Word


class AdminToken(Table):
    """A bearer token of the REST API (roles viewer, operator, admin) or of a router (role router, bound to a region).

    Written together with the resource ``admin-token`` of the same uid, removed with it.
    """

    __tablename__ = "admin_tokens"

    uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    name: Mapped[str] = mapped_column(Name)
    digest: Mapped[str] = mapped_column(Word, unique=True)
    """``DeploymentSecrets.digest_token``."""
    role: Mapped[str] = mapped_column(Word)
    region: Mapped[str | None] = mapped_column(Name)
    """Of a router token."""
    expires_at: Mapped[datetime | None]


class JoinAnswer(Table):
    """What a use of a join token went to, for a while: whoever asks again with the same ``attempt`` did not hear the answer."""

    __tablename__ = "join_answers"

    token_uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    attempt: Mapped[str] = mapped_column(Word, primary_key=True)
    """``DeploymentSecrets.digest_token`` of the number that the agent made up."""
    node_uid: Mapped[str] = mapped_column(Uid)
    region: Mapped[str] = mapped_column(Name)
    answered_at: Mapped[datetime] = mapped_column(index=True)


class JoinToken(Table):
    """What lets an agent join. Consumed by raising ``used`` in one UPDATE that checks ``used < uses`` and the expiry.

    Written together with the resource ``join-token`` of the same uid, removed with it.
    """

    __tablename__ = "join_tokens"

    uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    name: Mapped[str] = mapped_column(Name)
    digest: Mapped[str] = mapped_column(Word, unique=True)
    zone: Mapped[str] = mapped_column(Name)
    """Pattern with at most one trailing ``*`` (``fleet.tenancy.matches``)."""
    node: Mapped[str] = mapped_column(Name)
    """Pattern likewise."""
    uses: Mapped[int]
    used: Mapped[int] = mapped_column(default=0)
    expires_at: Mapped[datetime]
