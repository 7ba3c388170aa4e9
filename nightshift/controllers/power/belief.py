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
from dataclasses import dataclass, fields
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from nightshift.controllers.power.curves import LEVELS, Curve, Floats, on_levels, synthetic

Ints = NDArray[np.int64]
Float32s = NDArray[np.float32]
N = len(LEVELS)
TOP = N - 1
CHUNK = 512
PARTS = 10
"""Principal components of the bank."""
KNOTS = np.arange(TOP - 3, -3, -3).clip(0)[::-1]
"""Levels at which the bends are free; between two they are straight, and nought at TOP."""
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
    log time is about mean + parts @ score.
    """

    time: Float32s
    draw: Float32s
    mean: Floats
    parts: Floats
    score: Floats

    @cached_property
    def mixture(self) -> _Mixture:
        return _Mixture(self)

    @cached_property
    def models(self) -> Sequence[_Model]:
        """By depth."""
        return [_Model(self, depth) for depth in range(len(KNOTS))]

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
        return cls(time.astype(np.float32), draw.astype(np.float32), mean, parts, (log - mean) @ parts)


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
class LevelWindows:
    """Counts and sums of windows of n jobs per level, each [n, n_levels]; since the last change of phase. A count
    that is remembered from another run may be below one."""

    count: Floats
    speed: Floats
    draw: Floats

    @classmethod
    def empty(cls, n: int) -> LevelWindows:
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

    def means(self) -> tuple[Floats, Floats]:
        """(speed, draw) per level, each [n, n_levels]; nought where there is no window. Counts may be below one."""
        least = np.where(self.count > 0, self.count, 1.0)
        return self.speed / least, self.draw / least

    def with_past(self, past: LevelWindows) -> LevelWindows:
        """These windows and those of the same workload's run before, in these windows' unit of speed.

        A run has a unit of its own (another image or card steps at another pace): it is what makes the levels seen
        in both runs agree. So the past says what each level costs against another, and nothing of this run's pace.
        Of a job without a level in common it says nothing.
        """
        speed, draw = past.means()
        shared = np.where(past.count > 0, self.count, 0.0)
        sum_of_shared = shared.sum(1, keepdims=True)
        ratio = np.log(np.where(shared > 0, self.means()[0], 1.0)) - np.log(np.where(shared > 0, speed, 1.0))
        unit = np.exp((shared * ratio).sum(1, keepdims=True) / np.maximum(sum_of_shared, 1.0))
        count = np.where(sum_of_shared > 0, past.count, 0.0)
        return LevelWindows(self.count + count, self.speed + count * speed * unit, self.draw + count * draw)

    def times(self, share: Floats) -> LevelWindows:
        """Each job's windows, counting for this share of a window [n]."""
        return LevelWindows(*(array * share[:, None] for array in (self.count, self.speed, self.draw)))

    def faded(self, share: float, limit: float) -> LevelWindows:
        """As evidence of the next run: each level's windows count for this share, and for so many at most."""
        speed, draw = self.means()
        count = np.minimum(share * self.count, limit)
        return LevelWindows(count, count * speed, count * draw)


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


def outlook(
    bank: Bank,
    windows: LevelWindows,
    level: Ints,
    noise: Noise,
    guess: bool = False,
    past: LevelWindows | None = None,
) -> Outlook:
    """What is believed of jobs at `level` [n]. Jobs without a window at the reference have NaN; with `guess`, what
    the bank says of them, and how little that is. `past`: windows of the same curves in a unit of speed that is
    not known."""
    found = Outlook(*np.full((len(fields(Outlook)), len(level), N), np.nan))
    past = LevelWindows.empty(len(level)) if past is None else past
    depth = np.maximum(depths(windows), depths(past))
    order = np.argsort(depth, kind="stable")
    for rows in (order[at : at + CHUNK] for at in range(0, len(order), CHUNK)):
        seen = _outlook(bank, bank.models[depth[rows[-1]]], windows, past, rows, level[rows], noise, guess)
        for field in fields(Outlook):
            getattr(found, field.name)[rows] = getattr(seen, field.name)
    return found


def depths(windows: LevelWindows) -> Ints:
    """Of each job [n]: the first knot, counted from above, that lies no higher than any level it was seen at."""
    lowest = np.where(windows.count > 0, np.arange(N), TOP - 1).min(1)
    return np.asarray(len(KNOTS) - np.searchsorted(KNOTS, lowest, side="right"))


class _Mixture:
    """Products of the bank's matrices that weigh its curves."""

    def __init__(self, bank: Bank) -> None:
        self.upper = np.triu_indices(bank.parts.shape[1])
        twice = np.where(self.upper[0] == self.upper[1], 1.0, 2.0)
        pairs = bank.score[:, self.upper[0]] * bank.score[:, self.upper[1]]  # [n_curves, r(r+1)/2]
        self.form = np.ascontiguousarray((-0.5 * twice * pairs).T, dtype=np.float32)
        self.line = np.ascontiguousarray(bank.score.T, dtype=np.float32)
        self.log_draw = np.log(np.maximum(bank.draw, 1e-3))
        self.moments = np.hstack([pairs, bank.score]).astype(np.float32)


class _Model:
    """What is the same for all jobs that were seen no lower than at one knot.

    What the bends do below it follows from what they do at the knots above and a rest that no window tells of. So
    only those knots are unknown, which is exact and, for a job seen at few levels, most of the work saved.
    `bends` [n_levels, q]: bends from the knots' weights, the scale last; `stiff` [q, q]: prior precision of the
    weights; `rest` [n_levels]: variance of the rest. `rough` [q + r, q + r] and `rough_rest`: those of one who
    expects a cliff anywhere, and of the bank knows the spread of its scores alone.
    """

    def __init__(self, bank: Bank, depth: int) -> None:
        low = len(KNOTS) - 1 - depth
        hats = np.column_stack([np.interp(np.arange(N), [*KNOTS, TOP], row) for row in np.eye(len(KNOTS) + 1)])
        covariance = _covariance(KNOTS)
        known = np.linalg.inv(covariance[low:, low:])
        below = covariance[:low, low:] @ known
        rest = covariance[:low, :low] - below @ covariance[low:, :low]
        self.bends = np.column_stack([hats[:, low:-1] + hats[:, :low] @ below, np.full(N, -1.0)])
        self.q, self.r = self.bends.shape[1], bank.parts.shape[1]
        precision = np.zeros((2, self.q + self.r, self.q + self.r))
        precision[:, : self.q - 1, : self.q - 1] = known / np.array([SLOPE, ROUGH])[:, None, None] ** 2
        precision[:, self.q - 1, self.q - 1] = 1e-6
        precision[1, self.q :, self.q :] = np.diag(1.0 / bank.score.var(0))
        self.stiff, self.rough = precision[0, : self.q, : self.q], precision[1]
        away = np.einsum("lk,kj,lj->l", hats[:, :low], rest, hats[:, :low])
        self.rest, self.rough_rest = SLOPE**2 * away, ROUGH**2 * away
        self.hats = self.bends[:, :-1]
        self.hat_hat = _outer(self.hats)
        self.basis = np.hstack([self.bends, bank.parts])
        self.first = int(KNOTS[low])  # the lowest level that a job may have been seen at
        self.products = _outer(self.basis[self.first :])
        self.without_scale = self.basis.copy()
        self.without_scale[:, self.q - 1] = 0.0


def _outlook(
    bank: Bank,
    model: _Model,
    windows: LevelWindows,
    past: LevelWindows,
    rows: Ints,
    level: Ints,
    noise: Noise,
    guess: bool,
) -> Outlook:
    n, q, r = len(rows), model.q, model.r
    weigh, off = _off_mean(bank, windows, rows, noise)
    weigh_past, off_past = _off_mean(bank, past, rows, noise)
    # the past's scale is as unknown as this run's, and nothing else of it is: integrated out, it takes with it what
    # the past's windows have in common
    whole = np.maximum(weigh_past.sum(1, keepdims=True), 1e-9)
    off_past -= (weigh_past * off_past).sum(1, keepdims=True) / whole
    common = weigh_past @ model.basis / np.sqrt(whole)
    toward = (weigh * off + weigh_past * off_past) @ model.basis
    told = ((weigh + weigh_past)[:, model.first :] @ model.products).reshape(n, q + r, q + r)
    told -= common[:, :, None] * common[:, None, :]
    # the bends given a curve of the bank with scores b: Normal(inverse @ (toward - across @ b), inverse)
    inverse = np.linalg.inv(told[:, :q, :q] + model.stiff)
    solved = told[:, q:, :q] @ inverse
    # what is left of the likelihood is a quadratic form in the scores
    square = told[:, q:, q:] - solved @ told[:, :q, q:]
    line = toward[:, q:] - (solved @ toward[:, :q, None])[:, :, 0]
    count = windows.count[rows] + past.count[rows]
    draw = (windows.draw[rows] + past.draw[rows]) / np.where(count > 0, count, 1.0)
    weight = _weights(bank.mixture, square, line, count, draw, noise)
    moments = (weight @ bank.mixture.moments).astype(np.float64)
    score = moments[:, -r:]
    upper = bank.mixture.upper
    spread = np.empty((n, r, r))
    spread[:, upper[0], upper[1]] = moments[:, :-r]
    spread[:, upper[1], upper[0]] = moments[:, :-r]
    spread -= score[:, :, None] * score[:, None, :]
    own = (inverse @ toward[:, :q, None])[:, :, 0] - (score[:, None] @ solved)[:, 0]
    curve = bank.mean + score @ bank.parts.T + own[:, :-1] @ model.hats.T
    effect = bank.parts.T - (solved[:, :, :-1].reshape(n * r, -1) @ model.hats.T).reshape(n, r, N)  # of a score
    variance = (spread @ effect * effect).sum(1) + inverse[:, :-1, :-1].reshape(n, -1) @ model.hat_hat.T
    variance += model.rest
    time = np.exp(curve - curve[:, TOP:])
    rough, rough_sd = _expecting_cliffs(bank, model, told, toward, level)
    if not guess:
        known = windows.count[rows, TOP:] > 0
        time, rough = np.where(known, time, np.nan), np.where(known, rough, np.nan)
    energy, energy_var = _against(weight, bank.time * bank.draw, level)
    there = energy[np.arange(n), level][:, None]
    sd = np.sqrt(np.maximum(variance, 0.0)) * time
    return Outlook(time - 1.0, sd, rough, rough_sd, 1.0 - energy / there, np.sqrt(energy_var) / there)


def _off_mean(bank: Bank, windows: LevelWindows, rows: Ints, noise: Noise) -> tuple[Floats, Floats]:
    """Precision of each level's log time, and how far it lies from the bank's mean but for the scale; each
    [n, n_levels]."""
    count = windows.count[rows]
    has = count > 0
    # a remembered level may count for less than one window: its sums are as small
    log = np.where(has, np.log(np.where(has, windows.speed[rows], 1.0) / np.where(has, count, 1.0)), 0.0)
    log = np.where(has, log - log.max(1, keepdims=True, where=has, initial=-np.inf), 0.0)
    return count / noise.speed**2, -log - bank.mean


def _expecting_cliffs(bank: Bank, model: _Model, told: Floats, toward: Floats, here: Ints) -> tuple[Floats, Floats]:
    """Slowdown and its deviation, each [n, n_levels], under `_Model.rough`: one Gaussian, no mixture."""
    levels = np.maximum(here[:, None] - np.arange(NEAR), 0)
    at = model.without_scale[levels]
    solved = np.linalg.solve(told + model.rough, np.swapaxes(at, 1, 2))
    time = np.exp(bank.mean[levels] + (toward[:, None] @ solved)[:, 0])
    variance = (at * np.swapaxes(solved, 1, 2)).sum(2) + model.rough_rest[levels]
    slowdown, deviation = np.full((2, len(here), N), np.nan)
    np.put_along_axis(slowdown, levels, time - 1.0, 1)
    np.put_along_axis(deviation, levels, np.sqrt(np.maximum(variance, 0.0)) * time, 1)
    return slowdown, deviation


def _weights(model: _Mixture, square: Floats, line: Floats, count: Floats, draw: Floats, noise: Noise) -> Float32s:
    """Posterior weight of each curve of the bank [n, n_curves], by the job's speeds and draws."""
    log = square[:, model.upper[0], model.upper[1]].astype(np.float32) @ model.form
    log += line.astype(np.float32) @ model.line
    has = count > 0
    seen = np.maximum(has.sum(1, keepdims=True), 1)
    weigh = 2.0 / seen / (noise.draw**2 / np.where(has, count, 1.0) + noise.model_draw**2)
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


def _covariance(knots: Ints) -> Floats:
    """Of the bends at the knots [q, q], for a slope whose deviation is one."""
    far = (TOP - knots).astype(float)
    one, other = far[:, None], far[None]
    decay = 1.0 - np.exp(-one / LASTS) - np.exp(-other / LASTS) + np.exp(-abs(one - other) / LASTS)
    return np.asarray(LASTS * (2.0 * np.minimum(one, other) - LASTS * decay))


def _outer(rows: Floats) -> Floats:
    return (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
