"""The latest report of each router: one row per router, written only when it is newer."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.tables.base import JsonObject, Name, Table, Uid


class RegionReportRow(Table):
    """``body`` is the report without inventory and events. A row not renewed for 5 s counts for nothing."""

    __tablename__ = "region_reports"

    router_uid: Mapped[str] = mapped_column(Uid, primary_key=True)
    region: Mapped[str] = mapped_column(Name, index=True)
    incarnation: Mapped[int] = mapped_column(BigInteger)
    sequence: Mapped[int] = mapped_column(BigInteger)
    inventory_digest: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    body: Mapped[JsonObject]
    received_at: Mapped[datetime] = mapped_column(index=True)
