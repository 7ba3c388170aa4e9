"""The canary: the job's own step decides which kernels stay, and whether the compiler launches them itself.

A GPU at its power limit drifts, and a compiled region costs seconds to make again, so one reading of each choice
proves nothing. Leave-one-out readings only propose sets; those sets are timed against torch alone in turns, and the
interval of their ratios decides.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nightshift.kernels.apply.job.canary.readings import (
    MIN_GAIN,
    Kernels,
    gain_us,
    group_of,
    less,
    named,
    on_trial,
    over_none,
    put_by_passes,
    use,
)
from nightshift.kernels.apply.job.names import PASSES
from nightshift.kernels.apply.job.start import as_rank_0, of_all_ranks
from nightshift.kernels.apply.job.state import STATE


def canary(
    step: Callable[[], Any],
    *,
    steps: int = 10,
    rounds: int = 3,
    turns: int = 4,
    min_gain: float = MIN_GAIN,
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

    Ends the canary of the job's first steps, and begins with all kernels that those had.

    settle_s: untimed steps before each reading. limit_s: fewer readings where all would take longer, but no fewer
    turns than give a limit. Each set's compiled regions are compiled once and held until the end. Rank 0's choice
    counts.
    """
    if STATE.first_steps is not None:
        STATE.first_steps.end("another canary was called")
    given = on_trial()
    seconds: dict[str, float] = {}
    reader = _Reading(step, steps, rounds, settle_s, limit_s, clock)

    def finish(kernels: Kernels) -> dict[str, float]:
        _use(kernels)
        STATE.gain = gain_us(seconds) if kernels else {}
        torch._dynamo.reset()  # what was compiled for other sets holds memory
        every = ", ".join(named(given)) or "none"
        STATE.log(f"nightshift kernels: canary keeps {', '.join(kernels) or 'none'} of {every}")
        return seconds

    STATE.open = False
    torch._dynamo.reset()
    with _many_compiled():
        every = _called(given, reader, seconds)
        if not every:
            return finish({})
        first = _faster_way(every, reader, seconds)
        sets, noise = _sets(every, first, reader, seconds, min_gain)
        readings = _in_turns(sets, turns, reader)
    seconds |= {label: statistics.median(values) for label, values in readings.items()}
    gains = over_none(readings)
    chosen = _smallest_near(sets, gains, min_gain)
    point, low = gains.get(chosen, (-math.inf, -math.inf))
    seconds |= {"turns": float(len(readings["none"])), "noise": noise}
    if chosen:
        seconds |= {"gain": math.expm1(point), "gain_low": math.expm1(low), "kept": seconds[chosen]}
    return finish(sets[chosen] if as_rank_0(low > 0.0 and point > min_gain) else {})


def _smallest_near(sets: Mapping[str, Kernels], gains: Mapping[str, tuple[float, float]], min_gain: float) -> str:
    """The label of the smallest set that is nearly as fast as the best, as rank 0 has it; empty where none was
    measured. A kernel that wins nothing measurable is a risk without a gain."""
    best = max(point for point, _ in gains.values())
    near = [label for label in sets if gains[label][0] >= best - min_gain and math.isfinite(best)]
    return str(as_rank_0(min(near, key=lambda label: len(sets[label]), default="")))


@dataclass
class _Reading:
    """Times the job's step with a set of kernels. spent: what each reading took so far (s)."""

    step: Callable[[], Any]
    steps: int
    rounds: int
    settle_s: float
    limit_s: float
    clock: Callable[[], float]
    spent: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def left_s(self) -> float:
        # rank 0's clock: ranks that counted for themselves would make different numbers of steps, and wait for ever
        return float(as_rank_0(self.limit_s - (self.clock() - self._began)))

    def timed(self, kernels: Kernels) -> float:
        """Seconds a step."""
        started = self.clock()
        _use(kernels)
        for _ in range(3):  # regions are compiled, and CUDA graphs recorded, in the first steps
            self.step()
        one_s = self._timed(2)
        for _ in range(as_rank_0(min(1000, math.ceil(self.settle_s / one_s)) if one_s > 0 else 0)):
            self.step()
        found = [self._timed(self.steps) for _ in range(self.rounds)]
        self.spent.append(self.clock() - started)
        return statistics.median(found)

    def tried(self, kernels: Kernels) -> float:
        """The same; infinite where the step does not run with these: that must not stop the job. Raises
        RuntimeError where the GPU's context went with it, after which nothing in this process can run."""
        try:
            return self.timed(kernels)
        except Exception as error:  # noqa: BLE001  a compiler that chokes on a kernel is a reason against it
            told, names = f"{type(error).__name__}: {str(error)[:200]}", ", ".join(named(kernels))
            STATE.log(f"nightshift kernels: no step with {names}: {told}")
            _forget_gradients()
            try:
                _wait()
            except RuntimeError as lost:
                why = f"a step with {names} lost the GPU's context ({lost}): apply without them"
                raise RuntimeError(why) from error
            return math.inf

    def _timed(self, count: int) -> float:
        _wait()
        started = self.clock()
        for _ in range(count):
            self.step()
        _wait()
        return (self.clock() - started) / count


def _called(given: Kernels, reader: _Reading, seconds: dict[str, float]) -> Kernels:
    """The kernels that a step calls, on any rank; those that none does are named in the log."""
    before = {name: kernel.uses for name, kernel in given.items()}
    seconds["all"] = reader.tried(given)
    if math.isfinite(seconds["all"]):
        called = {name for name, kernel in given.items() if kernel.uses > before[name]}
    else:
        called = set(given)  # the step broke off: which ones it would have called is not known
    if not called >= given.keys() - {PASSES}:
        why = ", ".join(f"{reason} ({count})" for reason, count in sorted(STATE.fallbacks.items()))
        idle = ", ".join(name for name in given if name not in called and name != PASSES)
        STATE.log(f"nightshift kernels: no step called {idle}; left to torch: {why or 'nothing'}")
    used = set().union(*of_all_ranks({group_of(name) for name in called}))
    return {name: kernel for name, kernel in given.items() if group_of(name) in used}


def _faster_way(every: Kernels, reader: _Reading, seconds: dict[str, float]) -> float:
    """Has the compiler launch the kernels, if it can and that is faster; a step's seconds then."""
    if all(kernel.traceable is None for kernel in every.values()):
        return seconds["all"]
    STATE.open = True
    seconds["open"] = reader.tried(every)
    STATE.open = as_rank_0(seconds["open"] < seconds["all"])
    return min(seconds["all"], seconds["open"])


def _sets(
    every: Kernels, first: float, reader: _Reading, seconds: dict[str, float], min_gain: float
) -> tuple[dict[str, Kernels], float]:
    """(the sets to race, the noise) of readings without each kernel. first: seconds with all, before them."""
    groups = sorted({group_of(name) for name in every})
    without = _without_each(every, groups, reader) if len(groups) > 1 else {}
    seconds |= {f"without {group}": value for group, value in without.items()}
    again = reader.tried(every) if without else first
    noise = max(min_gain, abs(again - first) / first if math.isfinite(again) and math.isfinite(first) else 0.0)
    useful, harmful = as_rank_0(_judged(without, groups, first, again, noise))
    sets: dict[str, Kernels] = {}
    for label, some in (
        ("useful", less(every, {*groups} - {*useful})),
        ("harmless", less(every, harmful)),
        ("whole", every),
    ):
        if some and some not in sets.values():
            sets[label] = some
    return sets, noise


def _without_each(every: Kernels, groups: Sequence[str], reader: _Reading) -> dict[str, float]:
    found: dict[str, float] = {}
    for group in groups:
        if (
            reader.spent and reader.left_s() < statistics.mean(reader.spent) * 10
        ):  # the readings in turns matter more
            break
        found[group] = reader.tried(less(every, {group}))
    return found


def _in_turns(sets: Mapping[str, Kernels], turns: int, reader: _Reading) -> dict[str, list[float]]:
    """Readings of each set and of torch alone ("none"), each turn beginning with another: a GPU that warms up
    favours no place in the order."""
    fewest = 1 + math.ceil(3 / len(sets))  # with fewer degrees of freedom than three no limit says much
    if math.isfinite(reader.limit_s):
        each_s = statistics.mean(reader.spent) * (len(sets) + 1) if reader.spent else math.inf
        turns = min(turns, int(reader.left_s() / each_s))
    readings: dict[str, list[float]] = {label: [] for label in ("none", *sets)}
    labels = list(readings)
    for turn in range(as_rank_0(max(fewest, turns))):
        for label in labels[turn % len(labels) :] + labels[: turn % len(labels)]:
            readings[label].append(reader.timed({}) if label == "none" else reader.tried(sets[label]))
    return readings


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


def _use(kernels: Kernels) -> None:
    """A region guards on the kernels that it asked for (`in_use`), so the one that was compiled with these is found
    again: compiling takes longer than all steps of a reading. On what a pass put into its graph it guards not."""
    now = on_trial() if STATE.passing else dict(STATE.kernels)
    changed = now.keys() ^ kernels.keys()
    use(kernels, PASSES in kernels)
    if put_by_passes({name: (now | kernels)[name] for name in changed}):
        torch._dynamo.reset()


def _many_compiled() -> Any:
    """A region holds one piece of code for each set. Past torch's own limit of 8 it would run in eager mode, and
    nothing would tell that from a slow set."""
    config = torch._dynamo.config
    return config.patch(recompile_limit=config.recompile_limit + 2 * len(STATE.kernels) + 4)


def _forget_gradients() -> None:
    """Of a step that broke off before it did so itself: those that CUDA graphs wrote lie in memory that goes with
    the compiled regions, and the next backward pass would add to them there."""
    for model in STATE.models:
        for parameter in model.parameters():
            parameter.grad = None


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
