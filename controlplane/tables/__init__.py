"""The tables, one file each. Importing this package registers all of them with ``Table.metadata``."""

from controlplane.tables.audit import AuditEntry
from controlplane.tables.base import JsonObject, Table, UtcTime
from controlplane.tables.events import Event
from controlplane.tables.idempotency import IdempotentCall
from controlplane.tables.intent import IntentChange, IntentHead
from controlplane.tables.inventory import InventoryItem
from controlplane.tables.leases import LeaseRow
from controlplane.tables.region_reports import RegionReportRow
from controlplane.tables.resources import Resource
from controlplane.tables.secrets_store import StoredSecret
from controlplane.tables.status import Status
from controlplane.tables.tokens import AdminToken, JoinAnswer, JoinToken

__all__ = [
    "AdminToken",
    "AuditEntry",
    "Event",
    "IdempotentCall",
    "IntentChange",
    "IntentHead",
    "InventoryItem",
    "JoinAnswer",
    "JoinToken",
    "JsonObject",
    "LeaseRow",
    "RegionReportRow",
    "Resource",
    "Status",
    "StoredSecret",
    "Table",
    "UtcTime",
]
