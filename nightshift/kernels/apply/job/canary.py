"""The canary: the job's own step decides which kernels stay, and whether the compiler launches them itself.

A GPU at its power limit drifts, and a compiled region costs seconds to make again, so one reading of each choice
proves nothing. Leave-one-out readings only propose sets; those sets are timed against torch alone in turns, and the
interval of their ratios decides.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nightshift.kernels.apply.job.operators import open_all
from nightshift.kernels.apply.job.start import as_rank_0, of_all_ranks
from nightshift.kernels.apply.job.state import STATE

STUDENT = (
    (6.314, 2.92, 2.353, 2.132, 2.015, 1.943, 1.895),
    (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365),
    (19.081, 5.339, 3.74, 3.186, 2.912, 2.749, 2.642),
)
"""Student's t, one-sided, for 1 to 7 degrees of freedom, at 5 % over one, two and three sets that were tried."""


def canary(
    step: Callable[[], Any],
    *,
    steps: int = 10,
    rounds: int = 3,
    turns: int = 4,
    min_gain: float = 0.002,
    settle_s: float = 0.5,
    limit_s: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """After `apply`: keeps the set of kernels with which this job's own step is fastest. Seconds per step, by set.

    `step` runs one whole training step (it does train). First it is timed with all kernels, with all launched by
    the compiler ("open"), and, in the better of the two ways, without each (a kernel and its gradient's count as
    one), all kernels again at the end: how far that differs is the noise. Three sets come of it: those without
    which the step was slower, all less those without which it was faster, and all. They and torch alone ("none")
    are then timed `turns` times in turns. The best set stays, the smallest of those within `min_gain` of it, if the
    5 % limit of its ratio to torch, divided among the sets tried, is above 1; else none does. "gain" is that ratio
    less 1, "gain_low" its limit.

    Kernels that no step called, on no rank, are not kept: they are named in the log, with what the guards left to
    torch.

    settle_s: untimed steps before each reading. limit_s: fewer readings where all would take longer, but no fewer
    turns than give a limit. Compiled regions are compiled anew for each, one held at a time. Rank 0's choice
    counts.
    """
    given = every = dict(STATE.kernels)
    began = clock()
    spent: list[float] = []
    seconds: dict[str, float] = {}

    def timed(names: Sequence[str]) -> float:
        started = clock()
        _use({name: every[name] for name in names})
        for _ in range(3):
            step()
        one_s = _timed(step, 2, clock)
        for _ in range(as_rank_0(min(1000, math.ceil(settle_s / one_s)) if one_s > 0 else 0)):
            step()
        found = [_timed(step, steps, clock) for _ in range(rounds)]
        spent.append(clock() - started)
        return statistics.median(found)

    def tried(names: Sequence[str]) -> float:
        """Infinite where the step does not run with these: that must not stop the job. Raises RuntimeError where
        the GPU's context went with it, after which nothing in this process can run."""
        try:
            return timed(names)
        except Exception as error:  # noqa: BLE001  a compiler that chokes on a kernel is a reason against it
            told = f"{type(error).__name__}: {str(error)[:200]}"
            STATE.log(f"nightshift kernels: no step with {', '.join(names)}: {told}")
            _forget_gradients()
            try:
                _wait()
            except RuntimeError as lost:
                why = f"a step with {', '.join(names)} lost the GPU's context ({lost}): apply without them"
                raise RuntimeError(why) from error
            return math.inf

    def left_s() -> float:
        return float(as_rank_0(limit_s - (clock() - began)))

    def finish(kept: Sequence[str]) -> dict[str, float]:
        _use({name: every[name] for name in kept})
        STATE.log(f"nightshift kernels: canary keeps {', '.join(kept) or 'none'} of {', '.join(given) or 'none'}")
        return seconds

    STATE.open = False
    if not every:
        return finish(())
    before = {name: kernel.calls for name, kernel in every.items()}
    seconds["all"] = first = tried(tuple(every))
    called = {name for name, kernel in every.items() if kernel.calls > before[name]}
    if math.isfinite(first) and called != every.keys():
        why = ", ".join(f"{reason} ({count})" for reason, count in sorted(STATE.fallbacks.items()))
        idle = ", ".join(name for name in every if name not in called)
        STATE.log(f"nightshift kernels: no step called {idle}; left to torch: {why or 'nothing'}")
    used = of_all_ranks({_group(name) for name in (called if math.isfinite(first) else every)})
    every = {name: kernel for name, kernel in given.items() if _group(name) in set().union(*used)}
    if not every:
        return finish(())
    whole, groups = tuple(every), sorted({_group(name) for name in every})
    if any(kernel.traceable is not None for kernel in every.values()):
        STATE.open = True
        seconds["open"] = tried(whole)
        STATE.open = as_rank_0(seconds["open"] < seconds["all"])
        first = min(seconds["all"], seconds["open"])
    without: dict[str, float] = {}
    for group in groups if len(groups) > 1 else ():
        if spent and left_s() < statistics.mean(spent) * 10:  # the readings in turns matter more
            break
        without[group] = tried([name for name in every if _group(name) != group])
        seconds[f"without {group}"] = without[group]
    again = tried(whole) if without else first
    noise = max(min_gain, abs(again - first) / first if math.isfinite(again) and math.isfinite(first) else 0.0)
    useful, harmful = as_rank_0(_judged(without, groups, first, again, noise))
    told: dict[str, tuple[str, ...]] = {}
    for label, names in (
        ("useful", tuple(name for name in every if _group(name) in useful)),
        ("harmless", tuple(name for name in every if _group(name) not in harmful)),
        ("whole", whole),
    ):
        if names and names not in told.values():
            told[label] = names
    fewest = 1 + math.ceil(3 / len(told))  # with fewer degrees of freedom than three no limit says much
    if math.isfinite(limit_s):
        turns = min(turns, int(left_s() / (statistics.mean(spent) * (len(told) + 1)))) if spent else fewest
    readings: dict[str, list[float]] = {label: [] for label in ("none", *told)}
    labels = list(readings)
    for turn in range(as_rank_0(max(fewest, turns))):
        for label in labels[turn % len(labels) :] + labels[: turn % len(labels)]:
            readings[label].append(timed(()) if label == "none" else tried(told[label]))
    seconds |= {label: statistics.median(values) for label, values in readings.items()}
    gains = over_none(readings)
    best = max(point for point, _ in gains.values())
    near = [label for label in told if gains[label][0] >= best - min_gain and math.isfinite(best)]
    chosen = as_rank_0(min(near, key=lambda label: len(told[label]), default=""))
    point, low = gains.get(chosen, (-math.inf, -math.inf))
    seconds |= {"turns": float(len(readings["none"])), "noise": noise}
    if chosen:
        seconds |= {"gain": math.expm1(point), "gain_low": math.expm1(low), "kept": seconds[chosen]}
    return finish(told[chosen] if as_rank_0(low > 0.0 and point > min_gain) else ())


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


def _judged(
    without: dict[str, float], groups: Sequence[str], first: float, again: float, noise: float
) -> tuple[list[str], list[str]]:
    """(without which the step was slower, without which it was faster), against all kernels at the same time: what
    they took drifts from `first` to `again`."""
    useful, harmful = [], []
    for place, group in enumerate(groups):
        share = (place + 1) / (len(groups) + 1)
        here = first + share * (again - first) if math.isfinite(first + again) else min(first, again)
        if without.get(group, here) > (1.0 + noise) * here:
            useful.append(group)
        elif without.get(group, here) < (1.0 - noise) * here:
            harmful.append(group)
    return useful, harmful


def _group(name: str) -> str:
    return name.removesuffix("_backward")


def _use(kernels: dict[str, Any]) -> None:
    STATE.kernels.clear()
    STATE.kernels.update(kernels)
    open_all()
    torch._dynamo.reset()


def _forget_gradients() -> None:
    """Of a step that broke off before it did so itself: those that CUDA graphs wrote lie in memory that goes with
    the compiled regions, and the next backward pass would add to them there."""
    for model in STATE.models:
        for parameter in model.parameters():
            parameter.grad = None


def _timed(step: Callable[[], Any], count: int, clock: Callable[[], float]) -> float:
    """Seconds a step."""
    _wait()
    started = clock()
    for _ in range(count):
        step()
    _wait()
    return (clock() - started) / count


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
