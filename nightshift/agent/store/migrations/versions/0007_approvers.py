"""An approval keeps the groups that vouched for the approver, so that it can be judged again when it is used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("approvals", sa.Column("groups", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("approvals", "groups")
