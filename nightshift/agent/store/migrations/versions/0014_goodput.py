"""GPU-seconds by account: the goodput ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "goodput",
        sa.Column("start_s", sa.Float(), nullable=False),
        sa.Column("span_s", sa.Float(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("incident", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("gpu_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("start_s", "span_s", "account", "job", "node", "cause", "incident"),
    )
    op.create_index("goodput_by_team", "goodput", ["team", "start_s"], unique=False)


def downgrade() -> None:
    op.drop_table("goodput")
