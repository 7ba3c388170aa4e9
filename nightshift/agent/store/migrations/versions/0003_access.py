"""Whose jobs an incident touches, and who is signed in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NAMESPACED = ("pod:", "container:", "job:", "rank:")


def upgrade() -> None:
    op.create_table(
        "tenancies",
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("incident", "namespace"),
    )
    op.create_index("tenancies_by_namespace", "tenancies", ["namespace", "incident"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("id_sha256", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("how", sa.Text(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("provider_subject", sa.Text(), nullable=True),
        sa.Column("provider_session", sa.Text(), nullable=True),
        sa.Column("since_s", sa.Float(), nullable=False),
        sa.Column("proved_s", sa.Float(), nullable=False),
        sa.Column("until_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id_sha256"),
    )
    op.create_index("sessions_by_person", "sessions", ["person"], unique=False)
    _attribute_what_is_stored()


def _attribute_what_is_stored() -> None:
    """By the names of the findings' subjects: what a node held then is not known any more, so incidents of hardware
    alone stay with those who may see the whole cluster."""
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT DISTINCT incident, subject FROM findings")).all()
    found = set()
    for number, subject in rows:
        namespace, slash, _ = subject.partition(":")[2].partition("/")
        if subject.startswith(_NAMESPACED) and slash:
            found.add((number, namespace))
    for number, namespace in sorted(found):
        connection.execute(
            sa.text("INSERT INTO tenancies (incident, namespace) VALUES (:n, :s)"), {"n": number, "s": namespace}
        )


def downgrade() -> None:
    op.drop_table("sessions")
    op.drop_table("tenancies")
