"""A rack under a power budget: who gets how much of what is too little. The divider, and what it is held against.

Speeds are relative to the same job at its highest limit, so that jobs can be compared.

    common cap   one limit for all, moved by a PI controller until the measured draw is at the budget
    divider      each job's own curve is believed from its windows (`belief`), the rack is shared by them (`share`)
    told         shares like the divider, and is told every curve, behind the same shield (`rack_run.TrueShares`)
    oracle       knows every curve and every draw, and maximises the slowest job's speed (max-min); no shield

None of them is trusted with the budget: their wishes go through `shield`, like everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import TOP, Bank, Ints
from nightshift.controllers.power.curves import LEVELS, Floats
from nightshift.controllers.power.limits import Settings
from nightshift.controllers.power.share import Claims, Sharing, divide

Bools = NDArray[np.bool_]
MARGIN = Settings().margin_share + 0.001
"""A little more than the shield's, which rounds to watts."""


class Divider(Protocol):
    """Wishes levels for the n GPUs of a rack; one instance runs one rack."""

    def start(self, lowest: int, gpus: int, budget: float) -> Ints:
        """Level of each GPU's first window [n]. `budget`: in highest limits of one GPU; `lowest`: level that all
        take."""
        ...

    def step(self, level: Ints, speed: Floats, draw: Floats, fresh: Bools) -> Ints:
        """After one window at `level`: what is wished for the next [n]. `speed` in the jobs' own units, `draw` in
        highest limits; NaN: not seen. `fresh`: another job came after that window."""
        ...


@dataclass
class CommonCap:
    """PI on the measured draw, in velocity form, so that it cannot wind up (K. Åström, T. Hägglund, "PID
    Controllers", 1995, section 3.5). A GPU whose draw is not seen counts at the cap."""

    gain: float = 0.4
    reset: float = 0.25
    margin: float = 0.03

    def start(self, lowest: int, gpus: int, budget: float) -> Ints:
        self.lowest, self.target = lowest, budget * (1.0 - self.margin) / gpus
        self.cap, self.before = self.target, 0.0
        return self._levels(gpus)

    def step(self, level: Ints, speed: Floats, draw: Floats, fresh: Bools) -> Ints:
        error = self.target - float(np.where(np.isfinite(draw), draw, LEVELS[level]).mean())
        self.cap += self.gain * (error - self.before) + self.reset * error
        self.cap = float(np.clip(self.cap, LEVELS[self.lowest], 1.0))
        self.before = error
        return self._levels(len(level))

    def _levels(self, gpus: int) -> Ints:
        level = int(np.searchsorted(LEVELS, self.cap + 1e-9, side="right")) - 1
        return np.full(gpus, np.clip(level, self.lowest, TOP))


@dataclass
class Believed:
    """The divider: `share.divide` on what is believed of each job, counting every GPU at its limit."""

    bank: Bank  # made with a `steep` of `share.RANGE`
    margin: float = MARGIN
    sharing: Sharing = field(default_factory=Sharing)

    def start(self, lowest: int, gpus: int, budget: float) -> Ints:
        self.budget = budget * (1.0 - self.margin)
        self.jobs = descent.Jobs.start(np.full(gpus, lowest))
        self.tried = np.zeros(gpus, dtype=np.int64)
        level = int(np.searchsorted(LEVELS, self.budget / gpus + 1e-9, side="right")) - 1
        return np.full(gpus, np.clip(level, lowest, TOP))

    def step(self, level: Ints, speed: Floats, draw: Floats, fresh: Bools) -> Ints:
        jobs, n = self.jobs, len(level)
        other = descent.changed(jobs, level, speed, draw, self.sharing.noise, 6.0) | fresh
        jobs.windows.forget(np.flatnonzero(other))
        jobs.strange[other] = self.tried[other] = 0
        good = np.flatnonzero(~fresh & (jobs.strange == 0))
        jobs.windows.add(good, level[good], speed[good], draw[good])
        highest = np.full(n, TOP)
        claims = Claims.of(self.bank, jobs.windows, level, jobs.lowest, highest, self.tried, self.sharing.noise)
        found, probed = divide(claims, np.full(n, 0.01), self.budget, self.sharing)
        self.tried[probed] += 1
        return found


def fill(time: Floats, cost: Floats, lowest: Ints, budget: float) -> Ints:
    """Levels [n] that maximise the least speed within the budget, then the next least, as far as it goes.

    `time`, `cost`: [n, n_levels]; the sum of the costs keeps within `budget` where it does at `lowest` [n]. Greedy
    on the slowest is exact, since speed and cost rise with the level.
    """
    n, rows = len(lowest), np.arange(len(lowest))
    level = lowest.copy()
    used = float(cost[rows, level].sum())
    open_ = level < TOP
    while open_.any():
        i = int(np.where(open_, 1.0 / time[rows, level], np.inf).argmin())
        more = float(cost[i, level[i] + 1] - cost[i, level[i]])
        if used + more > budget + 1e-12:
            open_[i] = False
            continue
        used += more
        level[i] += 1
        open_[i] = level[i] < TOP
    return level if n else lowest
