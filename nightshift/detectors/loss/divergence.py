"""Training loss that diverged, and losses that are not numbers.

The decision is in `detectors.loss.state_machine`; here steps are brought into order (late, repeated and rewound
ones) and decisions become findings. Whether hardware may have corrupted the run silently is said as a fact, with
the hardware signals that speak for it; their absence does not exclude it (Dixit et al., "Silent Data Corruptions at
Scale", arXiv 2102.11245).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import CERTAIN, Fault, Finding, SeriesExhibit, Severity, State, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.loss.gradient_witness import factor
from nightshift.detectors.loss.state_machine import (
    CLEAR_STEPS,
    DRIFT_LEVEL,
    RING,
    STUCK_LEVEL,
    LossMachine,
    LossPhase,
    LossSettings,
    Why,
)
from nightshift.detectors.snapshot import pack, unpack

VERSION = 5
"""1, 2: no memory of the lowest loss of a watch; a watch that is open goes on from its next step.
3: no gradient norms; the witness is learned anew. 4: no count of steps without a loss; it begins anew."""
UNSAID_STEPS, UNSAID_TIMES, SAID_STEPS = 10, 3, 20
"""A run that printed this many losses (the last) and prints none for more steps than the first figure, and than the
second times its longest pause before, has none to print: a loss scaler skips every step of a run that is lost."""
LATE = 3
"""A step that goes back by no more than this many strides of the log is a late line."""
HARDWARE_XIDS = frozenset({48, 63, 64, 74, 79, 92, 94, 95, 140, 156, 171, 172})
_SAY = {
    Why.FAR: "stays far above its baseline",
    Why.STUCK: "stays above its baseline and no longer falls",
    Why.DRIFT: "has drifted up from its best level and still rises",
    Why.EARLY: "rose above where it began",
    Why.LOST: "has lost nearly all that the run had learnt, and does not come back",
    Why.CLIMBS: "climbs from step to step, and the gradient norm with it",
    Why.GRADIENT: "stays above its baseline, and the gradients changed with it",
}


# No step for this long while firing is no_data: the run has stopped.
SILENT_AFTER_S = 900.0
# A series unseen for this long is forgotten; a run that is restarted within a day is compared with itself.
FORGET_S = 86400.0
# Hardware signals this recent are named: silent corruption is found by its loss within a day or not at all.
HARDWARE_WINDOW_S = 86400.0


class Divergence:
    """LOSS_DIVERGED and LOSS_NONFINITE on the rank or job whose log printed the loss.

    >>> from nightshift.detectors.contract.testing import JOB, START_S, show, steps, tick
    >>> losses = [4.0 - 0.01 * n if n < 100 else 9.0 for n in range(120)]
    >>> printed = [steps(JOB, n, [START_S + n], {"loss": [loss]}) for n, loss in enumerate(losses)]
    >>> show(Divergence(), [tick(START_S + n, series=[one]) for n, one in enumerate(printed)])
    108 s: firing loss_diverged job:ml/train
        Loss stays far above its baseline: 3.12 → 8.4 since step 100
    """

    plugin: ClassVar[str] = "divergence"
    LOOSE: ClassVar[float] = 0.3

    Settings = LossSettings

    def __init__(self, settings: LossSettings | None = None) -> None:
        self.settings = settings or self.Settings()
        self.machine = LossMachine(self.settings, FORGET_S)
        self._runs: dict[Subject, str] = {}
        self._well_below: dict[Subject, float] = {}
        """Runs that ended while diverged: the loss below which their successor has left the divergence behind."""
        self._sources: dict[Subject, str] = {}
        self._unsaid: dict[Subject, tuple[int, int]] = {}
        """Steps without a loss: since the last loss, and at most between two losses of this run."""
        self._hardware: list[tuple[float, Subject, int]] = []
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE)

    @property
    def strength(self) -> float:
        return self.settings.strength

    @property
    def stated(self) -> StatedRate:
        source = "benchmarks/detect_loss.py: benign labelled runs"
        return stated(self.plugin, 1.0, source, self.settings.strength, SubjectKind.RANK)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        self._note_hardware(tick)
        touched = self._take(tick.steps, tick.at_s)
        findings = []
        for subject in touched:
            findings += self._judge(subject, tick.at_s, inventory)
        findings += self._silent(touched, tick.at_s)
        return findings

    def _take(self, series: Iterable[StepSeries], at_s: float) -> list[Subject]:
        """Feeds every new step, one step of each series at a time; returns the subjects that had any."""
        queues: dict[Subject, list[tuple[str, StepSeries]]] = {}
        for one in series:
            queues.setdefault(one.subject, []).append((one.run, one))
        subjects = list(queues)
        if not subjects:
            return []
        taken = self.machine.table.take(subjects, at_s)
        slots = np.arange(taken.start, taken.stop) if isinstance(taken, slice) else taken
        rows: list[tuple[NDArray[Any], ...]] = []
        for slot, subject in zip(slots.tolist(), subjects, strict=True):
            rows.append(self._fresh(slot, subject, [one for _, one in queues[subject]]))
        longest = max(len(row[0]) for row in rows)
        for wave in range(longest):
            live = [i for i, row in enumerate(rows) if len(row[0]) > wave]
            columns = [np.array([rows[i][c][wave] for i in live]) for c in range(5)]
            for i in live:
                if rows[i][5][wave]:
                    self.machine.rewind(int(slots[i]))
            self.machine.advance(slots[live], *columns)
        return subjects

    def _fresh(self, slot: int, subject: Subject, queue: list[StepSeries]) -> tuple[NDArray[Any], ...]:
        """(step, t_s, loss, lr, norm, rewound) of new steps with a printed loss; no late and no repeated ones."""
        table = self.machine.table
        for one in queue:
            known = self._runs.get(subject)
            if known is not None and known != one.run:
                self._remember(slot, subject, one)
                self.machine.restart(slot)
                self._unsaid.pop(subject, None)
            self._runs[subject] = one.run
            self._sources[subject] = one.source
        step = np.concatenate([one.step for one in queue])
        t_s = np.concatenate([one.t_s for one in queue])
        loss = np.concatenate([one.column("loss") for one in queue])
        lr = np.concatenate([one.column("learning_rate") for one in queue])
        norm = np.concatenate([one.column("grad_norm") for one in queue])
        last_t = np.maximum.accumulate(np.concatenate([[table["last_t_s"][slot]], np.nan_to_num(t_s, nan=-np.inf)]))
        in_time = t_s >= last_t[:-1]
        loss = self._overdue(slot, subject, step, loss, in_time & (np.isfinite(lr) | np.isfinite(norm)))
        keep = ~np.isnan(loss) & in_time
        keep[keep] = self._in_turn(slot, step[keep])
        step, t_s, loss, lr, norm = (a[keep] for a in (step, t_s, loss, lr, norm))
        before = np.concatenate([[table["last_step"][slot]], step[:-1]])
        return step, t_s, loss, lr, norm, (step < before) & (before >= 0)

    def _overdue(
        self, slot: int, subject: Subject, steps: NDArray[np.int64], loss: NDArray[Any], trained: NDArray[np.bool_]
    ) -> NDArray[Any]:
        """The losses, infinite where a training step printed none for too long. trained: [n] lines that tell what
        only a training step has, its rate or its gradients; a step that comes again does not count."""
        table = self.machine.table
        last, total = int(table["last_step"][slot]), int(table["total"][slot])
        count, longest = self._unsaid.get(subject, (0, 0))
        if not count and not np.isnan(loss).any():
            return loss
        made = loss.copy()
        for place, value in enumerate(loss.tolist()):
            if not np.isnan(value):
                if count <= max(UNSAID_STEPS, UNSAID_TIMES * longest):
                    longest = max(longest, count)
                last, total, count = int(steps[place]), total + 1, 0
            elif trained[place] and steps[place] > last:
                last, count = int(steps[place]), count + 1
                if total >= SAID_STEPS and count > max(UNSAID_STEPS, UNSAID_TIMES * longest):
                    made[place] = np.inf
        self._unsaid[subject] = count, longest
        return made

    def _in_turn(self, slot: int, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] which steps are news: after the last one, or far enough back to be a resumed run. Where several ranks
        print into one log, the slower ones' lines of a step come among the next one's: late, not a run anew."""
        table = self.machine.table
        last, stride = int(table["last_step"][slot]), int(table["stride"][slot])
        news = np.zeros(len(steps), dtype=bool)
        for place, step in enumerate(steps.tolist()):
            if last >= 0 and last - LATE * stride <= step <= last:
                continue
            if last >= 0 and step > last:
                stride = min(step - last, stride or step - last)
            last, news[place] = step, True
        table["stride"][slot] = stride
        return news

    def _remember(self, slot: int, subject: Subject, successor: StepSeries) -> None:
        """A successor that resumes where the damage is diverges on, with nothing in its own steps to show it: only
        the baseline of before tells. One that begins anew is judged by itself."""
        table = self.machine.table
        if (Fault.LOSS_DIVERGED, subject) not in self._episodes:
            return
        anew = len(successor.step) > 0 and int(successor.step[0]) < 0.5 * int(table["onset_step"][slot])
        base, sigma, _ = (float(a[0]) for a in self.machine.scales(np.array([slot])))
        margin = max(STUCK_LEVEL * abs(base), 3.0 * sigma)
        limit = np.inf if anew or not np.isfinite(base) else base + margin
        self._well_below.setdefault(subject, limit)

    def _is_well(self, slot: int, subject: Subject) -> bool:
        """Whether the new run has trained for a while, at a loss that is not the divergence's."""
        count = CLEAR_STEPS
        if self.machine.table["finite_run"][slot] < count:
            return False
        return float(np.median(self.machine.recent(np.array([slot]), count)[0])) < self._well_below[subject]

    def _judge(self, subject: Subject, at_s: float, inventory: Inventory) -> list[Finding]:
        table = self.machine.table
        slot = table.slot(subject)
        if slot is None:
            return []
        findings: list[Finding] = []
        nonfinite = (Fault.LOSS_NONFINITE, subject)
        if table["nonfinite"][slot] > 0 and table["finite_run"][slot] < CLEAR_STEPS:
            findings.append(self._episodes.fire(self._nonfinite(slot, subject, at_s, inventory), at_s))
        elif nonfinite in self._episodes:
            cleared = self._episodes.clear(*nonfinite, at_s, "The loss is a number again")
            findings += [cleared] if cleared else []
            table["nonfinite"][slot], table["nonfinite_t_s"][slot] = 0, np.nan
        phase = table["phase"][slot]
        diverged = (Fault.LOSS_DIVERGED, subject)
        if phase == LossPhase.DIVERGED:
            findings.append(self._episodes.fire(self._diverged(slot, subject, at_s, inventory), at_s))
        elif diverged in self._episodes:
            restarted = subject in self._well_below
            if restarted and not self._is_well(slot, subject):
                again = self._episodes.again(*diverged, at_s)
                return findings + ([again] if again else [])
            said = "A new run trains well" if restarted else "The loss is back at its baseline"
            cleared = self._episodes.clear(*diverged, at_s, said)
            findings += [cleared] if cleared else []
            self._well_below.pop(subject, None)
        return findings

    def _diverged(self, slot: int, subject: Subject, at_s: float, inventory: Inventory) -> Alarm:
        table = self.machine.table
        slots = np.array([slot])
        base = float(self.machine.scales(slots)[0][0])
        recent = self.machine.recent(slots, 10)[0]
        level = float(np.mean(recent[np.isfinite(recent)])) if np.isfinite(recent).any() else base
        onset_step, decided = int(table["onset_step"][slot]), int(table["decided_step"][slot])
        onset_s = float(table["onset_t_s"][slot])
        why = Why(int(table["why"][slot]))
        facts: dict[str, float | str] = {
            "onset_step": float(onset_step),
            "delay_steps": float(decided - onset_step),
            "baseline_loss": base,
            "loss": level,
            "learning_rate_jump": float(table["lr_jump"][slot]),
            "arm": why.name.lower(),
            **self._corruption(subject, at_s, inventory),
        }
        norm = factor(table, slot)
        facts |= {"gradient_norm_factor": norm} if np.isfinite(norm) else {}
        summary = f"Loss {_SAY.get(why, 'diverged')}: {base:.3g} → {level:.3g} since step {onset_step}"
        asked = DRIFT_LEVEL if why is Why.DRIFT else STUCK_LEVEL
        return Alarm(
            Fault.LOSS_DIVERGED,
            subject,
            onset_s if np.isfinite(onset_s) else at_s,
            Severity.CRITICAL,
            summary,
            score=min((level - base) / (asked * max(abs(base), 1e-9)), 0.5 * CERTAIN),
            threshold=self.settings.strength,
            evidence=(self._exhibit(slot, subject, base),),
            facts=facts,
        )

    def _nonfinite(self, slot: int, subject: Subject, at_s: float, inventory: Inventory) -> Alarm:
        table = self.machine.table
        count = int(table["nonfinite"][slot])
        since_s = float(table["nonfinite_t_s"][slot])
        unsaid = self._unsaid.get(subject, (0, 0))[0]
        said = f"The loss is not a number since step {int(table['last_step'][slot]) - count + 1}"
        return Alarm(
            Fault.LOSS_NONFINITE,
            subject,
            since_s if np.isfinite(since_s) else at_s,
            Severity.CRITICAL,
            f"No loss in the last {unsaid} steps" if unsaid else said,
            score=CERTAIN,
            threshold=1.0,
            evidence=(self._exhibit(slot, subject, float(table["base"][slot])),),
            facts={"nonfinite_steps": float(count), **self._corruption(subject, at_s, inventory)},
        )

    def _exhibit(self, slot: int, subject: Subject, reference: float) -> SeriesExhibit:
        table = self.machine.table
        count = min(int(table["total"][slot]), RING)
        order = (int(table["total"][slot]) + np.arange(-count, 0)) % RING
        order = order[np.isfinite(table["ring_loss"][slot][order]) & np.isfinite(table["ring_t_s"][slot][order])]
        return SeriesExhibit(
            subject=subject,
            metric="loss",
            unit="",
            t_s=tuple(table["ring_t_s"][slot][order].tolist()),
            values=tuple(table["ring_loss"][slot][order].tolist()),
            reference=reference if np.isfinite(reference) else None,
            source=self._sources.get(subject, ""),
            note="finite training losses by step; the reference is the baseline before the onset",
        )

    def _note_hardware(self, tick: Tick) -> None:
        for event in tick.events:
            if event.kind is KernelEventKind.XID and event.gpu is not None and event.code in HARDWARE_XIDS:
                self._hardware.append((event.record.at.t_s, event.gpu, int(event.code)))
        oldest = tick.at_s - HARDWARE_WINDOW_S
        self._hardware = [h for h in self._hardware if h[0] >= oldest]

    def _corruption(self, subject: Subject, at_s: float, inventory: Inventory) -> dict[str, float | str]:
        """Facts on silent corruption: `possible` always, `likely` where the run's GPUs had hardware events."""
        scope = inventory.above(subject, SubjectKind.JOB, at_s) or subject
        gpus = set(inventory.gpus(scope, at_s))
        seen = [h for h in self._hardware if h[1] in gpus]
        if not seen:
            said = "possible, not shown: no hardware event on the run's GPUs (does not exclude it)"
            return {"silent_corruption": said, "hardware_events": 0.0}
        codes = ", ".join(f"Xid {code} on {gpu.name}" for _, gpu, code in seen[:4])
        return {"silent_corruption": f"likely: {codes}", "hardware_events": float(len(seen))}

    def _silent(self, touched: list[Subject], at_s: float) -> list[Finding]:
        findings, fresh = [], set(touched)
        for fault, subject in tuple(self._episodes):
            slot = self.machine.table.slot(subject)
            last = -np.inf if slot is None else float(self.machine.table["last_t_s"][slot])
            if subject not in fresh and at_s - last > SILENT_AFTER_S:
                gone = self._episodes.no_data(fault, subject, at_s, "No new training step")
                findings += [gone] if gone else []
            elif subject not in fresh:
                again = self._episodes.get(fault, subject)
                if again is not None and again.state is State.FIRING:
                    found = self._episodes.again(fault, subject, at_s)
                    findings += [found] if found else []
        return findings

    def snapshot(self) -> bytes:
        subjects, arrays = self.machine.saved()
        meta = {
            "subjects": subjects,
            "runs": {str(s): run for s, run in self._runs.items()},
            "well_below": {str(s): limit if np.isfinite(limit) else None for s, limit in self._well_below.items()},
            "unsaid": {str(s): list(counts) for s, counts in self._unsaid.items()},
            "hardware": [[t, str(gpu), code] for t, gpu, code in self._hardware],
            "episodes": self._episodes.saved(),
        }
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (1, 2, 3, 4, VERSION))
        fresh = Divergence(self.settings)
        fresh.machine.table.load(meta["subjects"], arrays)
        fresh._episodes.load(meta["episodes"])
        self.machine, self._episodes = fresh.machine, fresh._episodes
        self._runs = {Subject.parse(s): run for s, run in meta["runs"].items()}
        limits = meta["well_below"] if "well_below" in meta else dict.fromkeys(meta["ended"])
        self._well_below = {Subject.parse(s): np.inf if limit is None else limit for s, limit in limits.items()}
        unsaid = meta.get("unsaid", {})
        self._unsaid = {Subject.parse(s): (count, longest) for s, (count, longest) in unsaid.items()}
        self._hardware = [(t, Subject.parse(gpu), code) for t, gpu, code in meta["hardware"]]
