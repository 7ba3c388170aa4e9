"""Cases that a person or another system opens, on their way to the next look."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reports",
        sa.Column("episode", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("episode"),
    )


def downgrade() -> None:
    op.drop_table("reports")
