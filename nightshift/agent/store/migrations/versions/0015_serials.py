"""Serial numbers of units that left service and of those in their place, and who qualified them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
COLUMNS = ("serial", "new_serial", "qualified_by")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("returns", sa.Column(name, sa.Text(), nullable=True))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("returns", name)
