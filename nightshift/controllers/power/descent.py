"""The heuristic that ships: go down while what is believed of the job says that it is safe and worth it.

Every window: believe (`belief.outlook`), then
  - up, where the present level is no longer believed within the budget;
  - down towards the level of least energy, a bounded step, only over levels whose slowdown is within the budget at
    `sure_down` deviations, and within one point more at `surer` of one who expects a cliff anywhere: however
    smooth the curve was so far, it may break off right below, and one window a level tells little of it; from the
    reference at most `leap` levels, those beyond the first only where they are within the budget at `leap_sure`;
  - to the reference for one window, where what is missing is a better reference;
  - to the highest limit for good, where the cap was seen to save nothing, and by more than a deviation.
A job that draws far less than the lowest limit is left alone: no cap can bind on it. A window that no believed
curve explains is a change of phase: everything about the job is forgotten and it starts again at the reference.

A workload that ran before brings what was seen of it, faded. After `again` windows at the reference it may go at
once to the level where its last run ended, if that is still believed safe. A run that does not behave as the one
before forgets it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nightshift.controllers.power.belief import TOP, Bank, Ints, LevelWindows, N, Noise, Outlook, outlook
from nightshift.controllers.power.curves import LEVELS, Floats

Bools = NDArray[np.bool_]
J = np.arange(N)[None]
MOST = 50.0
"""Windows that a level of the run before counts for at most."""
HALF = 80.0
"""Windows of a run after which the runs before count for half: they are for its start."""
CARD = 0.01
"""By how much the draws of two cards of one model differ at one limit (share)."""


@dataclass(frozen=True)
class DescentCare:
    """How carefully a job is taken down. Shares, levels and standard deviations."""

    budget: float = 0.05
    sure: float = 1.6  # and more for a larger budget (`sure_down`), which has room for it
    surer: float = 2.3
    step: int = 6
    up: int = 3  # levels of a step up
    leap: int = 6  # levels of the first step down from the reference, where they are safe at `leap_sure`
    leap_sure: float = 2.5
    first: int = 6  # windows at the reference before anything else
    again: int = 2  # the same for a workload that ran before
    faded: float = 0.5  # what a window of the run before counts for
    unlike: float = 3.5  # standard deviations between two runs of one name: another workload
    reference: float = 0.8  # windows at the reference: this times the root of all windows
    near: float = 0.5  # share of the budget from which the reference has to be known well
    worth: float = 0.003  # energy to be gained by a step
    hope: float = 0.5  # standard deviations of that gain added: exploring
    idle: float = 0.7  # a draw below this share of the lowest limit is left alone
    jump: float = 6.0  # standard deviations of a window that no curve explains
    noise: Noise = field(default_factory=Noise)

    @property
    def sure_down(self) -> float:
        """Standard deviations within the budget at which a level may be gone to."""
        return self.sure + 10.0 * min(self.budget, 0.05)

    @property
    def sure_to_stay(self) -> float:
        """The same of the present level: with less, up. Less than for going down, or noise moves it to and fro."""
        return self.sure_down - 0.5


@dataclass(eq=False)
class Jobs:
    """What is remembered of n jobs. `home`: the level believed best; a window may be spent at the reference
    instead. `past`: faded windows of the same workload's runs before, in their own unit of speed; `last`: where the
    last of them ended, TOP where there was none."""

    windows: LevelWindows
    home: Ints
    lowest: Ints
    looks: Ints
    given_up: Bools
    strange: Ints
    past: LevelWindows
    last: Ints

    @classmethod
    def start(cls, lowest: Ints) -> Jobs:
        n = len(lowest)
        zeros, top = np.zeros(n, dtype=np.int64), np.full(n, TOP)
        none = np.zeros(n, dtype=bool)
        return cls(LevelWindows.empty(n), top, lowest, zeros, none, zeros.copy(), LevelWindows.empty(n), top.copy())

    def again(self, care: DescentCare) -> Jobs:
        """The same workloads' next run."""
        new = Jobs.start(self.lowest)
        return replace(new, past=self.known.faded(care.faded, MOST), last=self.home.copy())

    @property
    def before(self) -> LevelWindows:
        """What the runs before say, less and less as this one runs."""
        return self.past.times(0.5 ** (self.looks / HALF))

    @property
    def known(self) -> LevelWindows:
        """All windows that are believed, in this run's unit of speed."""
        return self.windows.with_past(self.before)

    def forget(self, rows: Ints) -> None:
        """Everything that was learned of these jobs, as after a change of phase."""
        self.windows.forget(rows)
        self.past.forget(rows)
        self.home[rows], self.last[rows], self.looks[rows] = TOP, TOP, 0
        self.given_up[rows], self.strange[rows] = False, 0


def reachable(belief: Outlook, jobs: Jobs, care: DescentCare) -> tuple[Ints, Bools]:
    """Lowest level that may be gone to, one safe level after another [n], and whether `home` itself may be kept
    [n].

    This is what every proposal for a job is clipped by, whoever makes it.
    """
    home, lowest, last = jobs.home, jobs.lowest, jobs.last
    local = np.arange(len(home))
    deeper = home[:, None] - J
    safe = (belief.slowdown + care.sure_down * belief.slowdown_sd <= care.budget) & (
        belief.rough + care.surer * belief.rough_sd <= care.budget + 0.01
    )
    # no further at once than it has come so far, but for a first step that is all but certain, and what its
    # workload's last run has come
    known, starts = TOP - last, home == TOP
    furthest = np.where(starts, np.maximum(care.leap, known), np.clip(TOP - home, 1, care.step))
    safe &= deeper <= furthest[:, None]
    start = belief.slowdown + care.leap_sure * belief.slowdown_sd <= care.budget
    safe &= ~starts[:, None] | (deeper <= np.maximum(known, 1)[:, None]) | start
    safe &= lowest[:, None] <= J
    safe[:, TOP] = True
    down = np.where(home[:, None] >= J, safe, True)
    path = np.logical_and.accumulate(down[:, ::-1], 1)[:, ::-1]
    path |= home[:, None] < J
    here = belief.slowdown[local, home] + care.sure_to_stay * belief.slowdown_sd[local, home] <= care.budget
    low = np.where(path, J, TOP).min(1)
    return np.minimum(np.where(here, np.maximum(low, lowest), TOP), TOP), here | (home == TOP)


def changed(jobs: Jobs, level: Ints, speed: Floats, draw: Floats, noise: Noise, jump: float) -> Bools:
    """Windows [n] unlike what was seen at the same level, twice running: a change of phase."""
    local = np.arange(len(level))
    n = jobs.windows.count[local, level]
    known = n >= 3
    n = np.maximum(n, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        fast = np.abs(speed / (jobs.windows.speed[local, level] / n) - 1.0) / noise.speed
        drawn = np.abs(draw / (jobs.windows.draw[local, level] / n) - 1.0) / noise.draw
    odd = known & (np.maximum(fast, drawn) > jump)
    jobs.strange = np.where(odd, jobs.strange + 1, np.where(known, 0, jobs.strange))
    return np.asarray(jobs.strange >= 2)


def look(jobs: Jobs, level: Ints, speed: Floats, draw: Floats, bank: Bank, care: DescentCare) -> Outlook:
    """Takes one window of every job in (NaN: none) and says what is believed now."""
    fresh = changed(jobs, level, speed, draw, care.noise, care.jump)
    if fresh.any():
        jobs.forget(np.flatnonzero(fresh))
    every = np.arange(len(level))
    kept = jobs.strange == 0  # a window under suspicion teaches nothing
    jobs.windows.add(every[kept & ~fresh], level[kept & ~fresh], speed[kept & ~fresh], draw[kept & ~fresh])
    jobs.looks += 1
    if (other := unlike(jobs, care)).any():
        jobs.past.forget(np.flatnonzero(other))
    return outlook(bank, jobs.windows, jobs.home, care.noise, past=jobs.before)


def unlike(jobs: Jobs, care: DescentCare) -> Bools:
    """Jobs [n] that are not the workload that was remembered: at a level seen in both runs they draw otherwise, or
    levels cost otherwise against the reference, all levels taken together."""
    mine, theirs = jobs.windows, jobs.past
    both = (mine.count > 0) & (theirs.count > 0)
    both &= both[:, TOP:]
    rare = np.where(both, 1.0 / np.where(both, mine.count, 1.0) + 1.0 / np.where(both, theirs.count, 1.0), 1.0)
    (pace, draw), (pace_before, draw_before) = (
        [np.log(np.where(both, mean, 1.0)) for mean in w.means()] for w in (mine, theirs)
    )
    other = np.abs(draw - draw_before) > care.unlike * care.noise.draw * np.sqrt(rare) + CARD
    gap = pace - pace_before
    weigh = np.where(both, 1.0 / rare, 0.0)
    weigh[:, TOP] = 0.0
    whole = weigh.sum(1)
    apart = (weigh * (gap - gap[:, TOP:])).sum(1)
    sure = care.noise.speed * np.sqrt(whole + whole**2 * rare[:, TOP])
    return np.asarray((both & other).any(1) | (np.abs(apart) > care.unlike * sure))


def decide(jobs: Jobs, level: Ints, speed: Floats, draw: Floats, bank: Bank, care: DescentCare) -> Ints:
    """The level of every job for the next window [n], after one at `level`."""
    seen = look(jobs, level, speed, draw, bank, care)
    return choose(jobs, seen, level, care)


def choose(jobs: Jobs, belief: Outlook, level: Ints, care: DescentCare) -> Ints:
    known = jobs.known
    home, lowest, count = jobs.home, jobs.lowest, known.count
    local = np.arange(len(home))
    low, here = reachable(belief, jobs, care)
    hoped = np.where(
        (lowest[:, None] <= J) & (belief.slowdown <= care.budget), belief.gain + care.hope * belief.gain_sd, -1.0
    )
    target = hoped.argmax(1)
    references = count[:, TOP]
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = known.draw[:, TOP] / references
        at_home = np.where(count[local, home] > 0, count[local, home], 1.0)
        saved = 1.0 - known.draw[local, home] / at_home / drawn * (1.0 + belief.slowdown[local, home])
    binds = drawn > care.idle * LEVELS[lowest]
    worth = (hoped[local, target] > care.worth) & binds & ~jobs.given_up
    down, up = worth & (target < home), worth & (target > home)
    stride = np.where(home == TOP, np.maximum(care.leap, TOP - jobs.last), care.step)
    new = np.where(down, np.maximum.reduce([target, low, home - stride]), home)
    new = np.where(down, np.minimum(new, home), new)
    new = np.where(up, np.minimum(target, home + care.step), new)
    new = np.where(here, new, np.minimum(home + care.up, TOP))
    costly = belief.slowdown[local, home] > 0.3 * care.budget
    each = 1.0 / at_home + 1.0 / np.where(references > 0, references, 1.0)
    unsure = np.sqrt(care.noise.draw**2 * each + belief.slowdown_sd[local, home] ** 2)
    useless = (home < TOP) & (~down | costly) & (count[local, home] >= care.first) & (saved + unsure < care.worth)
    jobs.given_up |= useless
    new = np.where(jobs.given_up, TOP, new)
    ready = jobs.windows.count[:, TOP] >= np.where(jobs.last < TOP, care.again, care.first)
    jobs.home = np.where(ready, new, np.where(jobs.windows.count[:, TOP] > 0, home, TOP))
    blocked = (down & (new == home)) | (belief.slowdown[local, home] > care.near * care.budget)
    looked = jobs.windows.count[:, TOP]  # the past says nothing of this run's pace
    probe = blocked & here & (looked < care.reference * np.sqrt(jobs.looks)) & (level < TOP) & ready
    return np.asarray(np.where(probe | ~ready, TOP, jobs.home))
