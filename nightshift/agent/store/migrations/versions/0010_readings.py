"""What a language model made of a diagnosis, beside it: the diagnosis and its plan stay as the rules wrote them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "readings",
        sa.Column("diagnosis", sa.Integer(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["diagnosis"], ["diagnoses.number"]),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("diagnosis"),
    )
    op.create_index("readings_by_incident", "readings", ["incident"], unique=False)
    op.create_index("readings_by_time", "readings", ["at_s"], unique=False)


def downgrade() -> None:
    op.drop_table("readings")
