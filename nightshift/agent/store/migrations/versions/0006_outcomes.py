"""Receipts whose outcome will never be known say why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("void", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "void")
