"""The store's schema, version by version (Alembic). Run by `agent.store.database` when a store is opened."""
