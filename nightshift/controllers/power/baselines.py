"""What a learned policy has to beat: static caps, Zeus's selectors, plain descent, the shipped heuristic.

Zeus: J. You et al., "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training", NSDI 2023; the two
selectors are written from `zeus/optimizer/power_limit.py` of ml-energy/zeus: every limit of a 25 W grid is profiled
from the highest down for one window, then one is chosen for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import TOP, Bank, Ints
from nightshift.controllers.power.curves import LEVELS, Floats

GRID = 0.1
"""25 W of a GPU of 250 W: the step of Zeus's profiling, as a share of the highest limit."""


@dataclass
class Static:
    """The same share of the highest limit for every job, as an administrator sets it."""

    share: float
    lowest: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        self.lowest = np.maximum(lowest, int(np.searchsorted(LEVELS, self.share - 1e-9)))
        return self.lowest

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        return self.lowest


@dataclass
class Zeus:
    """Profiles the grid downwards, then keeps what its selector chose.

    Not `constrained`: ZeusCost, least eta·energy + (1-eta)·highest limit·time; else MaxSlowdownConstraint: the
    lowest limit whose measured slowdown is within the budget.
    """

    constrained: bool
    eta: float = 0.5
    chosen: Ints | None = None
    budget: float = 0.05

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        steps = np.arange(0, 1 - LEVELS[0], GRID)
        grid = np.round((1.0 - steps[None] - LEVELS[0]) * 100).astype(np.int64)
        self.grid = np.where(grid >= lowest[:, None], grid, -1)
        self.budget, self.at = budget, 0
        self.speed = np.full(self.grid.shape, np.nan)
        self.draw = np.full(self.grid.shape, np.nan)
        return np.full(len(lowest), TOP)

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        if self.chosen is not None:
            return self.chosen
        real = self.grid[:, self.at] >= 0
        self.speed[real, self.at], self.draw[real, self.at] = speed[real], draw[real]
        self.at += 1
        if self.at < self.grid.shape[1] and (self.grid[:, self.at] >= 0).any():
            return np.where(self.grid[:, self.at] >= 0, self.grid[:, self.at], level)
        if self.constrained:
            fits = self.speed >= self.speed[:, :1] / (1.0 + self.budget)
            pick = np.where(fits, np.arange(self.grid.shape[1])[None], -1).max(1)
        else:
            cost = (self.eta * self.draw + (1.0 - self.eta)) / self.speed
            pick = np.nanargmin(cost, 1)
        self.chosen = np.asarray(self.grid[np.arange(len(level)), np.maximum(pick, 0)])
        return self.chosen


@dataclass
class PlainDescent:
    """Five levels down after every three windows while the measured slowdown is within the budget; else back up,
    and that is it. What a careful engineer writes first."""

    stride: int = 5
    dwell: int = 3

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        n = len(lowest)
        self.lowest, self.budget = lowest, budget
        self.level = np.full(n, TOP)
        self.sum, self.count, self.reference = np.zeros(n), 0, np.full(n, np.nan)
        self.done = np.zeros(n, dtype=bool)
        return self.level

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        self.sum += speed
        self.count += 1
        if self.count < self.dwell:
            return self.level
        mean = self.sum / self.count
        self.sum, self.count = np.zeros(len(level)), 0
        first = np.isnan(self.reference)
        self.reference = np.where(first, mean, self.reference)
        slow = self.reference / mean - 1.0
        back = ~self.done & (slow > self.budget)
        self.done |= back
        down = np.maximum(self.level - self.stride, self.lowest)
        self.level = np.where(
            back, np.minimum(self.level + self.stride, TOP), np.where(self.done, self.level, down)
        )
        return self.level


@dataclass
class Descent:
    """The heuristic of `descent`, as a controller of simulated jobs."""

    bank: Bank
    care: descent.Care = field(default_factory=descent.Care)

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        self.now = replace(self.care, budget=budget)
        self.jobs = descent.Jobs.start(lowest)
        return self.jobs.home.copy()

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        return descent.decide(self.jobs, level, speed, draw, self.bank, self.now)
