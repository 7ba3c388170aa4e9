"""What readings say of a set of kernels: how much faster than torch alone its steps are, and how sure that is.

The canary of a given step and the one of a job's first steps decide by these.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from nightshift.kernels.apply.job.names import PASSED, PASSES
from nightshift.kernels.apply.job.operators import open_all
from nightshift.kernels.apply.job.state import STATE, Kernel

Kernels = dict[str, Kernel]
MIN_GAIN = 0.002
"""A set that gains less is as good as none: the share of a step that no clock tells from noise."""
STUDENT = (
    (6.314, 2.92, 2.353, 2.132, 2.015, 1.943, 1.895),
    (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365),
    (19.081, 5.339, 3.74, 3.186, 2.912, 2.749, 2.642),
)
"""Student's t, one-sided, for 1 to 7 degrees of freedom, at 5 % over one, two and three sets that were tried."""


def on_trial() -> Kernels:
    """The kernels in use, and the passes without one as if they were another."""
    return {**STATE.kernels, PASSES: Kernel({"problem": PASSES, "certificate": ""}, lambda: None)}


def use(kernels: Kernels, passing: bool) -> None:
    """These alone, with the passes or without them."""
    STATE.passing = passing
    STATE.kernels.clear()
    STATE.kernels.update({name: kernel for name, kernel in kernels.items() if name != PASSES})
    open_all()


def named(kernels: Kernels) -> list[str]:
    """For people: the passes only where a step used them."""
    return [name for name, kernel in kernels.items() if name != PASSES or kernel.uses]


def put_by_passes(kernels: Kernels) -> bool:
    """Whether passes have a part in compiled regions, which guard on nothing of it."""
    return any(kernel.problem in PASSED for kernel in kernels.values()) or PASSES in named(kernels)


def group_of(name: str) -> str:
    return name.removesuffix("_backward")


def less(every: Kernels, groups: Collection[str]) -> Kernels:
    return {name: kernel for name, kernel in every.items() if group_of(name) not in groups}


def gain_us(seconds: Mapping[str, float]) -> dict[str, int]:
    """The log line's figures: a step with the set that stays, and how much longer torch alone takes (µs)."""
    kept = seconds["kept"] * 1e6
    return {
        "step_us": round(kept),
        "gain_us": round(kept * seconds["gain"]),
        "gain_low_us": round(kept * seconds["gain_low"]),
    }


def over_none(readings: dict[str, list[float]]) -> dict[str, tuple[float, float]]:
    """Of each set (log of how many times faster than "none", its lower limit): all were read once in each turn, and
    what neither set nor turn explains is the noise (a randomised block design, Fisher 1935)."""
    fit = {
        label: list(map(math.log, values)) for label, values in readings.items() if all(map(math.isfinite, values))
    }
    count, sets = len(fit["none"]), len(fit) - 1
    turns = [statistics.fmean(column) for column in zip(*fit.values(), strict=True)]
    means = {label: statistics.fmean(values) for label, values in fit.items()}
    middle = statistics.fmean(turns)
    rest = sum(
        (value - means[label] - turn + middle) ** 2
        for label, values in fit.items()
        for value, turn in zip(values, turns, strict=True)
    )
    freedom = sets * (count - 1)
    found = dict.fromkeys(readings, (-math.inf, -math.inf))
    if freedom:
        table = STUDENT[min(sets, len(STUDENT)) - 1]
        error = table[min(freedom, len(table)) - 1] * math.sqrt(2.0 * rest / freedom / count)
        found |= {label: (means["none"] - means[label], means["none"] - means[label] - error) for label in fit}
    del found["none"]
    return found


def over_torch(none_s: Sequence[float], kept_s: Sequence[float]) -> tuple[float, float]:
    """(log of how many times faster than torch alone, its 5 % limit) of readings in turns, torch's first, in s.

    What neither the set nor an even trend over the turns explains is the noise (least squares; Frisch and Waugh
    1933). Turns alone would take a machine that warms up for a gain, as the set is always second; were it first in
    every other turn, two readings would follow each other without a change between them, and their noise be one.
    """
    logs = [math.log(seconds) for turn in zip(none_s, kept_s, strict=True) for seconds in turn]
    when = [at - (len(logs) - 1) / 2.0 for at in range(len(logs))]

    def product(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    def flat(values: Sequence[float]) -> list[float]:
        middle = statistics.fmean(values)
        slope = product(when, values) / product(when, when)
        return [value - middle - slope * at for value, at in zip(values, when, strict=True)]

    change, logs = flat([-1.0, 1.0] * len(none_s)), flat(logs)
    width = product(change, change)
    gain = -product(change, logs) / width
    rest = sum((value + gain * by) ** 2 for value, by in zip(logs, change, strict=True))
    error = STUDENT[0][len(logs) - 4] * math.sqrt(rest / (len(logs) - 3) / width)
    return 2.0 * gain, 2.0 * (gain - error)
