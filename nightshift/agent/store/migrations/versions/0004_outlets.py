"""What stands in the outlets: alerts in PagerDuty, Opsgenie and Alertmanager."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "outlet_rounds",
        sa.Column("incident", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seen_s", sa.Float(), nullable=True),
        sa.Column("seen_version", sa.Integer(), nullable=True),
        sa.Column("held_until_s", sa.Float(), nullable=True),
        sa.Column("looked_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("incident"),
    )
    op.create_table(
        "outlet_alerts",
        sa.Column("incident", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("outlet", sa.Text(), nullable=False),
        sa.Column("form", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("told", sa.Text(), nullable=True),
        sa.Column("tried_s", sa.Float(), nullable=True),
        sa.Column("told_s", sa.Float(), nullable=True),
        sa.Column("due_s", sa.Float(), nullable=False),
        sa.Column("withdrawn", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("incident", "outlet", "form"),
    )
    op.create_index("outlet_alerts_by_outlet", "outlet_alerts", ["outlet", "told", "told_s"], unique=False)


def downgrade() -> None:
    op.drop_table("outlet_alerts")
    op.drop_table("outlet_rounds")
