"""What the daemon keeps across restarts beside incidents: the inventory's relations, and named bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import sqlalchemy as sa

from nightshift.agent.clock import Clock
from nightshift.agent.store.database import Database
from nightshift.agent.store.tables import kept, memberships
from nightshift.collectors.subject import Membership, Subject


class Kept:
    """Who held what when, detectors' snapshots, collectors' cursors. Part of the store."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    def save_memberships(self, changed: Iterable[Membership]) -> None:
        """Stores relations of the inventory; one that is known (child, parent, since) gets its new end."""
        with self.database.write() as connection:
            for item in changed:
                mine = (
                    (memberships.c.child == str(item.child))
                    & (memberships.c.parent == str(item.parent))
                    & (memberships.c.since_s == item.since_s)
                )
                connection.execute(sa.delete(memberships).where(mine))
                connection.execute(
                    sa.insert(memberships).values(
                        child=str(item.child),
                        parent=str(item.parent),
                        since_s=item.since_s,
                        until_s=item.until_s if math.isfinite(item.until_s) else None,
                    )
                )

    def load_memberships(self, after_s: float = -math.inf) -> list[Membership]:
        """Stored relations that held after a time, for `Inventory.load`."""
        query = sa.select(memberships).order_by(memberships.c.since_s)
        if math.isfinite(after_s):
            query = query.where(sa.or_(memberships.c.until_s.is_(None), memberships.c.until_s > after_s))
        with self.database.read() as connection:
            return [
                Membership(
                    Subject.parse(row.child),
                    Subject.parse(row.parent),
                    row.since_s,
                    math.inf if row.until_s is None else row.until_s,
                )
                for row in connection.execute(query)
            ]

    def prune_memberships(self, before_s: float) -> int:
        """Forgets relations that ended before a time; returns how many."""
        with self.database.write() as connection:
            gone = connection.execute(sa.delete(memberships).where(memberships.c.until_s < before_s))
        return gone.rowcount

    def keep(self, items: dict[str, bytes]) -> None:
        """Stores named bytes, such as detectors' snapshots and collectors' cursors, all or none."""
        now = self._clock.now_s()
        with self.database.write() as connection:
            connection.execute(sa.delete(kept).where(kept.c.name.in_(list(items))))
            for name, content in items.items():
                connection.execute(sa.insert(kept).values(name=name, at_s=now, content=content))

    def recall(self, name: str) -> tuple[float, bytes] | None:
        """When it was kept, and the bytes; None where nothing was kept under that name."""
        with self.database.read() as connection:
            row = connection.execute(sa.select(kept).where(kept.c.name == name)).one_or_none()
        return None if row is None else (row.at_s, bytes(row.content))
