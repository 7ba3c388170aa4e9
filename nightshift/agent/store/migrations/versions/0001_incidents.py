"""Incidents, findings, plans, approvals, intents, leases and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incident", sa.Integer(), nullable=True),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(op.f("ix_audit_incident"), "audit", ["incident"], unique=False)
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "controls",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "incidents",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("opened_s", sa.Float(), nullable=False),
        sa.Column("updated_s", sa.Float(), nullable=False),
        sa.Column("entered_s", sa.Float(), nullable=False),
        sa.Column("moved_by", sa.Text(), nullable=True),
        sa.Column("clear_since_s", sa.Float(), nullable=True),
        sa.Column("news", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("diagnosis", sa.Integer(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("plan_sha256", sa.Text(), nullable=True),
        sa.Column("action_kind", sa.Text(), nullable=True),
        sa.Column("expires_s", sa.Float(), nullable=True),
        sa.Column("approval_rule", sa.Text(), nullable=True),
        sa.Column("stage_runs", sa.Integer(), nullable=False),
        sa.Column("stage_failures", sa.Integer(), nullable=False),
        sa.Column("due_s", sa.Float(), nullable=True),
        sa.Column("runner", sa.Text(), nullable=True),
        sa.Column("runner_term", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index("incidents_by_state", "incidents", ["state", "expires_s", "clear_since_s"], unique=False)
    op.create_table(
        "kept",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("expires_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "memberships",
        sa.Column("child", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.Column("since_s", sa.Float(), nullable=False),
        sa.Column("until_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("child", "parent", "since_s"),
    )
    op.create_table(
        "approvals",
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("plan_sha256", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("expires_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident"],
            ["incidents.number"],
        ),
        sa.PrimaryKeyConstraint("incident", "plan_sha256", "person"),
    )
    op.create_table(
        "diagnoses",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident"],
            ["incidents.number"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_diagnoses_incident"), "diagnoses", ["incident"], unique=False)
    op.create_table(
        "findings",
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("episode", sa.Text(), nullable=False),
        sa.Column("detector", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since_s", sa.Float(), nullable=False),
        sa.Column("last_seen_s", sa.Float(), nullable=False),
        sa.Column("changed_s", sa.Float(), nullable=False),
        sa.Column("diagnosed", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident"],
            ["incidents.number"],
        ),
        sa.PrimaryKeyConstraint("incident", "episode"),
    )
    op.create_index("findings_by_episode", "findings", ["episode"], unique=False)
    op.create_table(
        "intents",
        sa.Column("action_id", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("plan_sha256", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("runner", sa.Text(), nullable=False),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["incident"],
            ["incidents.number"],
        ),
        sa.PrimaryKeyConstraint("action_id", "phase"),
    )
    op.create_index(op.f("ix_intents_incident"), "intents", ["incident"], unique=False)
    op.create_table(
        "plans",
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("plan_sha256", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident"],
            ["incidents.number"],
        ),
        sa.PrimaryKeyConstraint("incident", "plan_sha256"),
    )
    op.create_table(
        "steps",
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident"],
            ["incidents.number"],
        ),
        sa.PrimaryKeyConstraint("incident", "number"),
    )
    head = sa.table("audit_head", sa.column("id"), sa.column("number"), sa.column("sha256"))
    op.execute(head.insert().values(id=1, number=0, sha256="0" * 64))


def downgrade() -> None:
    op.drop_table("steps")
    op.drop_table("plans")
    op.drop_index(op.f("ix_intents_incident"), table_name="intents")
    op.drop_table("intents")
    op.drop_index("findings_by_episode", table_name="findings")
    op.drop_table("findings")
    op.drop_index(op.f("ix_diagnoses_incident"), table_name="diagnoses")
    op.drop_table("diagnoses")
    op.drop_table("approvals")
    op.drop_table("memberships")
    op.drop_table("leases")
    op.drop_table("kept")
    op.drop_index("incidents_by_state", table_name="incidents")
    op.drop_table("incidents")
    op.drop_table("controls")
    op.drop_table("audit_head")
    op.drop_index(op.f("ix_audit_incident"), table_name="audit")
    op.drop_table("audit")
