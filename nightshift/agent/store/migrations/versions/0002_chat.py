"""What was posted to chat, and silences."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def create_messages() -> None:
    op.create_table(
        "chat_messages",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=True),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=True),
        sa.Column("ts", sa.Text(), nullable=True),
        sa.Column("content_sha256", sa.Text(), nullable=True),
        sa.Column("tried_s", sa.Float(), nullable=True),
        sa.Column("watch_until_s", sa.Float(), nullable=True),
        sa.Column("posted_s", sa.Float(), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("seen_s", sa.Float(), nullable=True),
        sa.Column("seen_version", sa.Integer(), nullable=True),
        sa.Column("held_until_s", sa.Float(), nullable=True),
        sa.Column("storm", sa.Text(), nullable=True),
        sa.Column("snoozed_until_s", sa.Float(), nullable=True),
        sa.Column("reminders", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index(op.f("ix_chat_messages_incident"), "chat_messages", ["incident"], unique=False)
    op.create_index("chat_messages_by_channel", "chat_messages", ["channel", "kind", "posted_s"], unique=False)


def upgrade() -> None:
    create_messages()
    op.create_table(
        "silences",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("matcher", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("until_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("silences")
    op.drop_table("chat_messages")
