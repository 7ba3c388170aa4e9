"""Runs the migrations inside the transaction that `agent.store.database` has opened."""

from __future__ import annotations

from alembic import context

from nightshift.agent.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
