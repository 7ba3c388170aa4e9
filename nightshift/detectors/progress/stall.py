"""Data stalls: a run that stops again and again, or waits at every step, while its GPU has nothing to do.

A single pause proves nothing (an evaluation, a checkpoint, a slow file). A stall is a repeated gap between steps
that costs a stated share of the time, is not a checkpoint, and during which the GPU really idles: in an evaluation
it computes, and while other ranks are at fault it spins in a collective, which shows as busy. A loader that is too
slow for every step leaves no gaps: there the log's own waits are asked (`detectors.progress.starvation`), and the
GPU has to draw less than it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity
from nightshift.detectors.episodes import Alarm
from nightshift.detectors.progress.activity import Activity
from nightshift.detectors.progress.rhythm import Gap, Rhythm, StepRhythms
from nightshift.detectors.progress.starvation import Starvation, Waits
from nightshift.detectors.progress.stopped_runs import FollowedRuns, RunDetector

DRAWS = 0.95
"""A GPU that waits more than it did draws less than this share of what it drew."""
PEERS_ASKED = 16


# A gap is a step this many times longer than the typical one: steps of uneven sequences differ by less.
GAP_RATIO = 8.0
# ... and at least this long: what is shorter can be a pause of the garbage collector or of the log's writer.
GAP_S = 2.0
# One gap can be an evaluation and two can be a checkpoint with it; three are a habit.
GAPS = 3
# Gaps are counted over this: long enough for three that come minutes apart.
WINDOW_S = 900.0
# Share of the window that the gaps have to cost; `strength` scales it.
LOST_SHARE = 0.15
# Share of the lost time in which the GPU has to idle: in an evaluation it computes.
IDLE_SHARE = 0.5
# Steps without a gap for this long clear; longer than the usual distance of two gaps.
CLEAR_S = 120.0
# No step for this long is a hang or an end, on which this detector has no say.
SILENT_AFTER_S = 900.0


class StallSettings(BaseModel):
    """What a stall is. Times in seconds of the steps' own clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(default=1.0, gt=0, description="Gaps that cost this many times as much are a stall")


class DataStall(RunDetector):
    """DATA_STALL on the rank or job whose steps stop while its GPUs idle.

    >>> from nightshift.detectors.contract.testing import JOB, START_S, show, steps, tick
    >>> works = {"gpu_utilization_percent": 97.0, "gpu_power_w": 600.0}
    >>> idles = {"gpu_utilization_percent": 0.0, "gpu_power_w": 110.0}
    >>> def look(n):  # from the 30th look on, steps pause for 25 s of every 50
    ...     at_s, pauses = START_S + 5 * n, n >= 30 and n % 10 >= 5
    ...     said = [] if pauses else [steps(JOB, 5 * n, [at_s - 4 + k for k in range(5)], {"loss": [2.0] * 5})]
    ...     return tick(at_s, dict.fromkeys(range(8), idles if pauses else works), series=said)
    >>> show(DataStall(), [look(n) for n in range(100)])
    300 s: firing data_stall job:ml/train
        3 stalls of up to 26 s cost 60 % of the time while the GPU idles
    """

    plugin: ClassVar[str] = "stall"
    fault: ClassVar[Fault] = Fault.DATA_STALL
    CLAIM: ClassVar[float] = 5.0
    LOOSE: ClassVar[float] = 0.1
    Settings = StallSettings
    settings: StallSettings

    def __init__(self, settings: StallSettings | None = None) -> None:
        self.settings = settings or StallSettings()
        self._runs = self._fresh()

    def _fresh(self) -> FollowedRuns:
        progress = StepRhythms(GAP_RATIO, GAP_S, WINDOW_S)
        activity = Activity(count=int(WINDOW_S / 15.0) + 4)
        cost = self.stated.per_1000_series_days / 1000.0
        return FollowedRuns(self.name, progress, activity, cost, Starvation())

    def _stepped(
        self, subject: Subject, rhythm: Rhythm, count: int, tick: Tick, inventory: Inventory
    ) -> Finding | None:
        at_s = tick.at_s
        # a gap as long as a hang is that detector's word: a few checkpoints after it are no stall by its length
        gaps = [g for g in rhythm.gaps if g.end_s > at_s - WINDOW_S and not (g.checkpoint or g.hung)]
        open_now = (Fault.DATA_STALL, subject) in self._runs.episodes
        waits = self._runs.waits.of.get(subject) if self._runs.waits is not None else None
        starved = None if waits is None else self._starved(subject, rhythm, waits, open_now, at_s, inventory)
        if starved is not None:
            return starved
        if len(gaps) >= GAPS and (open_now or gaps[-1].end_s > at_s - CLEAR_S):
            alarm = self._weigh(subject, rhythm, gaps, at_s, inventory)
            if alarm is not None and not self._over(rhythm, gaps):
                return self._runs.episodes.fire(alarm, at_s)
        if open_now and self._over(rhythm, gaps):
            rhythm.gaps.clear()  # told once: the next alarm needs gaps of its own
            return self._runs.episodes.clear(Fault.DATA_STALL, subject, at_s, "Steps come without gaps again")
        return self._runs.episodes.again(Fault.DATA_STALL, subject, at_s)

    def _starved(
        self, subject: Subject, rhythm: Rhythm, waits: Waits, open_now: bool, at_s: float, inventory: Inventory
    ) -> Finding | None:
        """The word on a run whose steps all wait longer than they did; None where the gaps decide."""
        episodes, key = self._runs.episodes, (Fault.DATA_STALL, subject)
        if not waits.news:  # by the minute: nothing else can have changed
            return episodes.again(*key, at_s) if open_now and waits.usual is not None else None
        waits.news = False
        lost, limit = waits.lost(), self.settings.strength * LOST_SHARE
        if waits.usual is not None and open_now:
            if not lost or max(lost[-2:]) >= 0.5 * limit:
                return episodes.again(*key, at_s)
            waits.usual = None
            return episodes.clear(*key, at_s, "Steps wait as little as before")
        waits.usual = None
        before = waits.before()
        if open_now or before is None or not lost or min(lost) < limit:
            return None
        since_s = waits.stretches[-len(lost) - 1][0]
        if not self._others_wait(subject, 0.5 * limit, at_s, inventory):
            return None
        if not self._draws_less(subject, since_s, at_s, inventory):
            return None
        waits.usual = before
        return episodes.fire(self._starving(subject, rhythm, waits, before, since_s), at_s)

    def _draws_less(self, subject: Subject, since_s: float, at_s: float, inventory: Inventory) -> bool:
        """Whether a GPU of the run draws less than before: steps that grew for another reason keep it at work."""
        slots = self._runs.slots(inventory.gpus(subject, at_s))
        now_w = self._runs.activity.power_w(slots, since_s, at_s)
        then_w = self._runs.activity.power_w(slots, since_s - WINDOW_S / 2.0, since_s)
        with np.errstate(invalid="ignore"):
            return bool((now_w < DRAWS * then_w).any())

    def _starving(
        self, subject: Subject, rhythm: Rhythm, waits: Waits, before: list[float], since_s: float
    ) -> Alarm:
        _, step_s, wait_s = waits.stretches[-1]
        share = float(np.mean(waits.lost()))
        exhibit = SeriesExhibit(
            subject,
            "data_s",
            "s",
            tuple(end_s for end_s, _, _ in waits.stretches),
            tuple(wait for _, _, wait in waits.stretches),
            before[1],
            rhythm.source,
            "mean wait of a step in each minute; the reference is what it was before",
        )
        return Alarm(
            Fault.DATA_STALL,
            subject,
            since_s,
            Severity.WARNING,
            f"Every step waits {wait_s:.2g} s for data, {before[1]:.2g} s before: {100 * share:.0f} % of the time",
            score=share / LOST_SHARE,
            threshold=self.settings.strength,
            evidence=(exhibit,),
            facts={
                "lost_share": share,
                "wait_s_per_step": wait_s,
                "usual_wait_s_per_step": before[1],
                "step_s": step_s,
                "typical_step_s": before[0],
            },
        )

    def _others_wait(self, subject: Subject, limit: float, at_s: float, inventory: Inventory) -> bool:
        """Whether half of the job's other ranks that load at all, of some, wait too: one whose own loader is slow
        is a straggler."""
        job = inventory.above(subject, SubjectKind.JOB, at_s)
        ranks = inventory.children(job, at_s, SubjectKind.RANK)[: PEERS_ASKED + 1] if job is not None else []
        known = self._runs.waits.of if self._runs.waits is not None else {}
        others = [known[rank] for rank in ranks if rank != subject and rank in known]
        lost = [waits.lost() for waits in others if waits.loads]
        return sum(bool(of) and max(of) >= limit for of in lost) >= 0.5 * len(lost)

    def _over(self, rhythm: Rhythm, gaps: list[Gap]) -> bool:
        """Steps for longer than two and a half times the usual distance between gaps, or a new run without one."""
        if not gaps:
            return rhythm.last_s - rhythm.first_s >= CLEAR_S
        quiet_since_s = max(gaps[-1].end_s, rhythm.first_s)
        new_run = rhythm.run_since_s > gaps[-1].end_s
        spacing = (gaps[-1].end_s - gaps[0].end_s) / max(len(gaps) - 1, 1)
        wait_s = CLEAR_S if new_run else max(CLEAR_S, 2.5 * spacing)
        return rhythm.last_s - quiet_since_s >= wait_s

    def _weigh(
        self, subject: Subject, rhythm: Rhythm, gaps: list[Gap], at_s: float, inventory: Inventory
    ) -> Alarm | None:
        s = self.settings
        start_s = max(at_s - WINDOW_S, gaps[0].start_s)
        lost_s = sum(g.end_s - max(g.start_s, start_s) for g in gaps)
        lost = lost_s / max(at_s - start_s, 1.0)
        idle = self._runs.activity.idle(self._runs.slots(inventory.gpus(subject, at_s)), start_s, at_s)
        idle = idle[np.isfinite(idle)]
        if lost < s.strength * LOST_SHARE or len(idle) == 0 or float(idle.max()) < IDLE_SHARE * lost:
            return None
        typical = rhythm.typical_s
        longest = max(g.end_s - g.start_s for g in gaps)
        took = SeriesExhibit(
            subject,
            "step_time_s",
            "s",
            tuple(g.end_s for g in gaps),
            tuple(g.end_s - g.start_s for g in gaps),
            typical if np.isfinite(typical) else None,
            rhythm.source,
            "steps that took long; the reference is the typical step",
        )
        return Alarm(
            Fault.DATA_STALL,
            subject,
            gaps[0].start_s,
            Severity.WARNING,
            f"{len(gaps)} stalls of up to {longest:.0f} s cost {100 * lost:.0f} % of the time while the GPU idles",
            score=lost / LOST_SHARE,
            threshold=s.strength,
            evidence=(took,),
            facts={
                "stalls": float(len(gaps)),
                "lost_share": lost,
                "gpu_idle_share": float(idle.max()),
                "typical_step_s": typical,
                "longest_stall_s": longest,
            },
        )

    def _others(self, read: set[Subject], tick: Tick, inventory: Inventory) -> Iterator[Finding | None]:
        at_s = tick.at_s
        for fault, subject in tuple(self._runs.episodes):
            if subject in read:
                continue
            rhythm = self._runs.progress.rhythms.get(subject)
            gone = rhythm is None or at_s - rhythm.last_s > SILENT_AFTER_S
            if gone:
                yield self._runs.episodes.no_data(fault, subject, at_s, "No new training step")
            else:
                yield self._runs.episodes.again(fault, subject, at_s)
        oldest_s = at_s - 4 * WINDOW_S
        self._runs.progress.forget(oldest_s)
        if self._runs.waits is not None:
            self._runs.waits.forget(oldest_s)
