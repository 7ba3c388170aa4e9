"""A rack in simulation: jobs that come, change phase and end, a budget below what they draw, sensors that lie.

Wishes go through the real shield, `LOOKS` times a window: what others have to give up first is read back as given
up before it is given out. Without the shield (the usual rack controller) a wish is the next window's limit. Judged
on the truth: speeds against the same job at its highest limit, and the sum of the true draws against the budget at
every look. With the shield also what would be if all died right then.

Who gets how much of what is too little. Speeds are relative to the same job at its highest limit, so that jobs can
be compared.

    common cap   one limit for all, moved by a PI controller until the measured draw is at the budget
    divider      each job's own curve is believed from its windows (`belief`), the rack is shared by them (`share`)
    told         shares like the divider, and is told every curve, behind the same shield (`TrueShares`)
    oracle       knows every curve and every draw, and maximises the slowest job's speed (max-min); no shield

None of them is trusted with the budget: their wishes go through `shield`, like everybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.base import Permanent
from nightshift.controllers.lab.power.simulate import WINDOW_S, lowest_levels
from nightshift.controllers.power import descent, shield
from nightshift.controllers.power.belief import TOP, Bank, Ints
from nightshift.controllers.power.curves import LEVELS, Curve, Floats, on_levels
from nightshift.controllers.power.limits import MARGIN_SHARE
from nightshift.controllers.power.share import Claims, Sharing, divide, share_out

Bools = NDArray[np.bool_]
MARGIN = MARGIN_SHARE + 0.001
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


MAX_MW = 700_000
STUCK = 20
"""Windows for which a sensor sticks."""
LOOKS = 6
"""Looks per window: one each 5 s, the daemon's default."""
LONG = 20
"""Windows from which a job counts for the worst one."""


@dataclass(frozen=True)
class RackScore:
    """Of one run: the mean speed over job-windows, the worst job's mean speed, the share of windows whose true draw
    was over the budget, and of those in which the worst case (every lease ended, every order late) was."""

    mean: float
    worst: float
    over: float
    unsafe: float


@dataclass(frozen=True, eq=False)
class Scene:
    """What happens in one run, the same for every divider: `row` [windows, n] which curve each GPU runs, `fresh`
    [windows, n] where another job came, `job` [windows, n] its number, `scale` [windows, n] its speed."""

    time: Floats
    draw: Floats
    lowest: int
    budget: float
    row: Ints
    fresh: np.ndarray
    job: Ints
    scale: Floats
    stuck: int
    mute: int

    @classmethod
    def make(cls, curves: Sequence[Curve], share: float, seed: int, gpus: int, windows: int) -> Scene:
        """A job ends with a chance of 1 in 120 a window, and changes to another curve with one of 1 in 240. The
        budget is `share` of the mean draw at the highest limits. Raises Permanent where the GPUs' lowest limits
        alone are above it."""
        rng = np.random.default_rng(seed)
        time, draw = on_levels(curves)
        draw = np.minimum(draw, LEVELS)  # a limit is one: rough sweeps are a little above
        fresh = rng.random((windows, gpus)) < 1.0 / 120.0
        turns = fresh | (rng.random((windows, gpus)) < 1.0 / 240.0)
        fresh[0] = turns[0] = True
        since = np.maximum.accumulate(np.where(turns, np.arange(windows)[:, None], 0), axis=0)
        began = np.maximum.accumulate(np.where(fresh, np.arange(windows)[:, None], 0), axis=0)
        columns = np.arange(gpus)[None]
        row = rng.integers(0, len(curves), (windows, gpus))[since, columns]
        scale = rng.uniform(0.5, 200.0, (windows, gpus))[began, columns]
        lowest = int(lowest_levels(curves).max())
        budget = share * float(draw[row, TOP].sum(1).mean())
        if budget * (1.0 - MARGIN) < LEVELS[lowest] * gpus:
            raise Permanent(f"a budget of {share:.0%} is below what {gpus} GPUs take at their lowest limit")
        # one sensor that repeats itself and one that is silent: what any rack has sooner or later
        stuck, mute = (int(i) for i in rng.choice(gpus, 2, replace=False))
        return cls(time, draw, lowest, budget, row, fresh, began * gpus + columns, scale, stuck, mute)


def oracle(scene: Scene) -> RackScore:
    """Max-min on the true curves and draws, at once, with the whole budget."""
    n = scene.row.shape[1]
    lowest = np.full(n, scene.lowest)
    level = np.array([fill(scene.time[r], scene.draw[r], lowest, scene.budget) for r in scene.row])
    return _score(scene, level[:, None], 0.0)


@dataclass
class TrueShares:
    """Shares as the divider does, on the true curves and arrivals: what the shield leaves, belief apart."""

    scene: Scene
    margin: float = MARGIN
    sharing: Sharing = field(default_factory=Sharing)

    def start(self, lowest: int, gpus: int, budget: float) -> Ints:
        self.window, self.lowest = 0, np.full(gpus, lowest)
        return self._share()

    def step(self, level: Ints, speed: Floats, draw: Floats, fresh: Bools) -> Ints:
        return self.share_next()

    def share_next(self) -> Ints:
        self.window = min(self.window + 1, len(self.scene.row) - 1)
        return self._share()

    def _share(self) -> Ints:
        n, room = len(self.lowest), self.scene.budget * (1.0 - self.margin)
        time = self.scene.time[self.scene.row[self.window]]
        return share_out(time, np.full(n, 0.01), self.lowest, np.full(n, TOP), room, self.sharing)


def at_once(scene: Scene, sharing: Sharing) -> RackScore:
    """What `TrueShares` wishes, at once: what it costs that limits, not draws, have to add up to the budget,
    waiting apart."""
    told, levels = TrueShares(scene, sharing=sharing), []
    levels.append(told.start(scene.lowest, scene.row.shape[1], scene.budget))
    for _ in scene.row[1:]:
        levels.append(told.share_next())
    return _score(scene, np.array(levels)[:, None], 0.0)


def rack(scene: Scene, divider: Divider, seed: int, shielded: bool = True, noise: float = 0.01) -> RackScore:
    rng = np.random.default_rng(seed)
    windows, n = scene.row.shape
    settings, memory = shield.Settings(), shield.LimitMemory()
    usable = {"rack": shield.RackBudget("rack", int(scene.budget * MAX_MW), 0)}
    wish = divider.start(scene.lowest, n, scene.budget)
    enforced = np.full(n, round(LEVELS[scene.lowest] * MAX_MW))
    levels, unsafe, held = np.zeros((windows, LOOKS, n), dtype=np.int64), 0, 0.0
    for window in range(windows):
        level = np.clip(wish, scene.lowest, TOP)
        wishes = {f"G{i}": float(LEVELS[wish[i]] * MAX_MW) for i in range(n)}
        levels[window], settled = level, 0
        for look in range(LOOKS if shielded else 0):
            now_s = (window + look / LOOKS) * WINDOW_S
            gpus = [_gpu(i, int(enforced[i]), scene) for i in range(n)]
            memory = shield.observe(gpus, memory, {"node-0": True, "node-1": True}, now_s, settings)
            orders = shield.decide_step(usable, gpus, wishes, memory, now_s, settings)
            memory = orders.memory
            unsafe += shield.headroom_mw(usable["rack"], gpus, memory, settings) < 0
            enforced = np.array([memory.ordered_mw.get(f"G{i}", int(enforced[i])) for i in range(n)])
            level = np.searchsorted(LEVELS, enforced / MAX_MW + 1e-6, side="right") - 1
            levels[window, look:] = level
            settled = look if orders.limits_mw else settled
            if not orders.waiting:
                break
        t, p = scene.time[scene.row[window], level], scene.draw[scene.row[window], level]
        error = noise * (LOOKS / (LOOKS - settled)) ** 0.5  # seen is what came after the last change
        speed = scene.scale[window] / t * (1.0 + error * rng.normal(size=n))
        drawn = p * (1.0 + error * rng.normal(size=n))
        if window == windows // 3:
            held = float(drawn[scene.stuck]) * 0.5
        if windows // 3 <= window < windows // 3 + STUCK:
            drawn[scene.stuck], speed[scene.mute] = held, np.nan
        after = scene.fresh[window + 1] if window + 1 < windows else np.zeros(n, dtype=bool)
        wish = np.clip(divider.step(level, speed, drawn, after), 0, TOP)
    return _score(scene, levels, unsafe / windows / LOOKS)


def _gpu(i: int, enforced_mw: int, scene: Scene) -> shield.Gpu:
    low = round(LEVELS[scene.lowest] * MAX_MW)
    gpu = shield.Gpu(f"G{i}", f"node-{i // 8}", "rack", f"job-{i}", low, MAX_MW, MAX_MW, low, enforced_mw, 0.0)
    # not known, so nobody is locked out: with too little power for all, most are slowed past their budget
    return replace(gpu, slowdown=float("nan"))


def _score(scene: Scene, level: Ints, unsafe: float) -> RackScore:
    """`level`: [windows, looks, n]."""
    row = scene.row[:, None]
    speed = (1.0 / scene.time[row, level]).mean(1)
    over = float((scene.draw[row, level].sum(2) > scene.budget + 1e-9).mean())
    jobs, counts = np.unique(scene.job, return_counts=True)
    worst = min(float(speed[scene.job == job].mean()) for job in jobs[counts >= LONG])
    return RackScore(float(speed.mean()), worst, over, unsafe)
