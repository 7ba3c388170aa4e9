"""The command line counts a plan's time by the daemon's clock."""

from __future__ import annotations

import time
from pathlib import Path

from nightshift.agent.clock import SteppedClock
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.process_clock import ToldClock, tell_time


def test_another_process_reads_the_daemons_time(tmp_path: Path) -> None:
    """A stepped clock's time is told through the store; a daemon on the wall clock takes the word back."""
    database = Database(f"sqlite:///{tmp_path / 'n.db'}")
    store = Store(database, SteppedClock(1000.0))
    told = ToldClock(database)
    assert abs(told.now_s() - time.time()) < 60
    tell_time(store, 1000.0)
    assert told.now_s() == 1000.0
    tell_time(store, None)
    assert abs(told.now_s() - time.time()) < 60
    database.close()
