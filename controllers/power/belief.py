"""What a job's windows say about its curve: the posterior that the power heuristic stands on.

The log of a job's time per work, over the limits, is modelled as

    a curve of the bank  +  its own bends  +  its scale

The bank is a few hundred synthetic curves (`curves.synthetic`), written in their first principal components. The
bends are a Gaussian process that is nought at the highest limit and whose slope is an Ornstein-Uhlenbeck process: a
real curve may turn anywhere, not only where the bank's do. The scale is not known at all. Given the curve of the
bank all is linear and Gaussian (C. Rasmussen, C. Williams, "Gaussian Processes for Machine Learning", 2006, section
2.7), so the posterior is a mixture with one weight per curve, in closed form: its mean and deviation at every level
follow, the doubt about the reference included. State is counts and sums per level, hence small, plain, and the same
after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from controllers.power.curves import LEVELS, Curve, Floats, on_levels, synthetic

Ints = NDArray[np.int64]
Float32s = NDArray[np.float32]
N = len(LEVELS)
TOP = N - 1
CHUNK = 512
PARTS = 10
"""Principal components of the bank."""
KNOT = 3
"""Levels between two knots of the bends."""
SLOPE, LASTS = 0.003, 6.0
"""Of the bends: deviation of the slope per level, and the levels over which it forgets itself."""
ROUGH = 0.0045
"""The same for one who expects a cliff anywhere: 0.013 a level, about the steepest that sweeps have within a
budget, is three deviations."""
NEAR = 8
"""Levels, from the present one down, at which a cliff is expected: further than any step."""
STEEP = 0.3
"""Log time beyond which the bank's curves count as flat: no slowdown budget reaches there."""


@dataclass(frozen=True, eq=False)
class Bank:
    """Synthetic curves on LEVELS, and the linear model of a job's log time made of them.

    `time`, `draw` [n_curves, n_levels]; `mean` [n_levels], `parts` [n_levels, PARTS] and `score` [n_curves, PARTS]:
    log time is about mean + parts @ score; `bends` [n_levels, q]: hat functions of the knots, and the scale last;
    `stiff` [q, q]: prior precision of their weights; `rough` [q + PARTS, q + PARTS]: that of one who expects a
    cliff anywhere, and of the bank knows the spread of its scores alone.
    """

    time: Float32s
    draw: Float32s
    mean: Floats
    parts: Floats
    score: Floats
    bends: Floats
    stiff: Floats
    rough: Floats

    @cached_property
    def model(self) -> _Model:
        return _Model(self)

    @classmethod
    def make(
        cls, count: int = 768, seed: int = 7, steep: float = STEEP, curves: Sequence[Curve] | None = None
    ) -> Bank:
        """`steep`: log time that a job is ever asked about; where more is, the model is finer below. `curves`: of
        another lever than the power limit."""
        time, draw = on_levels(synthetic(count, np.random.default_rng(seed)) if curves is None else curves)
        log = np.minimum(np.log(time), steep)
        mean = log.mean(0)
        parts = np.linalg.svd(log - mean, full_matrices=False)[2][:PARTS].T
        score = (log - mean) @ parts
        bends, stiff = _bends(SLOPE)
        rough = np.zeros((len(stiff) + PARTS,) * 2)
        rough[: len(stiff), : len(stiff)] = _bends(ROUGH)[1]
        rough[len(stiff) :, len(stiff) :] = np.diag(1.0 / score.var(0))
        return cls(time.astype(np.float32), draw.astype(np.float32), mean, parts, score, bends, stiff, rough)


@cache
def shared_bank(steep: float = STEEP) -> Bank:
    """The bank of the power limit, made once in a process: nothing changes it."""
    return Bank.make(steep=steep)


@dataclass(frozen=True)
class Noise:
    """Of one window (shares), and how far a job's draw may lie from that of the nearest curve in the bank."""

    speed: float = 0.01
    draw: float = 0.01
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

    `slowdown` against the reference and its standard deviation; `rough` and its deviation: the same to one who
    expects a cliff anywhere, so that next to nothing but the windows right there count (NaN but for the present
    level and the NEAR - 1 below); `gain`: energy per work saved against the present level, as a share of it, and
    its deviation.
    """

    slowdown: Floats
    slowdown_sd: Floats
    rough: Floats
    rough_sd: Floats
    gain: Floats
    gain_sd: Floats


def outlook(bank: Bank, windows: Windows, level: Ints, noise: Noise, guess: bool = False) -> Outlook:
    """What is believed of jobs at `level` [n]. Jobs without a window at the reference have NaN; with `guess`, what
    the bank says of them, and how little that is."""
    parts = [
        _outlook(bank.model, windows, np.arange(at, min(at + CHUNK, len(level))), level, noise, guess)
        for at in range(0, len(level), CHUNK)
    ]
    return Outlook(*(np.concatenate([getattr(p, name) for p in parts]) for name in Outlook.__dataclass_fields__))


class _Model:
    """Products of the bank's matrices that are the same for every job."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.q, self.r = bank.bends.shape[1], bank.parts.shape[1]
        self.upper = np.triu_indices(self.r)
        twice = np.where(self.upper[0] == self.upper[1], 1.0, 2.0)
        self.pairs = bank.score[:, self.upper[0]] * bank.score[:, self.upper[1]]  # [n_curves, r(r+1)/2]
        self.form = np.ascontiguousarray((-0.5 * twice * self.pairs).T, dtype=np.float32)
        self.line = np.ascontiguousarray(bank.score.T, dtype=np.float32)
        self.bend_bend = _outer(bank.bends, bank.bends)  # [n_levels, q²]
        self.bend_part = _outer(bank.bends, bank.parts)
        self.part_part = _outer(bank.parts, bank.parts)
        self.basis = np.hstack([bank.bends, bank.parts])
        self.basis_basis = _outer(self.basis, self.basis)
        self.without_scale = self.basis.copy()
        self.without_scale[:, self.q - 1] = 0.0
        self.log_draw = np.log(np.maximum(bank.draw, 1e-3))
        self.moments = np.hstack([self.pairs, bank.score]).astype(np.float32)


def _outlook(model: _Model, windows: Windows, rows: Ints, level: Ints, noise: Noise, guess: bool) -> Outlook:
    bank, n, q, r = model.bank, len(rows), model.q, model.r
    count = windows.count[rows]
    has, least = count > 0, np.maximum(count, 1.0)
    draw = windows.draw[rows] / least
    log = np.where(has, np.log(np.where(has, windows.speed[rows] / least, 1.0)), 0.0)
    log = np.where(has, log - log.max(1, keepdims=True, where=has, initial=-np.inf), 0.0)
    weigh = count / noise.speed**2
    rest = weigh * (-log - bank.mean)
    # the bends given a curve of the bank with scores b: Normal(inverse @ (toward - across @ b), inverse)
    inverse = np.linalg.inv((weigh @ model.bend_bend).reshape(n, q, q) + bank.stiff)
    across = (weigh @ model.bend_part).reshape(n, q, r)
    toward = rest @ bank.bends
    solved = inverse @ across
    # what is left of the likelihood is a quadratic form in the scores
    square = (weigh @ model.part_part).reshape(n, r, r) - np.swapaxes(across, 1, 2) @ solved
    line = rest @ bank.parts - np.einsum("nqr,nq->nr", solved, toward)
    weight = _weights(model, square, line, count, draw, noise)
    moments = (weight @ model.moments).astype(np.float64)
    score = moments[:, -r:]
    spread = np.empty((n, r, r))
    spread[:, model.upper[0], model.upper[1]] = moments[:, :-r]
    spread[:, model.upper[1], model.upper[0]] = moments[:, :-r]
    spread -= score[:, :, None] * score[:, None, :]
    own = np.einsum("nqp,np->nq", inverse, toward) - np.einsum("nqr,nr->nq", solved, score)
    hats = bank.bends[:, :-1]
    curve = bank.mean + score @ bank.parts.T + own[:, :-1] @ hats.T
    effect = bank.parts[None] - hats[None] @ solved[:, :-1]  # of a score on the curve [n, n_levels, r]
    variance = ((effect @ spread) * effect).sum(2) + ((hats[None] @ inverse[:, :-1, :-1]) * hats[None]).sum(2)
    time = np.exp(curve - curve[:, TOP:])
    rough, rough_sd = _expecting_cliffs(model, weigh, rest, level[rows])
    if not guess:
        known = count[:, TOP:] > 0
        time, rough = np.where(known, time, np.nan), np.where(known, rough, np.nan)
    energy, energy_var = _against(weight, bank.time * bank.draw, level[rows])
    there = energy[np.arange(n), level[rows]][:, None]
    sd = np.sqrt(np.maximum(variance, 0.0)) * time
    return Outlook(time - 1.0, sd, rough, rough_sd, 1.0 - energy / there, np.sqrt(energy_var) / there)


def _expecting_cliffs(model: _Model, weigh: Floats, rest: Floats, here: Ints) -> tuple[Floats, Floats]:
    """Slowdown and its deviation, each [n, n_levels], under `Bank.rough`: one Gaussian, no mixture."""
    bank, n, size = model.bank, len(weigh), model.q + model.r
    spread = np.linalg.inv((weigh @ model.basis_basis).reshape(n, size, size) + bank.rough)
    weights = np.einsum("nij,nj->ni", spread, rest @ model.basis)
    levels = np.maximum(here[:, None] - np.arange(NEAR), 0)
    at = model.without_scale[levels]
    time = np.exp(bank.mean[levels] + np.einsum("nli,ni->nl", at, weights))
    variance = ((at @ spread) * at).sum(2)
    slowdown, deviation = np.full((2, n, N), np.nan)
    np.put_along_axis(slowdown, levels, time - 1.0, 1)
    np.put_along_axis(deviation, levels, np.sqrt(np.maximum(variance, 0.0)) * time, 1)
    return slowdown, deviation


def _weights(model: _Model, square: Floats, line: Floats, count: Floats, draw: Floats, noise: Noise) -> Float32s:
    """Posterior weight of each curve of the bank [n, n_curves], by the job's speeds and draws."""
    log = square[:, model.upper[0], model.upper[1]].astype(np.float32) @ model.form
    log += line.astype(np.float32) @ model.line
    has = count > 0
    seen = np.maximum(has.sum(1, keepdims=True), 1)
    weigh = 2.0 / seen / (noise.draw**2 / np.maximum(count, 1.0) + noise.model_draw**2)
    weigh = np.where(has, weigh, 0.0).astype(np.float32)
    log_draw = np.log(np.where(has, np.maximum(draw, 1e-3), 1.0)).astype(np.float32)
    log -= 0.5 * (weigh @ (model.log_draw**2).T) - (weigh * log_draw) @ model.log_draw.T
    log -= log.max(1, keepdims=True)
    weight = np.exp(log)
    return np.asarray(weight / weight.sum(1, keepdims=True), dtype=np.float32)


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


def _bends(slope: float) -> tuple[Floats, Floats]:
    """(hat functions and scale on LEVELS [n_levels, q], prior precision of their weights [q, q])."""
    knots = np.arange(TOP - KNOT, -KNOT, -KNOT).clip(0)[::-1]
    ends = np.append(knots, TOP)
    hats = np.column_stack([np.interp(np.arange(N), ends, row) for row in np.eye(len(ends))])
    hats[:, -1] = -1.0  # at the highest level there is no bend; the last column is the scale
    far = (TOP - knots).astype(float)
    one, other = far[:, None], far[None]
    decay = 1.0 - np.exp(-one / LASTS) - np.exp(-other / LASTS) + np.exp(-abs(one - other) / LASTS)
    covariance = slope**2 * LASTS * (2.0 * np.minimum(one, other) - LASTS * decay)
    stiff = np.zeros((len(ends), len(ends)))
    stiff[:-1, :-1] = np.linalg.inv(covariance + 1e-12 * np.eye(len(knots)))
    stiff[-1, -1] = 1e-6
    return hats, stiff


def _outer(one: Floats, other: Floats) -> Floats:
    return (one[:, :, None] * other[:, None, :]).reshape(len(one), -1)
