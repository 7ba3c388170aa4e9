"""Jobs under a power limit, window by window: where controllers are compared before they touch a GPU.

A window is 30 s. A job runs on its curve at the level that the controller chose; what the controller sees is speed
and draw with multiplicative noise, never the curve. Slowdown is judged on the truth, probing included. Energy is
per unit of work, against the same job at the highest limit; a node's energy has the host's constant share beside
it. A job may have phases: from some window on it runs on another curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from controllers.power.belief import TOP, Ints
from controllers.power.curves import LEVELS, Curve, Floats, on_levels, oracle_grid

WINDOW_S = 30.0
HOST_SHARE = 0.3
"""Of a node's draw at the highest limit that is not the GPU's."""


class Controller(Protocol):
    """Chooses levels for n jobs at once; one instance runs one simulation."""

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        """Level of each job's first window [n]; `lowest`: the lowest level that each GPU takes."""
        ...

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        """After one window at `level`: the next. `speed` in the job's own units, `draw` as a share of the highest
        limit; NaN where the window was not seen."""
        ...


@dataclass(frozen=True)
class Score:
    """Of one controller on n jobs; shares. `saved`, `oracle`, `node_saved`: means over jobs of energy per work."""

    saved: float
    oracle: float
    node_saved: float
    over: float  # of job-windows beyond the budget
    beyond: float  # of job-windows beyond the budget and one point more
    switches: float  # changes of the limit per job and hour

    @property
    def of_oracle(self) -> float:
        return self.saved / self.oracle if self.oracle > 0 else float("nan")


def lowest_levels(curves: Sequence[Curve]) -> Ints:
    return np.array([int(np.searchsorted(LEVELS, c.min_w / c.max_w - 1e-9)) for c in curves])


def run(
    curves: Sequence[Curve],
    controller: Controller,
    budget: float,
    seed: int,
    windows: int = 240,
    noise: float = 0.01,
    phases: Sequence[tuple[int, Sequence[Curve]]] = (),
) -> Score:
    """`phases`: (window, curves of all jobs from then on). The oracle is of the first phase's curves, or the mean
    over the phases weighted by their windows."""
    rng = np.random.default_rng(seed)
    n = len(curves)
    rows = np.arange(n)
    schedule = {0: list(curves), **{at: list(later) for at, later in phases}}
    scale = rng.uniform(0.5, 200.0, n)
    level = controller.start(lowest_levels(curves), budget, rng)
    energy, work, free, host = (np.zeros(n) for _ in range(4))
    oracle = np.zeros(n)
    over = beyond = switches = 0.0
    time, draw = on_levels(curves)
    best = np.zeros(n)
    for window in range(windows):
        if window in schedule:
            time, draw = on_levels(schedule[window])
            best = np.array([_oracle_energy(c, budget) for c in schedule[window]])
        t, p = time[rows, level], draw[rows, level]
        # everything of one unit of work at the highest limit, so that phases can be added up
        energy += p / draw[:, TOP]
        work += 1.0 / t
        oracle += best
        free += draw[:, TOP]
        host += p + HOST_SHARE / (1.0 - HOST_SHARE) * draw[:, TOP]
        slow = t - 1.0
        over += float((slow > budget + 1e-9).mean())
        beyond += float((slow > budget + 0.01 + 1e-9).mean())
        seen = scale / t * (1.0 + noise * rng.normal(size=n))
        drawn = p * (1.0 + noise * rng.normal(size=n))
        chosen = controller.step(level, seen, drawn)
        switches += float((chosen != level).mean())
        level = np.clip(chosen, 0, TOP)
    saved = 1.0 - energy / work
    node = 1.0 - host / work / (free / windows / (1.0 - HOST_SHARE))
    hours = windows * WINDOW_S / 3600.0
    return Score(
        float(saved.mean()),
        float(1.0 - (oracle / windows).mean()),
        float(node.mean()),
        over / windows,
        beyond / windows,
        switches / hours,
    )


def _oracle_energy(curve: Curve, budget: float) -> float:
    limit = oracle_grid(curve, budget) if curve.max_w > 1.0 else _fine(curve, budget)
    return float(curve.draw(limit) * (1.0 + curve.slowdown(limit)) / curve.draw(curve.max_w))


def _fine(curve: Curve, budget: float) -> float:
    return oracle_grid(curve, budget, 0.1)  # a made-up GPU of 1 W: a tenth of it is a real one's 25 W
