"""What the detectors of stopped runs share: the rhythm of steps, what the GPUs did, open alarms, their state, and
the loop over runs that stepped and runs that did not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import Fault, Finding, SnapshotError, StatedRate
from nightshift.detectors.episodes import Episodes
from nightshift.detectors.progress.activity import Activity
from nightshift.detectors.progress.rhythm import Rhythm, StepRhythms
from nightshift.detectors.progress.starvation import Starvation
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1


class FollowedRuns:
    """The state of one detector that watches runs: `take` a tick, then judge by `progress` and `activity`."""

    def __init__(
        self,
        detector: str,
        progress: StepRhythms,
        activity: Activity,
        budget_cost: float,
        waits: Starvation | None = None,
    ) -> None:
        self.detector = detector
        self.progress = progress
        self.activity = activity
        self.waits = waits
        self.episodes = Episodes(detector, budget_cost)

    def take(self, tick: Tick) -> dict[Subject, int]:
        """Adds a tick's GPUs and steps; how many new steps each subject with steps in this tick brought."""
        frame = tick.frames.get(SubjectKind.GPU)
        if frame is not None and len(frame.index):
            self.activity.add(frame, tick.at_s)
        came: dict[Subject, int] = {}
        for series in tick.steps:
            known = self.progress.rhythms.get(series.subject)
            before = known.count if known else 0
            rhythm = self.progress.take(series, tick.at_s)
            if self.waits is not None:
                self.waits.take(series, tick.at_s)
            came[series.subject] = came.get(series.subject, 0) + rhythm.count - before
        return came

    def slots(self, gpus: list[Subject]) -> list[int]:
        """The GPUs' rows in `activity`, of those that were seen at all."""
        return [slot for slot in (self.activity.table.slot(g) for g in gpus) if slot is not None]

    def snapshot(self) -> bytes:
        subjects, arrays = self.activity.table.saved()
        meta = {
            "subjects": subjects,
            "bucket": self.activity.bucket,
            "rhythms": self.progress.saved(),
            "episodes": self.episodes.saved(),
            "waits": {} if self.waits is None else self.waits.saved(),
        }
        return pack(self.detector, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        """Takes a snapshot into this fresh state. Raises SnapshotError; what was read by then is to be dropped."""
        _, meta, arrays = unpack(state, self.detector, (VERSION,))
        try:
            self.activity.table.load(meta["subjects"], arrays)
            self.activity.bucket = int(meta["bucket"])
            self.progress.load(meta["rhythms"])
            self.episodes.load(meta["episodes"])
            if self.waits is not None:
                self.waits.load(meta.get("waits", {}))
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.detector}: {error!r}") from error


class Strong(Protocol):
    """Settings of a graded detector."""

    @property
    def strength(self) -> float: ...


class RunDetector(ABC):
    """One fault of runs. A subclass says what it keeps, and what a run that stepped, or did not, means."""

    plugin: ClassVar[str]
    fault: ClassVar[Fault]
    CLAIM: ClassVar[float]
    """False alarms per 1,000 rank-days, before anybody has measured them."""
    settings: Strong
    _runs: FollowedRuns

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (self.fault,)

    @property
    def strength(self) -> float:
        return self.settings.strength

    @property
    def stated(self) -> StatedRate:
        return stated(self.plugin, self.CLAIM, "benchmarks/budget.py", self.strength, SubjectKind.RANK)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        came = self._runs.take(tick)
        said = [
            self._stepped(subject, self._runs.progress.rhythms[subject], count, tick, inventory)
            for subject, count in came.items()
        ]
        return [found for found in (*said, *self._others(set(came), tick, inventory)) if found is not None]

    @abstractmethod
    def _fresh(self) -> FollowedRuns: ...

    @abstractmethod
    def _stepped(
        self, subject: Subject, rhythm: Rhythm, count: int, tick: Tick, inventory: Inventory
    ) -> Finding | None:
        """What to say of a run whose log was read: it brought `count` new steps."""

    @abstractmethod
    def _others(self, read: set[Subject], tick: Tick, inventory: Inventory) -> Iterator[Finding | None]:
        """What to say of the runs of whose log nothing came."""

    def snapshot(self) -> bytes:
        return self._runs.snapshot()

    def restore(self, state: bytes) -> None:
        fresh = self._fresh()
        fresh.restore(state)
        self._runs = fresh
