"""Training loss that diverged, and losses that are not numbers.

Steps are brought into order (late, repeated and rewound ones), a state machine decides on the losses of all series
at once, and its decisions become findings. Whether hardware may have corrupted the run silently is said as a fact,
with the hardware signals that speak for it; their absence does not exclude it (Dixit et al., "Silent Data
Corruptions at Scale", arXiv 2102.11245).

The machine of each series: warm-up → healthy ⇄ watching → diverged.

A spike alone says nothing: healthy runs spike, change data and change learning rate. What tells a divergence is
that the loss does not come back. So a spike opens a watch against the frozen baseline, and the watch ends in one of
three ways: the loss is back (recovered), it stays far above or shows one of two signs (diverged, soon), or it stays
above and no longer falls (diverged, later). A second arm compares the best level of the run with the level now, for
drifts without a spike.

"Far" is measured in three units at once, and must hold in each: the run's noise (σ), its level, and the progress it
made since it began; a loss that went from 9.2 to 0.03 may double without meaning anything. The gradient norm, where
printed, is a witness (`detectors.loss.gradient_witness`).

Two signs need no waiting: what was learnt is gone (`lost`), or loss and gradients climb together (`climbing`).

A loss that jumps by half may be new data, which the run will learn, or wrong labels, which it will not. Measured
against what the run has learnt so far they differ: data of the same task share most of what was learnt, and a part
of the rise falls back at once; wrong labels take nearly all of it away, and nothing comes back.

A loss that climbs step by step while the gradient norm climbs with it is an optimisation that has become unstable
(of such instabilities: Wortsman et al., arXiv 2309.14322); new data raise both at once, and then let them fall.

The thresholds were chosen on 164 labelled divergences and 244 benign runs (`benchmarks.loss_runs`). CLIMB between
0.25 and 0.5 gives the same verdicts; at LOST = 0.7 one benign shift of a domain would be accused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Floats, Ints, StepSeries
from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import CERTAIN, Fault, Finding, SeriesExhibit, Severity, State, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.loss import gradient_witness
from nightshift.detectors.series_table import Column, SeriesTable
from nightshift.detectors.snapshot import pack, unpack

LOST_STEPS = 12
LOST = 0.75
"""All of the last LOST_STEPS on average above the baseline by this share of what the run has learnt."""
LOST_BY = 16
"""Asked in the steps LOST_STEPS to this of a watch: asked at every step of a long one, noise looks flat once."""
FLAT = 0.05
"""... and their second half lower than the first by less than this share of the rise."""
CLIMB_STEPS = 6
CLIMB = 0.5
"""Both of the last two losses are this share of the baseline, and of what the run has learnt, above it."""
NORMS = 0.2
"""The gradient norm rose by e^0.2 = 1.2 within eight steps, or by three standard deviations where that is more."""

BEYOND_DOUBT = 0.5
"""A rise that means something whatever the level: 0.5 nats."""


def has_scale(level: Floats, top: Floats, sigma: Floats, progress: Floats) -> NDArray[np.bool_]:
    """[n] whether shares of a level mean anything: it and where the run began are apart from zero by the noise,
    or it has learnt something. A policy gradient's loss begins at zero and grows, and nothing is wrong with it."""
    apart = np.minimum(np.abs(level), np.abs(top)) > 2.0 * sigma
    found: NDArray[np.bool_] = apart | (progress > 6.0 * sigma)
    return found


def lost(
    recent: Floats, base: Floats, sigma: Floats, progress: Floats, level: float, strength: float
) -> NDArray[np.bool_]:
    """[n] whether what was learnt is gone and does not come back.

    recent [n, ≥ LOST_STEPS]: losses, newest last; base, sigma (noise), progress (fall since the run began): [n], in
    units of the loss. level: the smallest rise that counts, as a share of the baseline; strength: times as much.

    >>> flat = np.full((1, 12), 4.0)  # a run that had come from 4.5 down to 2, at 4 for twelve steps
    >>> lost(flat, np.array([2.0]), np.array([0.01]), np.array([2.5]), level=0.2, strength=1.0).tolist()
    [True]
    >>> falls = np.linspace(4.0, 3.0, 12)[None, :]  # new data: part of the rise falls back at once
    >>> lost(falls, np.array([2.0]), np.array([0.01]), np.array([2.5]), level=0.2, strength=1.0).tolist()
    [False]
    """
    window = recent[:, -LOST_STEPS:]
    half = LOST_STEPS // 2
    rise = window.mean(axis=1) - base
    fallen = window[:, :half].mean(axis=1) - window[:, half:].mean(axis=1)
    enough = np.maximum(5.0 * sigma, strength * np.maximum(level * np.abs(base), LOST * progress))
    now = np.median(window[:, -5:], axis=1) - base
    found: NDArray[np.bool_] = (rise > enough) & (now > enough) & (fallen < FLAT * rise)
    return found


def climbing(
    recent: Floats,
    base: Floats,
    sigma: Floats,
    progress: Floats,
    norms: Floats,
    scatter: Floats,
    strength: float,
) -> NDArray[np.bool_]:
    """[n] whether loss and gradient norm climb together.

    norms [n, 8]: logarithms of the last gradient norms, newest last; scatter [n]: their standard deviation before.
    NaN (no norm printed) never testifies.
    """
    pairs = recent[:, -CLIMB_STEPS:].reshape(len(recent), 3, 2).mean(axis=2)
    first, second, last = pairs.T
    risen = norms[:, -3:].mean(axis=1) - norms[:, :3].mean(axis=1)
    enough = np.maximum(5.0 * sigma, strength * CLIMB * np.maximum(np.abs(base), progress))
    found: NDArray[np.bool_] = (last - second > 2.0 * sigma) & (second - first > sigma)
    found &= (recent[:, -2:].min(axis=1) - base > enough) & (risen > np.maximum(NORMS, 3.0 * scatter))
    return found


RATE_JUMP = 1.5
"""A learning rate that rose by less from one line to the next did not jump."""
OFF_COURSE = 1.5
"""... nor did one that rose, per step, by less than this many times as much as it had moved before."""
DOUBLED = 2.02
"""... nor one that doubled and had never moved: printed with few digits, a warm-up stands still, then doubles."""
NEAR_LINES = 16
"""A cause lies at the onset: in so many lines of the log, of which one follows it."""


def rate_jumps(rate: Floats, step: Floats, past_onset: NDArray[np.bool_]) -> tuple[Floats, Ints]:
    """([n] by how much the learning rate jumped at the onset, 1 where it did not; [n] where, else 0).

    rate, step, past_onset [n, k]: the rates as logged, newest last (NaN where none was), their steps, and which
    lines follow the onset. A linear warm-up, however long and however often logged, rises by the same in each step;
    the first rise that is seen has nothing to be compared with. A fall makes no run diverge.

    >>> step, before = np.arange(6.0)[None, :], np.zeros((1, 6), dtype=bool)
    >>> rate_jumps(np.array([[1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 5e-6]]), step, before)[0].tolist()  # a warm-up
    [1.0]
    >>> rate_jumps(np.array([[3e-4, 3e-4, 3e-4, 3e-3, 3e-3, 3e-3]]), step, before)  # ten times as much at once
    (array([10.]), array([3]))
    """
    ratios, places = np.ones(len(rate)), np.zeros(len(rate), dtype=np.int64)
    late = past_onset.cumsum(axis=1) > 1
    for row, (values, at) in enumerate(zip(np.where(late, np.nan, rate), step, strict=True)):
        known = np.flatnonzero((values >= 0) & (values < LARGEST_LOSS) & np.isfinite(at))
        if len(known) < 3:
            continue
        lr, rise = values[known], np.diff(values[known])
        slope = rise / np.maximum(np.diff(at[known]), 1e-9)
        most = np.maximum.accumulate(np.abs(slope))[:-1]
        ratio = np.where(lr[1:-1] > 0, np.minimum(lr[2:] / np.fmax(lr[1:-1], 1e-30), 1e9), 1.0)
        off = (ratio > RATE_JUMP) & (slope[1:] > OFF_COURSE * most) & ((ratio > DOUBLED) | (most > 0))
        # a ramp goes on as it began: the first line of a warm-up after a plateau is none either
        off[:-1] &= slope[2:] < 0.5 * slope[1:-1]
        off &= np.arange(len(off)) >= len(off) - NEAR_LINES
        ratio = np.where(off, ratio, 1.0)
        best = int(ratio.argmax())
        ratios[row], places[row] = ratio[best], known[best + 2] if off.any() else 0
    return ratios, places


RING = 64
BLOCK_STEPS = 16
BLOCKS = 32
FAST_STEPS = 12
PATIENCE = 0.4
"""A watched loss is stuck after no new low in this share of the watch: what falls slowly is given longer."""
LOWER = 0.08
"""A new low takes this share off what is still missing to the baseline."""
ALL_LOST = 1.25
"""A loss that stays this share of the progress above its best is worse than where the run began."""
STEP = 0.8
"""A rise that two neighbouring blocks bring more than this share of is a step, not a drift."""
LARGEST_LOSS = 1e30
"""Beyond this a loss counts as infinite: sums of squares of it would overflow."""


class LossPhase(IntEnum):
    WARMUP = 0
    HEALTHY = 1
    WATCHING = 2
    DIVERGED = 3


class Why(IntEnum):
    NONE = 0
    FAR = 1
    STUCK = 2
    DRIFT = 3
    EARLY = 4
    GRADIENT = 5
    LOST = 6
    CLIMBS = 7


# Steps of a run before a baseline is trusted.
WARMUP_STEPS = 40
# Time constant of baseline and noise: long against a spike, short against a learning-rate schedule.
MEMORY_STEPS = 64
# A step opens a watch at this many noise deviations up (a watch costs nothing, so this may be often) ...
SPIKE_SIGMA = 4.0
# ... and this share of the baseline ...
SPIKE_LEVEL = 0.08
# ... and this share of the run's progress: noise of a run that has converged is no spike.
SPIKE_PROGRESS = 0.02
# Steps of a watch before a loss far above is called diverged: healthy spikes are back by then.
FAR_STEPS = 9
# Far is this share of the baseline, but no more than all progress lost; `strength` scales it ...
FAR_LEVEL = 0.75
# ... and this many noise deviations.
FAR_SIGMA = 5.0
# The same where the learning rate had jumped up: a cause that stays needs less proof.
FAR_LEVEL_LR = 0.25
# Stuck is above by this share of the baseline and not falling.
STUCK_LEVEL = 0.2
# A watch this long takes the new level as the baseline: data may have changed.
WATCH_STEPS = 400
# Drift is above the best level by this share, and rising.
DRIFT_LEVEL = 0.06
# Steps of a new run, or back at the baseline, that clear.
CLEAR_STEPS = 20


class LossSettings(BaseModel):
    """Thresholds of the loss state machine; steps, not seconds, because a baseline is learned by steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(
        default=1.0,
        gt=0,
        description="A divergence exceeds its threshold of distance, height or drift this many times",
    )


_COLUMNS = {
    "n": Column(np.int64, 0),
    "last_step": Column(np.int64, -1),
    "stride": Column(np.int64, 0),
    "last_t_s": Column(np.float64, -np.inf),
    "base": Column(np.float64, np.nan),
    "fast": Column(np.float64, np.nan),
    "dev": Column(np.float64, 0.0),
    "top": Column(np.float64, np.nan),
    "best": Column(np.float64, np.inf),
    "phase": Column(np.int8, LossPhase.WARMUP),
    "why": Column(np.int8, Why.NONE),
    "watched": Column(np.int64, 0),
    "onset_step": Column(np.int64, -1),
    "onset_t_s": Column(np.float64, np.nan),
    "decided_step": Column(np.int64, -1),
    "low": Column(np.float64, np.nan),
    "low_at": Column(np.int64, 0),
    "ring_lr": Column(np.float64, np.nan, (RING,)),
    "ring_step": Column(np.float64, np.nan, (RING,)),
    "since_rewind": Column(np.int64, 0),
    "total": Column(np.int64, 0),
    "ring_loss": Column(np.float64, np.nan, (RING,)),
    "ring_t_s": Column(np.float64, np.nan, (RING,)),
    "block_sum": Column(np.float64, 0.0),
    "block_n": Column(np.int64, 0),
    "blocks": Column(np.float64, np.nan, (BLOCKS,)),
    "block_total": Column(np.int64, 0),
    "best_level": Column(np.float64, np.inf),
    "nonfinite": Column(np.int64, 0),
    "nonfinite_t_s": Column(np.float64, np.nan),
    "finite_run": Column(np.int64, 0),
    **gradient_witness.COLUMNS,
}

_KEPT_OVER_RUNS = ("last_step", "last_t_s", "stride", "total", "finite_run", "ring_loss", "ring_t_s")
"""What orders a log's lines and shows its losses; all else is of one run."""

Slots = NDArray[np.int64]


class LossMachine:
    """Columnar state over series (slots of `table`); `advance` takes at most one step of each series."""

    def __init__(self, settings: LossSettings, forget_s: float) -> None:
        self.settings = settings
        self.table = SeriesTable(_COLUMNS, forget_s)

    def restart(self, slot: int) -> None:
        """A new process: everything learned is let go, but an alarm stays until the new run shows itself well."""
        table = self.table
        phase, why, onset = (table[c][slot] for c in ("phase", "why", "onset_t_s"))
        table.reset(np.array([slot]))
        if phase == LossPhase.DIVERGED:
            table["why"][slot], table["onset_t_s"][slot] = why, onset

    def rewind(self, slot: int) -> None:
        """A step that goes back: the baseline is learned anew, quietly. The losses that follow tell whether this is
        the run, back at an earlier step of its own, or another one (`_tell_runs_apart`)."""
        table = self.table
        table["last_step"][slot] = -1
        table["since_rewind"][slot] = 1
        table["ring_lr"][slot] = np.nan  # a schedule that begins again is no jump
        if table["phase"][slot] in (LossPhase.HEALTHY, LossPhase.WATCHING):
            table["phase"][slot] = LossPhase.WARMUP
            table["n"][slot] = min(int(table["n"][slot]), WARMUP_STEPS // 2)
            table["best_level"][slot] = np.inf
            table["block_total"][slot] = 0

    def advance(self, slots: Slots, step: Ints, t_s: Floats, loss: Floats, lr: Floats, norm: Floats) -> None:
        """One step of each of these series (slots distinct). loss may be ±inf; NaN is a non-finite loss here.

        lr: the learning rate, norm: the gradient norm; NaN where not printed.
        """
        table = self.table
        finite = np.abs(loss) < LARGEST_LOSS
        lr = np.where((lr > 0) & (lr < LARGEST_LOSS), lr, np.nan)
        bad = slots[~finite]
        table["nonfinite"][bad] += 1
        first = np.isnan(table["nonfinite_t_s"][bad])
        table["nonfinite_t_s"][bad[first]] = t_s[~finite][first]
        table["finite_run"][bad] = 0
        table["last_step"][slots], table["last_t_s"][slots] = step, t_s
        position = table["total"][slots] % RING
        table["ring_loss"][slots, position] = np.where(finite, loss, np.nan)
        table["ring_t_s"][slots, position] = t_s
        table["ring_lr"][slots, position], table["ring_step"][slots, position] = lr, step
        gradient_witness.note(table, slots, position, norm)
        table["total"][slots] += 1
        if not finite.all():
            slots, step = slots[finite], step[finite]
            t_s, loss = t_s[finite], loss[finite]
        if len(slots) == 0:
            return
        table["finite_run"][slots] += 1
        self._tell_runs_apart(slots)
        self._decide(slots, step, t_s, loss)
        self._learn(slots, loss)

    def _tell_runs_apart(self, slots: Slots) -> None:
        """FAR_STEPS losses after a step that went back: far above what this run had come to they are another run's,
        of which nothing was learned; else they are this run's own, from a checkpoint or in its next epoch."""
        table = self.table
        counted = slots[table["since_rewind"][slots] > 0]
        table["since_rewind"][counted] += 1
        due = counted[table["since_rewind"][counted] > FAR_STEPS]
        if len(due) == 0:
            return
        table["since_rewind"][due] = 0
        base, sigma, progress = self.scales(due)
        # the least that opens a watch: a run that resumes there would be watched, and accused, for being younger
        spike = np.maximum.reduce([SPIKE_SIGMA * sigma, SPIKE_LEVEL * np.abs(base), SPIKE_PROGRESS * progress])
        level = np.median(self.recent(due, FAR_STEPS), axis=1)
        for slot in due[(level > base + spike) & (table["phase"][due] == LossPhase.WARMUP)].tolist():
            kept = {name: table[name][slot].copy() for name in _KEPT_OVER_RUNS}
            table.reset(np.array([slot]))
            for name, value in kept.items():
                table[name][slot] = value

    def rate_jump(self, slots: Slots) -> Floats:
        """[n] by how much the learning rate jumped in the last lines before the watch that is open, or was decided;
        1 where it did not."""
        table = self.table
        places = (table["total"][slots][:, None] + np.arange(-RING, 0)[None, :]) % RING
        rate, step = table["ring_lr"][slots[:, None], places], table["ring_step"][slots[:, None], places]
        return rate_jumps(rate, step, step > table["onset_step"][slots][:, None])[0]

    def scales(self, slots: Slots) -> tuple[Floats, Floats, Floats]:
        """(baseline, noise σ, progress) of these series.

        The baseline is the lower of a slow and a fast average: while the loss still falls steeply the slow one lags
        far above it.
        """
        table = self.table
        base = np.minimum(table["base"][slots], table["fast"][slots])
        sigma = 1.2533 * table["dev"][slots]  # σ = E|x|·√(π/2) for a normal residual
        progress = np.maximum(table["top"][slots] - np.minimum(table["best"][slots], base), 0.0)
        return base, sigma, progress

    def recent(self, slots: Slots, count: int, skip: int = 0) -> Floats:
        """[n, count] the last losses (newest last), leaving out the newest `skip`; NaN where there were fewer."""
        offsets = np.arange(-count - skip, -skip)
        columns = (self.table["total"][slots][:, None] + offsets[None, :]) % RING
        found: Floats = self.table["ring_loss"][slots[:, None], columns]
        return found

    def _decide(self, slots: Slots, step: Ints, t_s: Floats, loss: Floats) -> None:
        table = self.table
        base, sigma, progress = self.scales(slots)
        phase = table["phase"][slots]
        warm = phase == LossPhase.WARMUP
        if warm.any():
            self._warmup(slots[warm], step[warm], t_s[warm])
        spike = base + np.maximum.reduce(
            [SPIKE_SIGMA * sigma, SPIKE_LEVEL * np.abs(base), SPIKE_PROGRESS * progress]
        )
        means = has_scale(base, table["top"][slots], sigma, progress)
        # without a scale shares mean nothing, but half a nat is a rise for every loss
        means |= loss > base + BEYOND_DOUBT
        opens = (phase == LossPhase.HEALTHY) & (loss > spike) & means
        opened = slots[opens]
        table["phase"][opened] = LossPhase.WATCHING
        table["watched"][opened] = 0
        table["low"][opened], table["low_at"][opened] = np.nan, 0
        table["onset_step"][opened], table["onset_t_s"][opened] = step[opens], t_s[opens]
        watch = slots[table["phase"][slots] == LossPhase.WATCHING]
        if len(watch):
            table["watched"][watch] += 1
            self._watch(watch)
        ill = slots[phase == LossPhase.DIVERGED]
        if len(ill):
            self._recovery(ill)

    def _warmup(self, slots: Slots, step: Ints, t_s: Floats) -> None:
        table = self.table
        last = self.recent(slots, FAR_STEPS).mean(axis=1)
        top = table["top"][slots]
        # until it is known whose losses these are, nobody can say that they rose
        early = (table["n"][slots] >= FAR_STEPS) & (table["since_rewind"][slots] == 0)
        early &= last > top + 0.3 * np.abs(top) + BEYOND_DOUBT
        blown = slots[early]
        table["phase"][blown], table["why"][blown] = LossPhase.DIVERGED, Why.EARLY
        table["onset_step"][blown], table["onset_t_s"][blown] = step[early], t_s[early]
        table["decided_step"][blown] = step[early]
        ready = slots[~early & (table["n"][slots] >= WARMUP_STEPS)]
        table["phase"][ready] = LossPhase.HEALTHY

    def _back(self, slots: Slots) -> Floats:
        """The excess over the baseline below which a loss counts as back."""
        base, sigma, progress = self.scales(slots)
        limits = [2.0 * sigma, 0.5 * SPIKE_LEVEL * np.abs(base), 0.01 * progress]
        found: Floats = np.maximum.reduce(limits)
        return found

    def _watch(self, slots: Slots) -> None:
        s, table = self.settings, self.table
        base, sigma, progress = self.scales(slots)
        watched = table["watched"][slots]
        recent = self.recent(slots, 48)
        five = np.median(recent[:, -5:], axis=1)
        back = (watched >= 5) & (five - base < self._back(slots))
        level = s.strength * np.where(self.rate_jump(slots) > 2.0, FAR_LEVEL_LR, FAR_LEVEL)
        most = np.minimum(level * np.abs(base), 1.1 * progress)
        far = np.maximum.reduce([FAR_SIGMA * sigma, most, 0.6 * level * progress])
        window = recent[:, -FAR_STEPS:]
        held = (window.mean(axis=1) - base > far) & (np.median(window, axis=1) - base > far)
        diverged = (watched >= FAR_STEPS) & held
        half = FAR_STEPS // 2
        fallen = window[:, :half].mean(axis=1) - window[:, -half:].mean(axis=1)
        falling = fallen > 2.5 * np.sqrt(2.0 / half) * sigma
        certain = (five - base > 2.0 * far) | (watched >= 3 * FAR_STEPS) | (level < s.strength * FAR_LEVEL)
        diverged &= (five - base > far) & ~back & (~falling | certain)
        gone = lost(recent, base, sigma, progress, STUCK_LEVEL, s.strength)
        gone &= (watched >= LOST_STEPS) & (watched <= LOST_BY) & ~back
        norms = gradient_witness.recent(table, slots)
        scatter = 1.2533 * table["grad_dev"][slots]
        climbs = climbing(recent, base, sigma, progress, norms, scatter, s.strength)
        climbs &= (watched >= CLIMB_STEPS) & ~back
        late = recent[:, 24:].mean(axis=1)
        much = s.strength * np.minimum(STUCK_LEVEL * np.abs(base), ALL_LOST * progress)
        above = np.maximum.reduce([1.5 * sigma, much, 0.03 * progress])
        collapsed, exploded = gradient_witness.testifies(table, slots, watched)
        broken = (window.mean(axis=1) - base > np.maximum(above, 3.0 * sigma)) & (five - base > above) & ~back
        broken &= collapsed | (exploded & ~falling)
        low = table["low"][slots]
        least = np.maximum(sigma * np.sqrt(2.0 / 24.0), LOWER * (low - base))
        lower = (watched >= 24) & ~(late > low - least)
        table["low"][slots] = np.where(lower, late, low)
        table["low_at"][slots] = np.where(lower, watched, table["low_at"][slots])
        still = watched - table["low_at"][slots] >= np.maximum(24, PATIENCE * watched)
        stuck = (watched >= 72) & (late - base > above) & still & ~back
        for sign, why in ((diverged, Why.FAR), (gone, Why.LOST), (climbs, Why.CLIMBS), (broken, Why.GRADIENT)):
            self._settle(slots[sign & (table["phase"][slots] == LossPhase.WATCHING)], why)
        diverged |= gone | climbs | broken
        self._settle(slots[stuck & ~diverged], Why.STUCK)
        recovered = slots[back]
        # a long excursion has moved the level: what was best before is no measure for a drift
        long = recovered[table["watched"][recovered] >= 30]
        table["best_level"][long] = np.inf
        table["block_total"][long] = 0
        table["phase"][recovered] = LossPhase.HEALTHY
        accept = slots[(watched >= WATCH_STEPS) & ~back & ~diverged & ~stuck]
        table["phase"][accept] = LossPhase.HEALTHY
        table["base"][accept] = table["fast"][accept] = self.recent(accept, 24).mean(axis=1)
        table["best_level"][accept] = np.inf
        table["block_total"][accept] = 0

    def _settle(self, slots: Slots, why: Why) -> None:
        self.table["phase"][slots], self.table["why"][slots] = LossPhase.DIVERGED, why
        self.table["decided_step"][slots] = self.table["last_step"][slots]

    def _recovery(self, slots: Slots) -> None:
        """A divergence is over where the mean of the last `CLEAR_STEPS` is back within its own error."""
        table = self.table
        window = self.recent(slots, CLEAR_STEPS)
        base, sigma, progress = self.scales(slots)
        error = 3.0 * sigma / np.sqrt(CLEAR_STEPS)
        limit = np.maximum.reduce([error, 0.5 * DRIFT_LEVEL * np.abs(base), 0.01 * progress])
        since = table["last_step"][slots] - table["decided_step"][slots]
        with np.errstate(invalid="ignore"):
            back = (window.mean(axis=1) - base < limit) & (since >= CLEAR_STEPS)
        healed = slots[back]
        table["phase"][healed], table["why"][healed] = LossPhase.HEALTHY, Why.NONE
        table["best_level"][healed] = np.inf
        table["block_total"][healed] = 0

    def _learn(self, slots: Slots, loss: Floats) -> None:
        """Baseline, noise, best and block levels from steps outside watches."""
        table = self.table
        phase = table["phase"][slots]
        learning = (phase == LossPhase.WARMUP) | (phase == LossPhase.HEALTHY)
        slots, loss = slots[learning], loss[learning]
        if len(slots) == 0:
            return
        gradient_witness.learn(table, slots, table["total"][slots] - 1, MEMORY_STEPS)
        table["n"][slots] += 1
        n = table["n"][slots]
        rate = np.maximum(1.0 / n, 1.0 / MEMORY_STEPS)
        base = np.where(n == 1, loss, table["base"][slots])
        dev = table["dev"][slots]
        limit = np.where(n > 10, 4.0 * 1.2533 * dev + 1e-12, np.inf)
        fast = np.where(n == 1, loss, table["fast"][slots])
        residual = np.clip(loss - fast, -limit, limit)
        clipped = fast + residual
        table["base"][slots] = base + rate * (clipped - base)
        table["fast"][slots] = fast + np.maximum(rate, 1.0 / FAST_STEPS) * residual
        table["dev"][slots] = dev + rate * (np.abs(residual) - dev)
        table["top"][slots] = np.where(n <= 10, table["base"][slots], table["top"][slots])
        table["best"][slots] = np.minimum(table["best"][slots], table["base"][slots])
        table["block_sum"][slots] += clipped
        table["block_n"][slots] += 1
        full = slots[table["block_n"][slots] >= BLOCK_STEPS]
        if len(full):
            self._close_block(full)

    def _close_block(self, slots: Slots) -> None:
        table = self.table
        column = table["block_total"][slots] % BLOCKS
        table["blocks"][slots, column] = table["block_sum"][slots] / BLOCK_STEPS
        table["block_total"][slots] += 1
        table["block_sum"][slots], table["block_n"][slots] = 0.0, 0
        ready = slots[(table["block_total"][slots] >= 8) & (table["phase"][slots] == LossPhase.HEALTHY)]
        if len(ready) == 0:
            return
        offsets = np.arange(-8, 0)
        columns = (table["block_total"][ready][:, None] + offsets[None, :]) % BLOCKS
        levels = table["blocks"][ready[:, None], columns]
        now, before = levels[:, 4:].mean(axis=1), levels[:, :4].mean(axis=1)
        best = table["best_level"][ready]
        _, sigma, progress = self.scales(ready)
        scaled = has_scale(best, table["top"][ready], sigma, progress)
        error = sigma / np.sqrt(4 * BLOCK_STEPS)
        limit = np.maximum.reduce(
            [6.0 * error, self.settings.strength * DRIFT_LEVEL * np.abs(best), 0.02 * progress]
        )
        # One jump that falls again is no drift: it must have risen before, and go on.
        quarters = levels.reshape(len(ready), 4, 2).mean(axis=2)
        error = sigma / np.sqrt(2 * BLOCK_STEPS)
        goes_on = (quarters[:, 3] > quarters[:, 2] - error) & (quarters[:, 2] - quarters[:, 0] > error)
        # Nor is a step up to another level (a change of data), however long it takes to heal: two blocks make it.
        rises = np.diff(levels, axis=1)
        sudden = (rises[:, :-1] + rises[:, 1:]).max(axis=1) > STEP * (levels[:, -1] - levels[:, 0])
        goes_on &= ~sudden & scaled
        drift = (now - best > limit) & (now - before > error) & (levels[:, -1] > best + limit) & goes_on
        table["best_level"][ready] = np.minimum(best, 0.5 * (now + before))
        drifted = ready[drift]
        self._settle(drifted, Why.DRIFT)
        table["base"][drifted] = table["fast"][drifted] = best[drift]
        table["onset_step"][drifted] = table["last_step"][drifted]
        table["onset_t_s"][drifted] = table["last_t_s"][drifted]

    def saved(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        return self.table.saved()


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
                    self._rewind(int(slots[i]), subjects[i])
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

    def _rewind(self, slot: int, subject: Subject) -> None:
        """A run that nobody announced. One that had diverged has to show itself well: it may be the damaged one, in
        its next epoch or back at a checkpoint, or another one that trains."""
        if (Fault.LOSS_DIVERGED, subject) not in self._episodes:
            self.machine.rewind(slot)
            return
        base = float(self.machine.scales(np.array([slot]))[0][0])
        recent = self.machine.recent(np.array([slot]), 10)[0]
        recent = recent[np.isfinite(recent)]
        level = float(np.mean(recent)) if len(recent) else np.inf
        # half the way down is more than a diverged run comes by itself, and less than a young run starts at
        middle = 0.5 * (base + level)
        self.machine.restart(slot)
        self._unsaid.pop(subject, None)
        self._well_below.setdefault(subject, middle if np.isfinite(middle) else np.inf)

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
            "learning_rate_jump": float(self.machine.rate_jump(slots)[0]),
            "arm": why.name.lower(),
            **self._corruption(subject, at_s, inventory),
        }
        norm = gradient_witness.factor(table, slot)
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
        said = f"The loss, or its gradient, is not a number since step {int(table['last_step'][slot]) - count + 1}"
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
