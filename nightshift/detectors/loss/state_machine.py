"""The state machine of training loss, for all series at once: warm-up → healthy ⇄ watching → diverged.

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

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Floats, Ints
from nightshift.detectors.loss import gradient_witness
from nightshift.detectors.series_table import Column, SeriesTable

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
    "lr": Column(np.float64, np.nan),
    "lr_jump": Column(np.float64, 1.0),
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
        """A step that goes back: the baseline is learned anew, quietly."""
        table = self.table
        table["last_step"][slot] = -1
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
        gradient_witness.note(table, slots, position, norm)
        table["total"][slots] += 1
        if not finite.all():
            slots, step = slots[finite], step[finite]
            t_s, loss, lr = t_s[finite], loss[finite], lr[finite]
        if len(slots) == 0:
            return
        table["finite_run"][slots] += 1
        self._learning_rate(slots, lr)
        self._decide(slots, step, t_s, loss)
        self._learn(slots, loss)

    def _learning_rate(self, slots: Slots, lr: Floats) -> None:
        """lr_jump: how far above its own recent course the learning rate stands, decaying with the memory."""
        table = self.table
        known = table["lr"][slots]
        ratio = np.where((known > 0) & (lr > 0), np.minimum(lr / np.fmax(known, 1e-30), 1e9), 1.0)
        faded = 1.0 + (table["lr_jump"][slots] - 1.0) * (1.0 - 1.0 / MEMORY_STEPS)
        table["lr_jump"][slots] = np.maximum(faded, np.nan_to_num(ratio, nan=1.0))
        table["lr"][slots] = np.where(np.isfinite(lr), lr, known)

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
        early = (table["n"][slots] >= FAR_STEPS) & (last > top + 0.3 * np.abs(top) + BEYOND_DOUBT)
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
        level = s.strength * np.where(table["lr_jump"][slots] > 2.0, FAR_LEVEL_LR, FAR_LEVEL)
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
