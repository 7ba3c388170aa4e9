"""What a trial says: estimates whose unit is the job, since a job's windows are no independent draws.

Windows of one job share its model, data and node; intervals that treat them as independent cover 82-92 % where they
say 95 (measured by us). So everything here resamples, folds and counts by job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightshift.detectors.tails import beta_quantile, t_quantile

F8 = NDArray[np.float64]
FOLDS = 5
LEAST_CHANCE = 0.02
"""Propensities below this are refused, not clipped: a clipped weight is a biased one."""
LEAST_ARM = 20.0
"""Jobs in either arm, counted by their weights (Kish 1965): with fewer, the bound covers 75-91 % where it says 95
(measured by us, propensities of 0.03 and 0.05)."""


@dataclass(frozen=True, slots=True)
class TrialTurn:
    """One executed decision of a trial.

    `chance`: probability that the *executed* action was the policy's, given what was seen and after the shield;
    `treated`: whether it was. `reward`: higher is better. `slowdown`: of the job in this window, 1 = none.
    `predicted`: slowdown that the policy expected, NaN where it said nothing. `violated`: a hard constraint was
    broken.
    """

    job: str
    treated: bool
    chance: float
    reward: float
    slowdown: float
    predicted: float = math.nan
    violated: bool = False
    features: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """`low`, `high`: each a one-sided bound at the level asked for. `jobs`: how many stand behind it."""

    mean: float
    low: float
    high: float
    jobs: int


def _number(turns: Sequence[TrialTurn]) -> NDArray[np.int64]:
    known: dict[str, int] = {}
    return np.asarray([known.setdefault(turn.job, len(known)) for turn in turns])


def _ridge(x: F8, y: F8) -> F8:
    return np.asarray(np.linalg.solve(x.T @ x + 1.0 * np.eye(x.shape[1]), x.T @ y))


def doubly_robust(turns: Sequence[TrialTurn], alpha: float = 0.05) -> Estimate:
    """Mean reward of the policy less the baseline's, per turn, by augmented inverse propensity weighting (Robins,
    Rotnitzky and Zhao 1994; cross-fitting: Chernozhukov et al. 2018, folds by job).

    The bounds are cluster-robust (CR1). Turns in which the executed action was certain (chance 0 or 1: the policy
    would have done what the baseline does) count as no difference. Raises ValueError where a propensity is not
    usable, or where an arm rests on fewer than `LEAST_ARM` jobs.
    """
    score, job = scores(turns)
    for arm, name in ((True, "policy"), (False, "baseline")):
        behind = arm_jobs(turns, arm)
        if behind < LEAST_ARM:
            raise ValueError(f"the {name}'s turns rest on {behind:.1f} jobs by weight, {LEAST_ARM:.0f} are needed")
    return clustered_mean(score, job, alpha)


def arm_jobs(turns: Sequence[TrialTurn], treated: bool) -> float:
    """How many equally weighted jobs an arm's turns are worth: Kish's effective size of the jobs' weights."""
    weights: dict[str, float] = {}
    for turn in turns:
        if turn.treated is treated and 0 < turn.chance < 1:
            chance = turn.chance if treated else 1.0 - turn.chance
            weights[turn.job] = weights.get(turn.job, 0.0) + 1.0 / chance
    squares = math.fsum(weight * weight for weight in weights.values())
    return math.fsum(weights.values()) ** 2 / squares if squares > 0 else 0.0


def scores(turns: Sequence[TrialTurn]) -> tuple[F8, NDArray[np.int64]]:
    """Each turn's doubly robust score, and the number of its job. Raises ValueError as `doubly_robust` does."""
    if not turns:
        raise ValueError("no turns")
    job = _number(turns)
    chance = np.asarray([turn.chance for turn in turns])
    treated = np.asarray([turn.treated for turn in turns], float)
    reward = np.asarray([turn.reward for turn in turns])
    if not np.isfinite(chance).all() or not np.isfinite(reward).all():
        raise ValueError("a turn's propensity or reward is missing")
    drawn = (chance > 0) & (chance < 1)
    if (np.minimum(chance, 1 - chance)[drawn] < LEAST_CHANCE).any() or (treated != chance)[~drawn].any():
        raise ValueError(f"a propensity lies within {LEAST_CHANCE} of 0 or 1, or contradicts what was executed")
    jobs = int(job.max()) + 1
    if jobs < 2:
        raise ValueError("one job cannot tell how jobs differ")
    features = np.asarray([turn.features for turn in turns], float).reshape(len(turns), -1)
    spread = features.std(0)
    # a feature that never changes says nothing, and must not divide by nothing
    features = (features - features.mean(0)) / np.where(spread > 0, spread, 1.0)
    expected = np.zeros((2, len(turns)))
    for fold in range(FOLDS):
        held = job % FOLDS == fold
        for arm in (0, 1):
            rows = ~held & (treated == arm) & drawn
            if rows.any():
                # centred within the arm, so that the intercept is not shrunk: arms differ in what they were given
                level, middle = float(reward[rows].mean()), features[rows].mean(0)
                rest = features[rows] - middle
                weights = _ridge(rest, reward[rows] - level) if rest.shape[1] else np.zeros(0)
                expected[arm, held] = level + (features[held] - middle) @ weights
    # a certain turn's score is replaced by 0 below: any number keeps its division finite until then
    safe = np.where(drawn, chance, 0.5)
    score = expected[1] - expected[0]
    score = score + treated / safe * (reward - expected[1]) - (1 - treated) / (1 - safe) * (reward - expected[0])
    return np.where(drawn, score, 0.0), job


def clustered_mean(values: F8, job: NDArray[np.int64], alpha: float = 0.05) -> Estimate:
    """The mean over turns with one-sided bounds that know of jobs. `job`: numbers from 0.

    Student's t with the degrees of freedom that the jobs' own spread leaves (Satterthwaite 1946, from their fourth
    moment), at most jobs - 1: where few jobs carry the sum, as with rare draws, there are few.
    """
    jobs = int(job.max()) + 1
    mean = float(values.mean())
    sums = np.bincount(job, values - mean, jobs)
    square = float((sums**2).sum())
    error = math.sqrt(jobs / (jobs - 1) * square) / len(values)
    noise = float((sums**4).sum()) - square**2 / jobs
    free = min(jobs - 1.0, max(1.0, 2.0 * square**2 / noise)) if noise > 0 else jobs - 1.0
    reach = t_quantile(free, 1 - alpha) * error
    return Estimate(mean, mean - reach, mean + reach, jobs)


def quantile_gap(
    turns: Sequence[TrialTurn], q: float, random: np.random.Generator, alpha: float = 0.05, draws: int = 400
) -> Estimate:
    """The policy's quantile of slowdown less the baseline's, weighted by inverse propensity; bounds by the
    bootstrap over jobs. NaN bounds where fewer than 3 / (1 - q) jobs took part: the tail has not been seen."""
    drawn = [turn for turn in turns if 0 < turn.chance < 1]
    if not drawn:
        return Estimate(math.nan, math.nan, math.nan, 0)
    job = _number(drawn)
    slowdown = np.asarray([turn.slowdown for turn in drawn])
    treated = np.asarray([turn.treated for turn in drawn])
    chance = np.asarray([turn.chance for turn in drawn])
    weight = 1.0 / np.where(treated, chance, 1 - chance)
    order = np.argsort(slowdown, kind="stable")
    slowdown, treated, weight, job = slowdown[order], treated[order], weight[order], job[order]
    jobs = int(job.max()) + 1

    def gap(count: F8) -> float:
        at = []
        for arm in (treated, ~treated):
            mass = np.cumsum(weight[arm] * count[job[arm]])
            if not len(mass) or mass[-1] <= 0:
                return math.nan
            at.append(float(slowdown[arm][min(int(np.searchsorted(mass, q * mass[-1])), len(mass) - 1)]))
        return at[0] - at[1]

    mean = gap(np.ones(jobs))
    if jobs < 3 / (1 - q):
        return Estimate(mean, math.nan, math.nan, jobs)
    found = np.asarray(
        [gap(np.bincount(random.integers(0, jobs, jobs), minlength=jobs).astype(float)) for _ in range(draws)]
    )
    low, high = np.nanquantile(found, (alpha, 1 - alpha))
    return Estimate(mean, float(low), float(high), jobs)


def calibration(turns: Sequence[TrialTurn], alpha: float = 0.05) -> Estimate:
    """How much slower jobs were than the policy said, in the turns that it decided, with bounds by job."""
    said = [turn for turn in turns if turn.treated and math.isfinite(turn.predicted)]
    if len({turn.job for turn in said}) < 2:
        return Estimate(math.nan, math.nan, math.nan, len({turn.job for turn in said}))
    return clustered_mean(np.asarray([turn.slowdown - turn.predicted for turn in said]), _number(said), alpha)


def violation_bound(turns: Sequence[TrialTurn], alpha: float = 0.05) -> tuple[int, float]:
    """Jobs with a violation, and the highest rate per job that what was seen allows for: with none in n jobs that
    is 3/n, the rule of three (Hanley and Lippman-Hand 1983), by Clopper and Pearson's bound in general."""
    by_job: dict[str, bool] = {}
    for turn in turns:
        if turn.treated:
            by_job[turn.job] = by_job.get(turn.job, False) or turn.violated
    jobs, bad = len(by_job), sum(by_job.values())
    if jobs == 0:
        return 0, 1.0
    return bad, beta_quantile(bad + 1, jobs - bad, 1 - alpha) if bad < jobs else 1.0
