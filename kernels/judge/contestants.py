"""Who runs in a race, and by which clock: baselines here, a launch plan or a callable in a process of its own.

Tier A replays the candidate's launch plan in a judge-owned process. Tier B calls the candidate's Python in its own
process and believes only the judge's clock. Baselines run in the judge's process, timed as their rival is.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kernels.judge.plan import Plan
from kernels.judge.replay import timed
from kernels.judge.track import Track
from kernels.problem import Inputs, Problem

Callable_ = Callable[..., Any]


class Clock(Protocol):
    """Seconds of the judge's clock."""

    def __call__(self) -> float: ...


class Contestant(Protocol):
    """Something that can be timed on a track's slots."""

    name: str

    def seconds(self, order: Sequence[int]) -> float:
        """Seconds per call, by whatever clock its tier has."""


@dataclass
class Baseline:
    """A trusted callable of the judge's own process, on copies of the slots that nobody else can touch."""

    name: str
    function: Callable_
    values: list[Inputs]
    flush: torch.Tensor | None  # None: the judge's clock (tier B and CPU)
    clock: Clock = time.perf_counter

    def call(self, number: int) -> None:
        with torch.no_grad():
            self.function(*self.values[number])

    def seconds(self, order: Sequence[int]) -> float:
        if self.flush is not None:
            return statistics.median(timed([lambda n=n: self.call(n) for n in order], self.flush))  # type: ignore[misc]
        return _slope(self._run, order, self.clock)

    def _run(self, order: Sequence[int]) -> None:
        for number in order:
            self.call(number)
        if self.values and any(isinstance(x, torch.Tensor) and x.is_cuda for x in self.values[0]):
            torch.cuda.synchronize()


@dataclass
class Replayed:
    """Tier A: the candidate's plan in a judge-owned process."""

    track: Track
    plan: Plan
    flush_bytes: int
    clock: Clock = time.perf_counter
    name: str = "candidate"

    def __post_init__(self) -> None:
        body, blob = self.plan.to_message()
        process = self.track.process
        process.request({"op": "plan", "plan": body}, process.limits.call_s, blob, "timing")
        process.request({"op": "slots", "slots": self.track.to_json()}, process.limits.call_s, stage="timing")

    def seconds(self, order: Sequence[int]) -> float:
        process = self.track.process
        body = {"op": "time", "order": list(order), "flush_bytes": self.flush_bytes}
        answer = process.request(body, process.limits.call_s, stage="timing")
        return statistics.median([float(value) for value in answer.body["seconds"]])

    def slope(self, order: Sequence[int]) -> float:
        """Seconds per call by the judge's own clock, without flushes."""
        return _slope(self.run, order, self.clock)

    def run(self, order: Sequence[int]) -> None:
        self._order(order, spoil=False)

    def run_spoiled(self, order: Sequence[int]) -> None:
        """Run with NaN left in shared memory before each call, untimed."""
        self._order(order, spoil=True)

    def _order(self, order: Sequence[int], spoil: bool) -> None:
        process = self.track.process
        body = {"op": "run", "order": list(order), "spoil": spoil}
        process.request(body, process.limits.call_s, stage="timing")


@dataclass
class Hosted:
    """Tier B: the candidate's callable in its own process, by the judge's clock alone."""

    track: Track
    clock: Clock = time.perf_counter
    name: str = "candidate"
    busy_s: float = math.nan  # GPU time per call, as the profiler in the candidate's process tells it
    kernels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        process = self.track.process
        process.request({"op": "slots", "slots": self.track.to_json()}, process.limits.call_s, stage="timing")

    def seconds(self, order: Sequence[int]) -> float:
        """Every slot once a run, each changed before it: what was remembered of a slot helps nobody."""
        first = list(dict.fromkeys(order))
        slots = first + [number for number in range(len(self.track.slots)) if number not in first]
        half = len(slots) // 2
        return _slope_of(self.run, slots[:half], slots, self.clock, self.track.nudge)

    def run_spoiled(self, order: Sequence[int]) -> None:
        self.run(order)

    def profile(self, rng: random.Random) -> None:
        """Kernel names and GPU time of a few calls. On the CPU, and where CUPTI does not run, nothing is known."""
        if self.track.device != "cuda":
            return
        process, slots = self.track.process, len(self.track.slots)
        for slot in range(slots):
            self.track.refresh(slot, self.track.truths.seed(rng))
        order = [rng.randrange(slots) for _ in range(8)]
        body = {"op": "profile", "order": order, "mutates": list(self.track.mutates)}
        answer = process.request(body, process.limits.call_s, stage="timing").body
        self.busy_s = float(answer.get("seconds") or math.nan)
        self.kernels = tuple(str(name) for name in answer.get("kernels", ()))[:16]

    def run(self, order: Sequence[int]) -> None:
        process = self.track.process
        body = {"op": "run", "order": list(order), "mutates": list(self.track.mutates)}
        process.request(body, process.limits.call_s, stage="timing")


def _slope(run: Callable[[Sequence[int]], None], order: Sequence[int], clock: Clock) -> float:
    """(time of 2N calls − time of N calls) / N, each the least of three, in alternating order.

    What a call costs once (a message, a synchronisation) cancels; the least of three sheds interruptions.
    """
    return _slope_of(run, list(order), [*order, *reversed(order)], clock)


def _slope_of(
    run: Callable[[Sequence[int]], None],
    once: Sequence[int],
    twice: Sequence[int],
    clock: Clock,
    before: Callable[[], None] = lambda: None,
) -> float:
    if len(twice) <= len(once):
        raise ValueError("slope: the longer run must be longer")
    took: dict[int, float] = {len(once): math.inf, len(twice): math.inf}
    for turn in range(3):
        for calls in (twice, once) if turn % 2 else (once, twice):
            before()
            start = clock()
            run(calls)
            took[len(calls)] = min(took[len(calls)], clock() - start)
    slope = (took[len(twice)] - took[len(once)]) / (len(twice) - len(once))
    return slope if slope > 0 else took[len(twice)] / len(twice)


def graphed(baseline: Baseline) -> Callable[[Sequence[int]], None]:
    """The baseline's calls from CUDA graphs: its energy is then the kernels', not that of waiting for Python."""
    graphs: dict[int, Any] = {}
    try:
        for number in range(len(baseline.values)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                baseline.call(number)
            graphs[number] = graph
    except RuntimeError:
        torch.cuda.synchronize()
        return baseline._run

    def run(order: Sequence[int]) -> None:
        for number in order:
            graphs[number].replay()

    return run


def compile_modes(problem: Problem) -> Mapping[str, Callable_]:
    """Eager, torch.compile in both modes and the problem's libraries; compiled ones compile when called."""
    torch._dynamo.config.recompile_limit = 256
    return {
        "eager": problem.reference,
        "compile": torch.compile(problem.reference, dynamic=False),
        "compile_max": torch.compile(problem.reference, dynamic=False, mode="max-autotune-no-cudagraphs"),
        **problem.libraries,
    }
