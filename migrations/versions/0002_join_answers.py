"""What a join token was spent on, so that a join whose answer was lost can be asked again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "join_answers",
        sa.Column("token_uid", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.String(length=64), nullable=False),
        sa.Column("node_uid", sa.String(length=64), nullable=False),
        sa.Column("region", sa.String(length=256), nullable=False),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("token_uid", "attempt", name="pk_join_answers"),
    )
    op.create_index("ix_join_answers_answered_at", "join_answers", ["answered_at"], unique=False)


def downgrade() -> None:
    op.drop_table("join_answers")
