"""The daemon's time for other processes: a demo or replay does not run by the wall clock, and its plans expire by
its own. The CLI, which reaches the store directly, reads here what time it is for the daemon."""

from __future__ import annotations

import json
import time

from nightshift.agent.clock import WallClock
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident_store import Store

_NAME = "daemon/clock"


def tell_time(store: Store, now_s: float | None) -> None:
    """Keeps the daemon's time (Unix s); None where it is the wall clock's."""
    store.keep({_NAME: json.dumps({"now_s": now_s}).encode()})


class ToldClock(WallClock):
    """The daemon's clock as it was last told in the database, or the wall clock."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._store = Store(database, WallClock())

    def now_s(self) -> float:
        kept = self._store.recall(_NAME)
        told = None if kept is None else json.loads(kept[1])["now_s"]
        # no daemon has ever run here, or one that goes by the wall clock
        return time.time() if told is None else float(told)
