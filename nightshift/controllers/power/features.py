"""What a power policy sees and may do. Seen are beliefs, never raw watts; done are bounded steps, never a limit."""

from __future__ import annotations

import numpy as np

from nightshift.controllers.policy_file import Interface
from nightshift.controllers.power.belief import TOP, Ints, Outlook
from nightshift.controllers.power.curves import LEVELS, Floats
from nightshift.controllers.power.descent import DescentCare, Jobs

STEPS = (-4, -2, -1, 0, 1, 3)
"""Levels; the last action is one window at the reference."""
AHEAD = (1, 2, 4, 8)
LONGEST = 120
"""Windows of a job in training; one that runs for longer looks as old as that, not like nothing ever seen."""
ACTIONS = ("down4", "down2", "down1", "stay", "up1", "up3", "reference")
PROBE = len(STEPS)
FEATURES = (
    "level",
    "above_lowest",
    "reference_draw",
    "budget",
    "slowdown",
    "slowdown_sd",
    "saved",
    "log_windows_reference",
    "log_windows_here",
    "log_looks",
    *(f"slowdown_{d}_below" for d in AHEAD),
    *(f"slowdown_sd_{d}_below" for d in AHEAD),
    *(f"gain_{d}_below" for d in AHEAD),
    "gain_2_above",
    "reachable",
)
INTERFACE = Interface("power", FEATURES, ACTIONS)


def features(jobs: Jobs, belief: Outlook, low: Ints, care: DescentCare) -> Floats:
    """[n, n_features]; NaN where there is no window at the reference yet. Slowdowns in budgets."""
    home, n = jobs.home, len(jobs.home)
    local = np.arange(n)
    count = jobs.windows.count
    known = np.minimum(count, LONGEST)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = jobs.windows.draw[:, TOP] / count[:, TOP]
        here = jobs.windows.draw[local, home] / count[local, home]
    slow, sd = belief.slowdown[local, home], belief.slowdown_sd[local, home]
    saved = np.nan_to_num(1.0 - here / drawn * (1.0 + slow))
    below = [np.maximum(home - d, jobs.lowest) for d in AHEAD]
    return np.column_stack(
        [
            LEVELS[home],
            LEVELS[home] - LEVELS[jobs.lowest],
            drawn,
            np.full(n, care.budget),
            slow / care.budget,
            sd / care.budget,
            saved,
            np.log1p(known[:, TOP]),
            np.log1p(known[local, home]),
            np.log1p(np.minimum(jobs.looks, LONGEST)),
            *(belief.slowdown[local, b] / care.budget for b in below),
            *(belief.slowdown_sd[local, b] / care.budget for b in below),
            *(belief.gain[local, b] for b in below),
            belief.gain[local, np.minimum(home + 2, TOP)],
            (home - low) / 10.0,
        ]
    )


def apply(jobs: Jobs, action: Ints, low: Ints | None, keep: np.ndarray, care: DescentCare) -> Ints:
    """Moves `home` by the steps and returns the level of the next window [n].

    `low` and `keep` are the shield's (`descent.reachable`); `low` None: unshielded. Before `care.first` windows at
    the reference a job stays there.
    """
    step = np.array([*STEPS, 0])[action]
    home = np.clip(jobs.home + step, jobs.lowest, TOP)
    if low is not None:
        home = np.where(keep, np.maximum(home, np.minimum(low, jobs.home)), np.minimum(jobs.home + care.up, TOP))
    ready = jobs.windows.count[:, TOP] >= care.first
    jobs.home = np.where(ready, home, TOP)
    return np.asarray(np.where((action == PROBE) | ~ready, TOP, jobs.home))
