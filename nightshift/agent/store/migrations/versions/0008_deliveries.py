"""What stands outside, in one ledger: the chat's messages, the pagers' alerts and their rounds."""

from __future__ import annotations

import importlib

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_VERSIONS = "nightshift.agent.store.migrations.versions"
_CHAT = [
    *(
        "key",
        "kind",
        "incident",
        "channel",
        "thread",
        "ts",
        "tried_s",
        "watch_until_s",
        "posted_s",
        "steps",
        "seen_s",
    ),
    *("seen_version", "held_until_s", "storm", "snoozed_until_s", "reminders"),
]
_ALERT = ["incident", "outlet", "turn", "severity", "tried_s", "told_s", "due_s", "withdrawn"]
_ROUND = ["incident", "seen_s", "seen_version", "held_until_s"]
_CHAT_KINDS = "('card', 'thread', 'storm', 'proposal')"


def upgrade() -> None:
    op.create_table(
        "deliveries",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("outlet", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=True),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=True),
        sa.Column("ts", sa.Text(), nullable=True),
        sa.Column("shows", sa.Text(), nullable=True),
        sa.Column("tried_s", sa.Float(), nullable=True),
        sa.Column("told_s", sa.Float(), nullable=True),
        sa.Column("watch_until_s", sa.Float(), nullable=True),
        sa.Column("posted_s", sa.Float(), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("seen_s", sa.Float(), nullable=True),
        sa.Column("seen_version", sa.Integer(), nullable=True),
        sa.Column("held_until_s", sa.Float(), nullable=True),
        sa.Column("storm", sa.Text(), nullable=True),
        sa.Column("snoozed_until_s", sa.Float(), nullable=True),
        sa.Column("reminders", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=True),
        sa.Column("due_s", sa.Float(), nullable=True),
        sa.Column("withdrawn", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"]),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index(op.f("ix_deliveries_incident"), "deliveries", ["incident"], unique=False)
    op.create_index("deliveries_by_channel", "deliveries", ["channel", "kind", "posted_s"], unique=False)
    op.create_index("deliveries_by_outlet", "deliveries", ["outlet", "shows", "told_s"], unique=False)
    name = "'INC-' || CAST(incident AS TEXT)"
    _copy("chat_messages", _CHAT, outlet="'slack'", shows="content_sha256", turn="0", withdrawn="0")
    _copy(
        "outlet_alerts", _ALERT, key=f"outlet || '/' || {name} || '/' || form", kind="form", channel="''",
        shows="told", steps="0", reminders="0",
    )  # fmt: skip
    _copy(
        "outlet_rounds", _ROUND, key=f"{name} || '/round'", outlet="''", kind="'round'", channel="''", steps="0",
        reminders="0", turn="0", withdrawn="0",
    )  # fmt: skip
    for table in ("outlet_alerts", "outlet_rounds", "chat_messages"):
        op.drop_table(table)


def downgrade() -> None:
    # An earlier program finds every message and page as it left them: it neither posts nor pages twice.
    importlib.import_module(f"{_VERSIONS}.0002_chat").create_messages()
    importlib.import_module(f"{_VERSIONS}.0004_outlets").upgrade()
    _copy("deliveries", _CHAT, "chat_messages", f"kind IN {_CHAT_KINDS}", content_sha256="shows")
    _copy("deliveries", _ALERT, "outlet_alerts", "kind IN ('page', 'shown')", form="kind", told="shows")
    _copy("deliveries", _ROUND, "outlet_rounds", "kind = 'round'", looked_s="0.0")
    op.drop_table("deliveries")


def _copy(source: str, same: list[str], to: str = "deliveries", where: str = "1 = 1", **other: str) -> None:
    """Copies rows: columns of the same name, and others by what they are made of."""
    columns = ", ".join([*same, *other])
    values = ", ".join([*same, *other.values()])
    op.execute(sa.text(f"INSERT INTO {to} ({columns}) SELECT {values} FROM {source} WHERE {where}"))
