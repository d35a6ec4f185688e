"""All tables of the first release, and the feed's first version."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "admin_tokens",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=64), nullable=False),
        sa.Column("region", sa.String(length=256), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("uid", name="pk_admin_tokens"),
        sa.UniqueConstraint("digest", name="uq_admin_tokens_digest"),
    )

    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=256), nullable=False),
        sa.Column("actor_uid", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("outcome", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit"),
    )

    op.create_index("ix_audit_name", "audit", ["name"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("region", sa.String(length=256), nullable=False),
        sa.Column("severity", sa.String(length=64), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("uid", name="uq_events_uid"),
        sqlite_autoincrement=True,
    )

    op.create_index("ix_events_kind_name", "events", ["kind", "name"], unique=False)
    op.create_index("ix_events_occurred_at", "events", ["occurred_at"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("actor_uid", sa.String(length=64), nullable=False),
        sa.Column("key_digest", sa.String(length=64), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("actor_uid", "key_digest", name="pk_idempotency"),
    )

    op.create_index("ix_idempotency_expires_at", "idempotency", ["expires_at"], unique=False)
    op.create_table(
        "intent_changes",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("chain", sa.LargeBinary(), nullable=False),
        sa.Column("upserts", sa.JSON(), nullable=False),
        sa.Column("removals", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "version", name="pk_intent_changes"),
    )

    op.create_table(
        "intent_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("chain", sa.LargeBinary(), nullable=False),
        sa.Column("system_id", sa.String(length=64), nullable=False),
        sa.Column("timeline", sa.String(length=64), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_intent_head_one_row"),
        sa.PrimaryKeyConstraint("id", name="pk_intent_head"),
    )

    op.create_table(
        "inventory",
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("node_uid", sa.String(length=64), nullable=False),
        sa.Column("zone", sa.String(length=256), nullable=False),
        sa.Column("region", sa.String(length=256), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "uid", name="pk_inventory"),
    )

    op.create_index("ix_inventory_kind_name", "inventory", ["kind", "name"], unique=False)
    op.create_index("ix_inventory_last_seen_at", "inventory", ["last_seen_at"], unique=False)
    op.create_index("ix_inventory_node_uid", "inventory", ["node_uid"], unique=False)
    op.create_index("ix_inventory_region", "inventory", ["region"], unique=False)
    op.create_table(
        "join_tokens",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("zone", sa.String(length=256), nullable=False),
        sa.Column("node", sa.String(length=256), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_join_tokens"),
        sa.UniqueConstraint("digest", name="uq_join_tokens_digest"),
    )

    op.create_table(
        "leases",
        sa.Column("place", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=256), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("place", name="pk_leases"),
    )

    op.create_table(
        "region_reports",
        sa.Column("router_uid", sa.String(length=64), nullable=False),
        sa.Column("region", sa.String(length=256), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("inventory_digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("router_uid", name="pk_region_reports"),
    )

    op.create_index("ix_region_reports_received_at", "region_reports", ["received_at"], unique=False)
    op.create_index("ix_region_reports_region", "region_reports", ["region"], unique=False)
    op.create_table(
        "resources",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("annotations", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("secret_digest", sa.String(length=64), nullable=True),
        sa.Column("secret_hint", sa.String(length=64), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("resource_version", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("uid", name="pk_resources"),
    )

    op.create_index("ix_resources_deleted_at", "resources", ["deleted_at"], unique=False)
    op.create_index(
        "uq_resources_live_key_digest",
        "resources",
        ["secret_digest"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL AND kind = 'key'"),
        sqlite_where=sa.text("deleted_at IS NULL AND kind = 'key'"),
    )
    op.create_index(
        "uq_resources_live_name",
        "resources",
        ["kind", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
        sqlite_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "secrets_store",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets_store"),
    )

    op.create_table(
        "status",
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("conditions", sa.JSON(), nullable=False),
        sa.Column("observed", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "uid", name="pk_status"),
    )

    # ### end Alembic commands ###
    _start_feed()


def _start_feed() -> None:
    """Version 0 of an epoch that no earlier database can have used: the Unix time."""
    epoch, chain, now = int(time.time()), os.urandom(32), datetime.now(UTC)
    head = sa.table(
        "intent_head",
        *(sa.column(c) for c in ("id", "epoch", "version", "system_id", "timeline")),
        sa.column("chain", sa.LargeBinary()),
    )
    op.execute(head.insert().values(id=1, epoch=epoch, version=0, chain=chain, system_id="", timeline=""))
    changes = sa.table(
        "intent_changes",
        sa.column("epoch"),
        sa.column("version"),
        sa.column("chain", sa.LargeBinary()),
        sa.column("upserts", sa.JSON()),
        sa.column("removals", sa.JSON()),
        sa.column("created_at", sa.DateTime(timezone=True)),
    )
    op.execute(changes.insert().values(epoch=epoch, version=0, chain=chain, upserts=[], removals=[], created_at=now))


def downgrade() -> None:
    for table in (
        "status",
        "secrets_store",
        "resources",
        "region_reports",
        "leases",
        "join_tokens",
        "inventory",
        "intent_head",
        "intent_changes",
        "idempotency",
        "events",
        "audit",
        "admin_tokens",
    ):
        op.drop_table(table)
