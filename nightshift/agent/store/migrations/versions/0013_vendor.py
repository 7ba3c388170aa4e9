"""What a vendor asks for, collected before an action; and units that left service until others replace them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "vendor_files",
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("action_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("incident", "action_id", "name"),
    )
    op.create_table(
        "returns",
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=False),
        sa.Column("out_s", sa.Float(), nullable=False),
        sa.Column("replaced_by", sa.Text(), nullable=True),
        sa.Column("replaced_s", sa.Float(), nullable=True),
        sa.Column("back_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("incident", "gpu"),
    )
    op.create_index("returns_by_end", "returns", ["back_s", "out_s"], unique=False)


def downgrade() -> None:
    op.drop_table("returns")
    op.drop_table("vendor_files")
