"""How the last uninterrupted climb of a floor looks, for a test of minutes against peers.

The job's other ranks are the control, so little is asked of the climb itself: that it is steady, and that neither a
single jump nor a drop made it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats
from nightshift.detectors.memory.floors import Matrix, sen


@dataclass(frozen=True, slots=True)
class Climb:
    """What the floors of some candidates say; arrays [n] in bytes, seconds and bytes/s."""

    steady: NDArray[np.bool_]
    growth_bytes: Floats
    lasted_s: Floats
    slope: Floats
    slope_low: Floats
    slope_high: Floats
    end: Floats
    """The floor that it has come to."""


def risen(window: Matrix, least: float) -> NDArray[np.int64]:
    """Rows whose last closed floor stands above their lowest: the few worth a closer look."""
    last = window[:, -1]
    with np.errstate(invalid="ignore"):
        risen = last - np.fmin.reduce(window, axis=1) >= least
    return np.flatnonzero(risen & np.isfinite(last))


def assess(window: Matrix, t_s: Floats, width_s: float, least: float) -> Climb:
    """How the last uninterrupted climb of each row of `window` [n, k] looks.

    The climb begins after the last drop by more than a tenth of the growth since, and after a single bucket that
    brought more than a third of it (a model loaded, a cache sized). It is steady where at least three quarters of
    its buckets rise and both halves contribute.
    """
    x = window.astype(float)
    count = x.shape[1]
    start = _after_drop(x, least)
    for _ in range(3):
        start = _after_jump(x, start)
    start = _after_flat(x, start)
    columns = np.arange(count)
    inside = columns[None, :] >= start[:, None]
    climb = np.where(inside, x, np.nan)
    filled = _filled(climb)
    every = np.arange(len(x))
    growth = filled[:, -1] - filled[every, start]
    lasted = (count - 1 - start) * width_s
    steps, within = np.diff(filled, axis=1), inside[:, :-1]
    number = np.maximum(np.isfinite(climb).sum(axis=1) - 1, 1)
    rises = ((steps > 0.02 * (growth / number)[:, None]) & within).sum(axis=1)
    half = filled[every, (start + count - 1) // 2] - filled[every, start]
    balanced = (half > 0.2 * growth) & (half < 0.8 * growth)
    observed = np.isfinite(climb).sum(axis=1) >= 0.3 * inside.sum(axis=1)
    with np.errstate(invalid="ignore"):
        steady = (growth >= least) & (rises >= 0.75 * number) & balanced & observed & (number >= 4)
    slope, slope_low, slope_high = (np.full(len(x), np.nan) for _ in range(3))
    if steady.any():
        slope[steady], slope_low[steady], slope_high[steady] = sen(t_s, climb[steady])
    return Climb(steady, growth, lasted, slope, slope_low, slope_high, filled[:, -1])


def assess_paired(window: Matrix, t_s: Floats, width_s: float, least: float) -> Climb:
    """`assess`; where that finds no steady climb, of pairs of buckets: a slow climb is lost in the noise of one."""
    fine, even = assess(window, t_s, width_s, least), window.shape[1] % 2
    pairs = np.fmin(window[:, even::2], window[:, even + 1 :: 2])
    coarse = assess(pairs, 0.5 * (t_s[even::2] + t_s[even + 1 :: 2]), 2.0 * width_s, least)
    return Climb(*(np.where(fine.steady, getattr(fine, f.name), getattr(coarse, f.name)) for f in fields(Climb)))


def _after_drop(x: Floats, least: float) -> NDArray[np.int64]:
    """[n] first column of the stretch up to the last column in which x never falls by much."""
    last, low = x[:, -1:], np.fmin.accumulate(x[:, ::-1], axis=1)[:, :0:-1]  # low: of the columns after each
    with np.errstate(invalid="ignore"):
        fell = x[:, :-1] > low + 0.1 * (last - low) + 0.05 * least
        lowest = (x[:, :-1] <= low) & ~np.logical_or.accumulate(fell[:, ::-1], axis=1)[:, ::-1]
    known = np.isfinite(last)
    found: NDArray[np.int64] = np.concatenate([lowest & known, np.ones_like(known)], axis=1).argmax(axis=1)
    return found


def _after_jump(x: Floats, start: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] the column after the largest rise since `start`, where that rise is over a third of all; else start."""
    inside = np.arange(x.shape[1])[None, :] >= start[:, None]
    filled = _filled(np.where(inside, x, np.nan))
    steps = np.where(inside[:, :-1], np.diff(filled, axis=1), 0.0)
    largest = steps.argmax(axis=1)
    growth = filled[:, -1] - filled[np.arange(len(x)), start]
    with np.errstate(invalid="ignore"):
        jumped = steps[np.arange(len(x)), largest] > 0.34 * growth
    return np.where(jumped & (growth > 0), largest + 1, start)


def _after_flat(x: Floats, start: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] the last column that still stands within a twentieth of the growth above the start: where it set off."""
    columns = np.arange(x.shape[1])
    filled = _filled(np.where(columns[None, :] >= start[:, None], x, np.nan))
    first = filled[np.arange(len(x)), start]
    with np.errstate(invalid="ignore"):
        flat = filled <= (first + 0.05 * (filled[:, -1] - first))[:, None]
    found: NDArray[np.int64] = np.maximum(np.where(flat, columns[None, :], 0).max(axis=1), start)
    return found


def _filled(x: Matrix) -> Floats:
    """x with gaps filled by the value before; gaps at the start stay (a missing bucket neither rises nor falls)."""
    position = np.where(np.isfinite(x), np.arange(x.shape[1])[None, :], 0)
    found: Floats = np.take_along_axis(x, np.maximum.accumulate(position, axis=1), axis=1).astype(float)
    return found


def growth_over(window: Matrix, lasted_s: float, width_s: float, climbed_bytes: float) -> Floats:
    """[n] growth of peers over the same stretch; NaN where either end was not observed. Of one that freed memory
    within the window, half as much as was climbed or more, its largest climb: ranks do not free at one moment."""
    span = max(round(lasted_s / width_s), 1)
    growth: Floats = (window[:, -1] - window[:, -1 - span]).astype(float)
    with np.errstate(invalid="ignore"):
        fell = np.fmax.reduce(np.fmax.accumulate(window, axis=1) - window, axis=1)
        rise = np.fmax.reduce(window - np.fmin.accumulate(window, axis=1), axis=1)
        found: Floats = np.where(fell > 0.5 * climbed_bytes, np.maximum(growth, rise), growth)
    return found
