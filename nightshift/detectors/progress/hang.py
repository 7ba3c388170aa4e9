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
from nightshift.detectors.progress.rhythm import HANG_S, Rhythm, StepRhythms
from nightshift.detectors.progress.stopped_runs import FollowedRuns, RunDetector

WORKS = 0.9
"""Where one GPU of a run idles, another that draws less than this share of its usual waits for it."""
STILL = {"gpu_dram_active_ratio": 0.02, "gpu_tensor_active_ratio": 0.02}
"""Below all of these a GPU does nothing, whatever its utilisation says; the first has to be known."""


# A GPU below this share of its usual draw only spins: waiting in a collective reads 100 % busy, at less power.
SPIN_POWER = 0.7
# Below this share of what the run held the process has gone: allocators give back all at an exit, little before.
HELD_MEMORY = 0.5
# A silence this long is looked at for what the GPUs held before it, while that is still kept.
SILENCE_S = 45.0
IDLE = 0.9
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
        at_s, episodes = tick.at_s, self._runs.episodes
        silent_s, open_now = at_s - rhythm.last_s, (Fault.HANG, subject) in episodes
        if not open_now and silent_s > FORGET_S:
            del self._runs.progress.rhythms[subject]
            return None
        if silent_s >= SILENCE_S and rhythm.held_since_s != rhythm.last_s:
            self._note_held(subject, rhythm, inventory)
        # before the tenth step nobody knows how long its steps take: NaN is no patience, and no alarm
        if not silent_s >= self.settings.strength * rhythm.patience_s:
            return None
        if rhythm.source in lost:
            return episodes.no_data(Fault.HANG, subject, at_s, f"Its log cannot be read: {rhythm.source}")
        own = [slot for gpu, slot in self._seen(subject, at_s, inventory) if gpu.name in rhythm.held]
        if not own:
            return episodes.no_data(Fault.HANG, subject, at_s, "Its GPUs are not observed")
        held = [slot for slot in own if self._is_held(slot, rhythm, at_s, inventory)]
        if not held:
            return episodes.clear(Fault.HANG, subject, at_s, "Its processes have given their memory back")
        idles, waits = self._do_nothing(held, rhythm, tick)
        if not waits.all() and not open_now:
            return None
        return episodes.fire(self._alarm(subject, rhythm, at_s, idles, held), at_s)

    def _seen(self, subject: Subject, at_s: float, inventory: Inventory) -> list[tuple[Subject, int]]:
        """(GPU, row in the activity) of the subject's GPUs that were read in this tick."""
        table = self._runs.activity.table
        slots = self._runs.slots(inventory.gpus(subject, at_s))
        read = [k for k in slots if np.isfinite(table["memory"][k]) and table.seen_s()[k] == at_s]
        return [(table.subjects[k], k) for k in read]

    def _note_held(self, subject: Subject, rhythm: Rhythm, inventory: Inventory) -> None:
        """Keeps what the run's GPUs held while it stepped. What they held before this run, or while nobody looked,
        says nothing of its processes: another job may have held ten times as much."""
        activity = self._runs.activity
        start_s = max(rhythm.last_s - HANG_S, rhythm.first_s)
        rhythm.held, rhythm.held_since_s = {}, rhythm.last_s
        for slot in self._runs.slots(inventory.gpus(subject, rhythm.last_s)):
            held = activity.held_bytes(slot, start_s, rhythm.last_s)
            if np.isfinite(held):
                rhythm.held[activity.table.subjects[slot].name] = held

    def _is_held(self, slot: int, rhythm: Rhythm, at_s: float, inventory: Inventory) -> bool:
        """Whether the run still holds the GPU. Where a pod holds it that did not when the run stepped (pods get new
        names at a restart), the memory is the new one's."""
        table = self._runs.activity.table
        gpu = table.subjects[slot]
        then = inventory.parents(gpu, rhythm.last_s, SubjectKind.POD)
        passed_on = bool(then) and not set(inventory.parents(gpu, at_s, SubjectKind.POD)) <= set(then)
        return not passed_on and bool(table["memory"][slot] >= HELD_MEMORY * rhythm.held[gpu.name])

    def _do_nothing(
        self, held: list[int], rhythm: Rhythm, tick: Tick
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """([len(held)] GPUs that idle, those that idle or spin), over the silence and against the steps before."""
        activity, at_s = self._runs.activity, tick.at_s
        recent = (at_s - 0.6 * min(at_s - rhythm.last_s, HANG_S), at_s)
        before = (rhythm.last_s - HANG_S, rhythm.last_s)
        idle, usual_idle = activity.idle(held, *recent), activity.idle(held, *before)
        now_w, usual_w = activity.power_w(held, *recent), activity.power_w(held, *before)
        with np.errstate(invalid="ignore"):
            # a sensor that said "idle" while steps came sticks there
            idles = (idle > IDLE) & ~(usual_idle > IDLE)
            spins = now_w < (WORKS if idles.any() else SPIN_POWER) * usual_w
        spins |= self._still(held, tick.frames.get(SubjectKind.GPU))
        return idles, idles | spins

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
            score=silent_s / rhythm.patience_s,
            threshold=self.settings.strength,
            evidence=(exhibit,),
            facts={"silent_s": silent_s, "last_step": float(rhythm.step), "idle_gpus": " ".join(idle[:8])},
        )


def _lost(tick: Tick) -> set[str]:
    return {str(s.source.name) for s in tick.sources if not s.ok}
