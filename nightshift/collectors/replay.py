"""A recording as a source: its ticks come when the clock reaches their time, as live ones would.

(A time range of a Prometheus is replayed by its own collector with `at_clock: true`.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Reason, SourceStatus
from nightshift.collectors.recording import RecordedTick, RecordingError, read, read_header
from nightshift.collectors.subject import Inventory
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch


class ReplayCollector:
    """Every recorded tick up to the clock's time, each once; when several are due, the newest frames count.

    >>> import tempfile
    >>> from nightshift.collectors.recording import RecordingWriter
    >>> from nightshift.collectors.tick import Tick
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = RecordingWriter(Path(folder, "night.gz"), tick_s=5.0)
    ...     for at_s in (100.0, 105.0, 110.0):
    ...         writer.add(Tick(at_s), Inventory())
    ...     writer.close()
    ...     collector = ReplayCollector(ReplayCollector.Settings(path=Path(folder, "night.gz")))
    ...     [status.samples for status in collector.collect(106.0, Inventory(), timeout_s=60.0).sources]
    [2]
    """

    plugin: ClassVar[str] = "recording"

    class Settings(BaseModel):
        """Replays a recording."""

        model_config = ConfigDict(extra="forbid")

        path: Path = Field(description="The recording, as `nightshift record` writes it")

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = settings.path
        self._timer = clock
        self._source = source_subject(self.plugin, str(settings.path))
        self._ticks: Iterator[RecordedTick] | None = None
        self._next: RecordedTick | None = None
        self._broken: SourceStatus | None = None

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        due = self._due(now_s, started + timeout_s)
        for recorded in due:
            _tell(recorded, inventory)
        own = self._status(now_s, len(due), self._timer() - started)
        if not due:
            return Batch([own])
        ticks = [recorded.tick for recorded in due]
        return Batch(
            [own, *(replace(status, at_s=now_s) for status in ticks[-1].sources if status.source != self._source)],
            list(ticks[-1].frames.values()),
            [steps for tick in ticks for steps in tick.steps],
            [record for tick in ticks for record in tick.logs],
            [event for tick in ticks for event in tick.events],
            (),
            ticks[-1].alerts,
            ticks[-1].silences,
            [record for tick in ticks for record in tick.raw],
        )

    def close(self) -> None:
        self._ticks = None

    def _due(self, now_s: float, until_s: float) -> list[RecordedTick]:
        """The recorded ticks whose time has come, as many as can be read until the timer says `until_s`."""
        due: list[RecordedTick] = []
        try:
            if self._ticks is None:
                self._ticks = read(self._path)
                self._next = next(self._ticks, None)
            while self._next is not None and self._next.tick.at_s <= now_s:
                due.append(self._next)
                self._next = next(self._ticks, None)
                if self._timer() > until_s:
                    break
        except RecordingError as error:  # what was read before the damage still counts
            self._ticks, self._next = iter(()), None
            missing = not self._path.is_file()
            reason = Reason.NOT_FOUND if missing else Reason.MALFORMED
            self._broken = SourceStatus(self._source, now_s, False, reason, str(error)[:300])
        return due

    def _status(self, now_s: float, n_ticks: int, took_s: float) -> SourceStatus:
        if self._broken is not None and not n_ticks:
            return SourceStatus(self._source, now_s, False, self._broken.reason, self._broken.detail)
        if not n_ticks and self._next is None:
            return SourceStatus(self._source, now_s, False, Reason.STALE, "the recording has ended")
        return SourceStatus(self._source, now_s, True, samples=n_ticks, took_s=took_s)


def _tell(recorded: RecordedTick, inventory: Inventory) -> None:
    for relation in recorded.relations:
        inventory.observe(relation.child, relation.parent, relation.since_s)
        if relation.until_s < float("inf"):
            inventory.end(relation.child, relation.parent, relation.until_s)
    for subject, facts in (recorded.facts or {}).items():
        inventory.describe(subject, **facts)


def span(path: Path) -> tuple[float, float, float]:
    """(first tick, last tick, time between ticks) of a recording (Unix s, s). Raises RecordingError."""
    header = read_header(path)
    times = [recorded.tick.at_s for recorded in read(path)]
    if not times:
        raise RecordingError(f"{path}: holds no tick")
    return times[0], times[-1], header.tick_s
