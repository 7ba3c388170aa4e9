"""What a job's windows say about its curve: the estimator that the power heuristic stands on.

A bank of synthetic curves is the prior. Each curve is weighted by how well it fits the job's measured speeds (whose
scale is unknown: profile likelihood) and draws. The weighted curves tell what the *next* step costs; what the
present level costs is measured directly: windows around it against windows at the reference, both corrected by the
posterior mean curve. So a curve unlike any in the bank is still held to what was measured, and the bank is used
only to look a few steps ahead. State is counts and sums per level, hence small, plain, and the same after a
restart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controllers.power.curves import LEVELS, Floats, on_levels, synthetic

Ints = NDArray[np.int64]
Float32s = NDArray[np.float32]
N = len(LEVELS)
TOP = N - 1
CHUNK = 1024
BENT = 0.25
"""Share by which the bank may be wrong about how far two levels lie apart."""
ROUGH, ROUGHEST = 0.0025, 0.008
"""A real curve's own bends: error of the bank per level between two levels, and at most."""


@dataclass(frozen=True, eq=False)
class Bank:
    """Synthetic curves on LEVELS: `time` and `draw` [n_curves, n_levels]."""

    time: Float32s
    draw: Float32s

    @classmethod
    def make(cls, count: int = 768, seed: int = 7) -> Bank:
        time, draw = on_levels(synthetic(count, np.random.default_rng(seed)))
        return cls(time.astype(np.float32), draw.astype(np.float32))


@dataclass(frozen=True)
class Noise:
    """Of one window, and how far a job's curve may lie from the nearest in the bank (shares)."""

    speed: float = 0.01
    draw: float = 0.01
    model_speed: float = 0.006
    model_draw: float = 0.03


@dataclass(eq=False)
class Windows:
    """Counts and sums of windows of n jobs per level, each [n, n_levels]; since the last change of phase."""

    count: Floats
    speed: Floats
    draw: Floats

    @classmethod
    def empty(cls, n: int) -> Windows:
        return cls(*(np.zeros((n, N)) for _ in range(3)))

    def add(self, rows: Ints, level: Ints, speed: Floats, draw: Floats) -> None:
        """One window of each of `rows` [m] at `level`; `speed` in units of work per s, `draw` as a share of the
        highest limit. A window that is no number is left out."""
        fit = np.isfinite(speed) & np.isfinite(draw) & (speed > 0) & (draw > 0)
        rows, level = rows[fit], level[fit]
        self.count[rows, level] += 1.0
        self.speed[rows, level] += speed[fit]
        self.draw[rows, level] += draw[fit]

    def forget(self, rows: Ints) -> None:
        for array in (self.count, self.speed, self.draw):
            array[rows] = 0.0


@dataclass(frozen=True, eq=False)
class Outlook:
    """What n jobs would do at every level, judged from where they are. All [n, n_levels].

    `slowdown` against the reference and its standard deviation; `gain`: energy per work saved against the present
    level, as a share of it, and its deviation.
    """

    slowdown: Floats
    slowdown_sd: Floats
    gain: Floats
    gain_sd: Floats


def outlook(bank: Bank, windows: Windows, level: Ints, noise: Noise) -> Outlook:
    """What is believed of jobs at `level` [n]. Jobs without a window at the reference have NaN."""
    parts = [
        _outlook(bank, windows, np.arange(at, min(at + CHUNK, len(level))), level, noise)
        for at in range(0, len(level), CHUNK)
    ]
    return Outlook(*(np.concatenate([getattr(p, name) for p in parts]) for name in Outlook.__dataclass_fields__))


def weights(bank: Bank, count: Floats, speed: Floats, draw: Floats, noise: Noise) -> Float32s:
    """Posterior weight of each curve [n, n_curves]; `speed`, `draw`: means per level, anything where count is 0."""
    has = count > 0
    n = np.maximum(count, 1.0)
    scale = np.where(has, speed, 0.0).max(1, keepdims=True)
    r = np.where(has, speed / np.where(scale > 0, scale, 1.0), 0.0).astype(np.float32)
    w = np.where(has, 1.0 / (noise.speed**2 / n + noise.model_speed**2), 0.0).astype(np.float32)
    rate = 1.0 / bank.time
    along, square = (w * r) @ rate.T, w @ (rate**2).T
    log = 0.5 * along * along / np.maximum(square, 1e-9)
    seen = np.maximum(has.sum(1, keepdims=True), 1)
    wd = np.where(has, 2.0 / seen / (noise.draw**2 / n + noise.model_draw**2), 0.0).astype(np.float32)
    log_bank = np.log(np.maximum(bank.draw, 1e-3))
    log_draw = np.log(np.where(has, np.maximum(draw, 1e-3), 1.0)).astype(np.float32)
    log -= 0.5 * (wd @ (log_bank**2).T - 2.0 * (wd * log_draw) @ log_bank.T)
    log -= log.max(1, keepdims=True)
    weight = np.exp(log)
    return np.asarray(weight / weight.sum(1, keepdims=True), dtype=np.float32)


def _outlook(bank: Bank, windows: Windows, rows: Ints, level: Ints, noise: Noise) -> Outlook:
    count = windows.count[rows]
    has = count > 0
    n = np.maximum(count, 1.0)
    speed, draw = windows.speed[rows] / n, windows.draw[rows] / n
    weight = weights(bank, count, speed, draw, noise)
    here, local = level[rows], np.arange(len(rows))
    mean, rise_var = _against(weight, bank.time, here)
    # what is left when the posterior mean curve is taken off: the log of the job's own scale, at every level
    scale = np.where(has, np.log(np.where(has, speed, 1.0)) + np.log(mean), 0.0)
    _, flat_var = _against(weight, bank.time, np.full(len(rows), TOP))
    at_ref = _trust(count, mean - 1.0, flat_var + _rough(np.full(len(rows), TOP)), noise)
    rise_var = rise_var + _rough(here)
    at_here = _trust(count, mean - mean[local, here][:, None], rise_var, noise)
    p_ref, p_here = at_ref.sum(1), at_here.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = (at_ref * scale).sum(1) / p_ref - (at_here * scale).sum(1) / p_here
        variance = 1.0 / p_ref + 1.0 / p_here
    shift = np.where(count[:, TOP] > 0, shift, np.nan)
    own_time = mean[local, here]
    slowdown = (own_time * np.exp(shift) - own_time)[:, None] + mean - 1.0
    energy, energy_var = _against(weight, bank.time * bank.draw, here)
    there = energy[local, here][:, None]
    return Outlook(
        slowdown, np.sqrt(variance[:, None] + rise_var), 1.0 - energy / there, np.sqrt(energy_var) / there
    )


def _rough(level: Ints) -> Floats:
    return np.asarray(np.minimum(ROUGH * np.abs(np.arange(N)[None] - level[:, None]), ROUGHEST) ** 2)


def _trust(count: Floats, apart: Floats, variance: Floats, noise: Noise) -> Floats:
    """Precision that windows of each level have for another one, from which the bank says they lie `apart`."""
    error = noise.speed**2 / np.maximum(count, 1e-9) + variance + (BENT * apart) ** 2
    return np.where(count > 0, 1.0 / error, 0.0)


def _against(weight: Float32s, values: Float32s, here: Ints) -> tuple[Floats, Floats]:
    """Posterior mean of `values` [n_curves, n_levels] at every level, and the variance of their difference from
    that at `here`; each [n, n_levels]."""
    own = values.T[here]  # [n, n_curves]
    mean = (weight @ values).astype(np.float64)
    both = ((weight * own) @ values).astype(np.float64)
    square = (weight @ (values * values)).astype(np.float64)
    local = np.arange(len(here))
    base, base_square = mean[local, here][:, None], square[local, here][:, None]
    return mean, np.maximum(square - 2.0 * both + base_square - (mean - base) ** 2, 0.0)
