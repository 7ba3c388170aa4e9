"""How long an incident has waited in its state, counted look by look: a clock that jumps ends no action."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("waited_s", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("incidents", "waited_s")
