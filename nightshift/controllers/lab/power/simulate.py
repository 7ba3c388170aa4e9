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

from nightshift.controllers.lab.power.sweeps import oracle_grid
from nightshift.controllers.power.belief import TOP, Ints, N
from nightshift.controllers.power.curves import LEVELS, Curve, Floats, on_levels

WINDOW_S = 30.0
HOST_SHARE = 0.3
"""Of a node's draw at the highest limit that is not the GPU's."""
CLEARLY = 0.0025
"""Slowdown beyond the budget from which a window is over by more than a hair's breadth."""


class Controller(Protocol):
    """Chooses levels for n jobs at once; one instance runs one simulation."""

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        """Level of each job's first window [n]; `lowest`: the lowest level that each GPU takes."""
        ...

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        """After one window at `level`: the next. `speed` in the job's own units, `draw` as a share of the highest
        limit; NaN where the window was not seen."""
        ...


@dataclass(frozen=True, eq=False)
class EnergyLedger:
    """What became of each of n jobs under one controller, each [n]; shares.

    `saved`, `oracle`, `node_saved`: energy per work. `over`: job-windows beyond the budget, of which `exploring`
    were the first at a level lower than any before, and `changed` came after a change of phase and before the
    controller was back at the reference; in the rest it had settled too low. `clearly`: beyond the budget and a
    quarter of a point more; `beyond`: and one point more. `excess`: slowdown beyond the budget, the mean over all
    windows.
    """

    saved: Floats
    oracle: Floats
    node_saved: Floats
    over: Floats
    exploring: Floats
    changed: Floats
    clearly: Floats
    beyond: Floats
    excess: Floats
    switches: Floats  # changes of the limit per job and hour

    def of(self, rows: Sequence[int] | None = None) -> PowerScore:
        """The mean over jobs, or over those in `rows`."""
        pick = slice(None) if rows is None else np.asarray(rows, dtype=np.int64)
        return PowerScore(*(float(getattr(self, name)[pick].mean()) for name in PowerScore.__dataclass_fields__))

    def split(self, blocks: int) -> list[EnergyLedger]:
        """In so many equal blocks of jobs."""
        columns = [np.split(getattr(self, name), blocks) for name in self.__dataclass_fields__]
        return [EnergyLedger(*block) for block in zip(*columns, strict=True)]


@dataclass(frozen=True)
class PowerScore:
    """Means of a Ledger over its jobs."""

    saved: float
    oracle: float
    node_saved: float
    over: float
    exploring: float
    changed: float
    clearly: float
    beyond: float
    excess: float
    switches: float

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
) -> PowerScore:
    """The means of `ledger`."""
    return ledger(curves, controller, budget, seed, windows, noise, phases).of()


def ledger(
    curves: Sequence[Curve],
    controller: Controller,
    budget: float,
    seed: int,
    windows: int = 240,
    noise: float = 0.01,
    phases: Sequence[tuple[int, Sequence[Curve]]] = (),
    pace: Floats | None = None,
) -> EnergyLedger:
    """`phases`: (window, curves of all jobs from then on). The oracle is of the first phase's curves, or the mean
    over the phases weighted by their windows. `pace` [n]: work per second at the highest limit; none: drawn."""
    rng = np.random.default_rng(seed)
    n = len(curves)
    rows = np.arange(n)
    schedule = {0: list(curves), **{at: list(later) for at, later in phases}}
    # as in a cluster, where a job's speed is in steps of its own: no controller may rely on its size
    scale = rng.uniform(0.5, 200.0, n) if pace is None else pace
    level = controller.start(lowest_levels(curves), budget, rng)
    energy, work, free, host, oracle = (np.zeros(n) for _ in range(5))
    over, exploring, changed, clearly, beyond, excess, switches = (np.zeros(n) for _ in range(7))
    lowest_seen, stale = np.full(n, N), np.zeros(n, dtype=bool)
    time, draw = on_levels(curves)
    best = np.zeros(n)
    for window in range(windows):
        if window in schedule:
            time, draw = on_levels(schedule[window])
            best = np.array([_oracle_energy(c, budget) for c in schedule[window]])
            lowest_seen, stale = np.full(n, N), np.full(n, window > 0)
        # back at the reference, whatever it believed of the phase before is gone
        stale &= level < TOP
        t, p = time[rows, level], draw[rows, level]
        # everything of one unit of work at the highest limit, so that phases can be added up
        energy += p / draw[:, TOP]
        work += 1.0 / t
        oracle += best
        free += draw[:, TOP]
        host += p + HOST_SHARE / (1.0 - HOST_SHARE) * draw[:, TOP]
        slow = t - 1.0 > budget + 1e-9
        over += slow
        changed += slow & stale
        exploring += slow & ~stale & (level < lowest_seen)
        clearly += t - 1.0 > budget + CLEARLY + 1e-9
        beyond += t - 1.0 > budget + 0.01 + 1e-9
        excess += np.maximum(t - 1.0 - budget, 0.0)
        lowest_seen = np.minimum(lowest_seen, level)
        seen = scale / t * (1.0 + noise * rng.normal(size=n))
        drawn = p * (1.0 + noise * rng.normal(size=n))
        chosen = controller.step(level, seen, drawn)
        switches += chosen != level
        level = np.clip(chosen, 0, TOP)
    rates = [count / windows for count in (over, exploring, changed, clearly, beyond, excess)]
    rates.append(switches / (windows * WINDOW_S / 3600.0))
    return EnergyLedger(
        1.0 - energy / work,
        1.0 - oracle / windows,
        1.0 - host / work / (free / windows / (1.0 - HOST_SHARE)),
        *rates,
    )


def ledgers(
    curves: Sequence[Curve], controller: Controller, budget: float, seeds: Sequence[int], windows: int = 240
) -> list[EnergyLedger]:
    """One ledger a seed. All run beside each other, as jobs of one simulation: a belief about 500 jobs costs little
    more than one about 100."""
    seed = int(np.random.SeedSequence(list(seeds)).generate_state(1)[0])
    return ledger(list(curves) * len(seeds), controller, budget, seed, windows).split(len(seeds))


def _oracle_energy(curve: Curve, budget: float) -> float:
    limit = oracle_grid(curve, budget) if curve.max_w > 1.0 else _fine(curve, budget)
    return float(curve.draw(limit) * (1.0 + curve.slowdown(limit)) / curve.draw(curve.max_w))


def _fine(curve: Curve, budget: float) -> float:
    return oracle_grid(curve, budget, 0.1)  # a made-up GPU of 1 W: a tenth of it is a real one's 25 W
