"""What agents report of the fleet, as routers pass it on: one row per node, GPU and endpoint."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import JsonObject, Name, Table, Uid, Word


class InventoryItem(Table):
    """``kind`` is ``node``, ``gpu`` or ``endpoint``; ``uid`` is the reported one (a GPU's UUID).

    ``name`` is what the API lists: a node's name; a GPU's UUID; ``<node>.<engine>`` for an endpoint of an agent, and the
    resource's own name for a declared endpoint that a router watches itself. Rows of a node are replaced together, only by a
    newer (incarnation, sequence), and vanish 24 h after ``last_seen_at``.
    """

    __tablename__ = "inventory"
    __table_args__ = (Index("ix_inventory_kind_name", "kind", "name"),)

    kind: Mapped[str] = mapped_column(Word, primary_key=True)
    uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    name: Mapped[str] = mapped_column(Name)
    node_uid: Mapped[str] = mapped_column(Uid, index=True)
    zone: Mapped[str] = mapped_column(Name)
    region: Mapped[str] = mapped_column(Name, index=True)
    incarnation: Mapped[int] = mapped_column(BigInteger)
    """The agent's, also on rows of GPUs and endpoints."""
    sequence: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(Word)
    """Node: ``ready``, ``suspect``, ``degraded``, ``draining``, ``dead``; GPU: its health; endpoint: its phase."""
    body: Mapped[JsonObject]
    """The reported facts as JSON (no secrets); unknown values are null."""
    first_seen_at: Mapped[datetime]
    last_seen_at: Mapped[datetime] = mapped_column(index=True)
