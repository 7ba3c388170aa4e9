"""Sees the past again: a recording, or a time range of a Prometheus, through the daemon's own pipeline.

The App is the daemon's; only its clock is stepped from tick to tick, its store is a new file in a folder of its
own, and it has no actuators, so that nothing can be carried out. `record` writes what `replay` reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock, WallClock
from nightshift.agent.construct import build_collectors
from nightshift.agent.correlation.collection import Collection, patience_s
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident import Incident
from nightshift.collectors.merge import Merger
from nightshift.collectors.recording import RecordingWriter
from nightshift.collectors.subject import Inventory

# Ticks between two waits for the stages of open incidents.
_SETTLE_EVERY = 12


def replay(
    settings: Settings, start_s: float, end_s: float, progress: Callable[[float], None] = lambda _: None
) -> list[Incident]:
    """Every look from `start_s` to `end_s` (Unix s), as fast as it goes; the incidents, oldest first. `settings`
    name the sources and a state folder of the replay's own. `progress` is called with each look's time."""
    app = App(settings, clock=SteppedClock(start_s))
    try:
        app.start()
        ticks = 0
        while app.clock.now_s() <= end_s + 1e-6:
            look = app.tick()
            ticks += 1
            progress(app.clock.now_s())
            # Stages run on threads of their own in wall time: without a wait, hours of the replay pass before a
            # diagnosis.
            if (look is not None and look.decisions) or ticks % _SETTLE_EVERY == 0:
                app.settle()
            app.clock.wait_until(app.clock.now_s() + settings.tick_s)
        app.settle()
        # a model reads beside the incidents: here nothing comes after them
        app.readings.wait_idle(settings.llm.timeout_s * (1 + len(app.store.incidents())))
        return [app.store.incident(row.id) for row in reversed(app.store.incidents())]
    finally:
        app.stop()


def record(settings: Settings, path: Path, for_s: float, stop: threading.Event) -> int:
    """Writes what the configured sources say, tick by tick, until `for_s` is over or `stop` is set; returns the
    number of ticks. The file is readable up to its last whole tick whenever the process ends."""
    collection = Collection(build_collectors(settings.sources), patience_s(settings.tick_s))
    merger, inventory, clock = Merger(), Inventory(settings.cluster), WallClock()
    writer = RecordingWriter(path, settings.tick_s, {"cluster": settings.cluster})
    ticks, next_s, end_s = 0, clock.now_s(), time.time() + for_s
    try:
        while not stop.is_set() and clock.now_s() < end_s:
            now_s = clock.now_s()
            writer.add(merger.merge(collection.collect(now_s, inventory), now_s, inventory), inventory)
            ticks += 1
            next_s += settings.tick_s
            stop.wait(max(0.0, next_s - clock.now_s()))
    finally:
        writer.close()
        collection.close()
    return ticks
