"""Hangs: no step for long, while the processes still hold their GPUs and the GPUs do no work.

Ranks that wait in a collective spin: utilisation reads 100 % at well under the usual draw, or, where that is hardly
more, with neither memory nor tensor cores at work; the rank that they wait for idles. A run that ended has given
its memory back and is no hang; a long evaluation draws its usual power. A run that came back from a pause by
itself, as from a checkpoint to a slow disk, may pause so long again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Frame
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity
from nightshift.detectors.episodes import Alarm
from nightshift.detectors.progress.activity import Activity
from nightshift.detectors.progress.rhythm import Rhythm, StepRhythms
from nightshift.detectors.progress.stopped_runs import FollowedRuns, RunDetector

PAUSE, PAUSES_TO = 1.5, 5.0
"""A silence this many times as long as the longest pause that ended by itself is none of its kind; pauses excuse a
silence of `hang_s` times PAUSES_TO at most."""
WORKS = 0.9
"""Where one GPU of a run idles, another that draws less than this share of its usual waits for it."""
STILL = {"gpu_dram_active_ratio": 0.02, "gpu_tensor_active_ratio": 0.02}
"""Below all of these a GPU does nothing, whatever its utilisation says; the first has to be known."""


# No step for this long. PyTorch's watchdog aborts after 600 s; this leaves seven minutes to report it.
# `strength` scales it.
HANG_S = 180.0
# ... and for this many typical steps: a run whose steps take minutes pauses for minutes.
TYPICAL_STEPS = 20.0
# A GPU below this share of its usual draw only spins: waiting in a collective reads 100 % busy, at less power.
SPIN_POWER = 0.7
# Below this share of its memory the process has gone: allocators give back all at an exit, and little before.
HELD_MEMORY = 0.5
# A run silent for this long without an alarm has ended.
FORGET_S = 3600.0


class HangSettings(BaseModel):
    """What a hang is. PyTorch's NCCL watchdog aborts after 600 s by default; a hang should be known before."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(default=1.0, gt=0, description="A silence this many times as long as that is a hang")


class Hang(RunDetector):
    """HANG on the rank or job whose steps stopped.

    >>> from nightshift.detectors.contract.testing import JOB, START_S, show, steps, tick
    >>> works = {"gpu_utilization_percent": 97.0, "gpu_power_w": 600.0, "gpu_memory_used_bytes": 6e10}
    >>> spins = {**works, "gpu_power_w": 200.0}
    >>> def look(n):
    ...     at_s, goes_on = START_S + 5 * n, n < 60
    ...     said = [steps(JOB, n, [at_s], {"loss": [2.0]})] if goes_on else []
    ...     return tick(at_s, dict.fromkeys(range(8), works if goes_on else spins), series=said)
    >>> show(Hang(), [look(n) for n in range(120)])
    475 s: firing hang job:ml/train
        No step for 180 s after step 59 (typical 5 s); 0 of 8 GPUs idle, the others spin
    """

    plugin: ClassVar[str] = "hang"
    fault: ClassVar[Fault] = Fault.HANG
    CLAIM: ClassVar[float] = 1.0
    LOOSE: ClassVar[float] = 0.1
    Settings = HangSettings
    settings: HangSettings

    def __init__(self, settings: HangSettings | None = None) -> None:
        self.settings = settings or HangSettings()
        self._runs = self._fresh()

    def _fresh(self) -> FollowedRuns:
        activity = Activity(count=int(2 * HANG_S / 15.0) + 64)
        return FollowedRuns(
            self.name, StepRhythms(8.0, 2.0, 60.0), activity, self.stated.per_1000_series_days / 1000.0
        )

    def _stepped(
        self, subject: Subject, rhythm: Rhythm, count: int, tick: Tick, inventory: Inventory
    ) -> Finding | None:
        if count:
            return self._runs.episodes.clear(Fault.HANG, subject, tick.at_s, f"Step {rhythm.step} came")
        return self._judge(subject, rhythm, _lost(tick), tick, inventory)

    def _others(self, read: set[Subject], tick: Tick, inventory: Inventory) -> Iterator[Finding | None]:
        lost = _lost(tick)
        for subject, rhythm in list(self._runs.progress.rhythms.items()):
            if subject not in read:
                yield self._judge(subject, rhythm, lost, tick, inventory)

    def _judge(
        self, subject: Subject, rhythm: Rhythm, lost: set[str], tick: Tick, inventory: Inventory
    ) -> Finding | None:
        s, at_s = self.settings, tick.at_s
        silent_s, open_now = at_s - rhythm.last_s, (Fault.HANG, subject) in self._runs.episodes
        typical = rhythm.typical_s
        if not open_now and silent_s > FORGET_S:
            del self._runs.progress.rhythms[subject]
            return None
        if not np.isfinite(typical) or silent_s < s.strength * self._patience_s(rhythm):
            return None
        if rhythm.source in lost:
            return self._runs.episodes.no_data(
                Fault.HANG, subject, at_s, f"Its log cannot be read: {rhythm.source}"
            )
        slots = self._runs.slots(inventory.gpus(subject, at_s))
        table = self._runs.activity.table
        seen = [k for k in slots if np.isfinite(table["memory"][k]) and table.seen_s()[k] == at_s]
        if not seen:
            return self._runs.episodes.no_data(Fault.HANG, subject, at_s, "Its GPUs are not observed")
        held = [k for k in seen if table["memory"][k] >= HELD_MEMORY * table["memory_high"][k]]
        if not held:
            return self._runs.episodes.clear(
                Fault.HANG, subject, at_s, "Its processes have given their memory back"
            )
        recent = (at_s - 0.6 * min(silent_s, HANG_S), at_s)
        idle = self._runs.activity.idle(held, *recent)
        now_w = self._runs.activity.power_w(held, *recent)
        usual_w = self._runs.activity.power_w(held, rhythm.last_s - HANG_S, rhythm.last_s)
        with np.errstate(invalid="ignore"):
            idles = idle > 0.9
            spins = now_w < (WORKS if idles.any() else SPIN_POWER) * usual_w
        spins |= self._still(held, tick.frames.get(SubjectKind.GPU))
        if not (idles | spins).all() and not open_now:
            return None
        return self._runs.episodes.fire(self._alarm(subject, rhythm, at_s, idles, held), at_s)

    def _patience_s(self, rhythm: Rhythm) -> float:
        """How long a silence of this run is none yet."""
        pause_s = min(PAUSE * rhythm.longest_s, PAUSES_TO * HANG_S)
        return max(HANG_S, TYPICAL_STEPS * rhythm.typical_s, pause_s)

    def _still(self, held: list[int], frame: Frame | None) -> NDArray[np.bool_]:
        """[len(held)] whether neither the memory nor the tensor cores of a GPU are at work now."""
        still = np.zeros(len(held), dtype=bool)
        if frame is None or "gpu_dram_active_ratio" not in frame.columns:
            return still
        known = {name: frame.column(name) for name in STILL if name in frame.columns}
        for place, slot in enumerate(held):
            row = frame.index.rows.get(self._runs.activity.table.subjects[slot])
            values = {name: np.nan if row is None else float(column[row]) for name, column in known.items()}
            if values["gpu_dram_active_ratio"] >= 0:
                still[place] = not any(value >= STILL[name] for name, value in values.items())
        return still

    def _alarm(
        self,
        subject: Subject,
        rhythm: Rhythm,
        at_s: float,
        idles: NDArray[Any],
        held: list[int],
    ) -> Alarm:
        silent_s = at_s - rhythm.last_s
        subjects = [self._runs.activity.table.subjects[k] for k in held]
        idle = [g.name for g, still in zip(subjects, idles.tolist(), strict=True) if still]
        state = f"{len(idle)} of {len(held)} GPUs idle, the others spin"
        exhibit = SeriesExhibit(
            subject,
            "step",
            "",
            (rhythm.last_s, at_s),
            (float(rhythm.step), float(rhythm.step)),
            None,
            rhythm.source,
            "the last step that was logged, and now",
        )
        return Alarm(
            Fault.HANG,
            subject,
            rhythm.last_s,
            Severity.CRITICAL,
            f"No step for {silent_s:.0f} s after step {rhythm.step} (typical {rhythm.typical_s:.2g} s); {state}",
            score=silent_s / self._patience_s(rhythm),
            threshold=self.settings.strength,
            evidence=(exhibit,),
            facts={"silent_s": silent_s, "last_step": float(rhythm.step), "idle_gpus": " ".join(idle[:8])},
        )


def _lost(tick: Tick) -> set[str]:
    return {str(s.source.name) for s in tick.sources if not s.ok}
