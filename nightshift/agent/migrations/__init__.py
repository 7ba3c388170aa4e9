"""The store's schema, version by version (Alembic). Run by `agent.database` when a store is opened."""
