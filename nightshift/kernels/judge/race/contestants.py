"""Who runs in a race, and by which clock: baselines here, a launch plan or a callable in a process of its own.

Tier A replays the candidate's launch plan in a judge-owned process. Tier B calls the candidate's Python in its own
process and believes only the judge's clock. Baselines run in the judge's process, timed as their rival is.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from nightshift.kernels.judge.host.replay import TRIES, timed
from nightshift.kernels.judge.launch_plan import Plan
from nightshift.kernels.judge.probes.blend import PART, PLAIN, blend_each, blend_into
from nightshift.kernels.judge.race.track import Track
from nightshift.kernels.problem import Inputs, Problem

Callable_ = Callable[..., Any]
_TURNS = 3
CHAIN_S, _CHAIN_CALLS = 0.012, 4096
"""How long a chain is by the candidate's own figure, and how long at most."""
_ROUND_S = 0.05
"""What a baseline's calls of one round may take. A reference of loops in Python is called once in a round, not
forty times because its rival is quick."""


class Contestant(Protocol):
    """Something that can be timed on a track's slots."""

    name: str

    def seconds(self, order: Sequence[int]) -> float:
        """Seconds per call, by whatever clock its tier has."""


@dataclass
class Stir:
    """Does before a baseline's timed call what a candidate's process does before one: blends the slot's values with
    the next slot's, part by part in one place. What is made is thrown away; but whatever that traffic leaves
    behind, in caches of addresses or in the memory itself, both then find alike."""

    blends: bool
    rooms: dict[tuple[int, torch.Size, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def __call__(self, first: Inputs, second: Inputs, seed: int) -> None:
        seed = seed if self.blends else PLAIN
        rooms: list[torch.Tensor | None] = [None] * len(first)
        pairs = [(i, x, y) for i, (x, y) in enumerate(zip(first, second, strict=True))
                 if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)]  # fmt: skip
        for i, x, _ in pairs:
            rooms[i] = self._room(i, x) if x.numel() <= PART else None
        blend_each(rooms, first, second, seed)
        for i, x, y in ((i, x, y) for i, x, y in pairs if rooms[i] is None):
            for one, other in zip(*(torch.split(v.reshape(-1), PART) for v in (x, y)), strict=True):
                blend_into(self._room(i, one), one, other, seed, i)

    def _room(self, position: int, like: torch.Tensor) -> torch.Tensor:
        key = position, like.shape, like.dtype
        if key not in self.rooms:
            self.rooms[key] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        return self.rooms[key]


@dataclass
class Baseline:
    """A trusted callable of the judge's own process, on copies of the slots that nobody else can touch."""

    name: str
    function: Callable_
    values: list[Inputs]
    flush: torch.Tensor | None  # None: the judge's clock (tier B and CPU)
    clock: Callable[[], float] = time.perf_counter
    stir: Stir | None = None  # None: alone, no candidate beside it
    alone_s: float = 0.0  # of one call, where that is known: bounds the calls of a round
    late: list[bool] = field(default_factory=list)  # of each round: the GPU waited for the host to launch it

    def call(self, number: int) -> Any:
        with torch.no_grad():
            return self.function(*self.values[number])

    def seconds(self, order: Sequence[int]) -> float:
        chosen = order[: max(1, int(_ROUND_S / max(self.alone_s, 1e-9)))]
        if self.flush is None:
            return _slope(self.run, chosen, self.clock)
        calls = [functools.partial(self.call, number) for number in chosen]
        before = [functools.partial(self._stir, number, turn + 1) for turn, number in enumerate(chosen)]
        # one that waits for the GPU itself is late however often it is tried
        tries = TRIES if len(chosen) == len(order) else 1
        seconds, on_time = timed(calls, self.flush, before if self.stir is not None else (), tries)
        self.late.append(not on_time)
        return statistics.median(seconds)

    def _stir(self, number: int, seed: int) -> None:
        assert self.stir is not None
        self.stir(self.values[number], self.values[(number + 1) % len(self.values)], seed)

    def run(self, order: Sequence[int]) -> None:
        for number in order:
            self.call(number)
        if self.values and any(isinstance(x, torch.Tensor) and x.is_cuda for x in self.values[0]):
            torch.cuda.synchronize()


@dataclass
class Replayed:
    """Tier A: the candidate's plan in a judge-owned process.

    blends: give every timed call values of its own; else (a search's races) a slot's last call has the slot's.
    """

    track: Track
    plan: Plan
    flush_bytes: int
    clock: Callable[[], float] = time.perf_counter
    blends: bool = True
    rng: random.Random = field(default_factory=random.SystemRandom)
    name: str = "candidate"

    def __post_init__(self) -> None:
        body, blob = self.plan.to_message()
        process = self.track.process
        process.request({"op": "plan", "plan": body}, process.limits.call_s, blob, "timing")
        process.request({"op": "slots", "slots": self.track.to_json()}, process.limits.call_s, stage="timing")
        self.track.kept = True

    def seconds(self, order: Sequence[int]) -> float:
        process, slots = self.track.process, self.track.slots
        last = {slot: number for number, slot in enumerate(order)}
        for attempt in range(TRIES):
            seeds = [self.rng.getrandbits(62) + 1 for _ in order]  # others each time: no call sees values again
            if not self.blends:
                for number in last.values():
                    seeds[number] = PLAIN
            body = {"op": "time", "order": list(order), "seeds": seeds, "flush_bytes": self.flush_bytes}
            answer = process.request({**body, "wait": 2**attempt}, process.limits.call_s, stage="timing").body
            for slot, number in last.items():
                slots[slot].blend = seeds[number]
            if answer["on_time"] is True:
                break
        return statistics.median([float(value) for value in answer["seconds"]])

    def slope(self, order: Sequence[int]) -> float:
        """Seconds per call by the judge's own clock, without flushes."""
        return _slope(self.run, order, self.clock)

    def chained(self, order: Sequence[int], per_call_s: float) -> float:
        """Seconds per call by the judge's clock, calls queued back to back as one CUDA graph, each on outputs that
        are spoiled first; what the spoiling alone takes is deducted. NaN where nothing can be captured.

        CUDA's events lie in memory that a kernel of this process might reach, the judge's clock does not. It runs
        over the whole chain, so that no call can be slow where it does not count.
        """
        times = max(1, int(min(CHAIN_S / max(per_call_s, 1e-9), _CHAIN_CALLS) / len(order)))
        looked = self.rng.randrange(_TURNS)
        shortest = {}
        for empty in (False, True) if self.track.slots[0].outputs else (False,):
            if not self._chain(order, 1, empty):
                return math.nan
            took = []
            for turn in range(_TURNS):
                start = self.clock()
                self._chain(order, times, empty)
                took.append(self.clock() - start)
                if turn == looked and not empty and not self.track.mutates:
                    self.track.check(self.rng.choice(list(order)))
            shortest[empty] = min(took)
        return (shortest[False] - shortest.get(True, 0.0)) / (times * len(order))

    def _chain(self, order: Sequence[int], times: int, empty: bool) -> bool:
        process = self.track.process
        body = {"op": "chain", "order": list(order), "times": times, "empty": empty}
        return process.request(body, process.limits.call_s, stage="timing").body.get("captured") is True

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
    clock: Callable[[], float] = time.perf_counter
    rng: random.Random = field(default_factory=random.SystemRandom)
    name: str = "candidate"
    busy_s: float = math.nan  # GPU time per call, as the profiler in the candidate's process tells it
    kernels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        process = self.track.process
        process.request({"op": "slots", "slots": self.track.to_json()}, process.limits.call_s, stage="timing")

    def seconds(self, order: Sequence[int]) -> float:
        """Runs over N and over 2N slots in turn, each slot once a run with values of its own; after one of the
        runs, nobody knows which, one of its outputs is held against the oracle. The slope of the medians."""
        first = list(dict.fromkeys(order))
        slots = first + [number for number in range(len(self.track.slots)) if number not in first]
        half = len(slots) // 2
        looked = self.rng.randrange(2 * _TURNS)

        def look(number: int, chosen: Sequence[int]) -> None:
            if number == looked:
                self.track.check(self.rng.choice(list(chosen)))

        return _slope_of(self.run, slots[:half], slots, self.clock, self._blend, look)

    def _blend(self, chosen: Sequence[int]) -> None:
        """New values while the candidate is stopped: no thread of its own sees them before the clock runs."""
        with self.track.process.paused():
            self.track.blend(chosen, self.rng)

    def run_spoiled(self, order: Sequence[int]) -> None:
        self.run(order)

    def profile(self, rng: random.Random, alone: AbstractContextManager[None]) -> None:
        """Kernel names and GPU time of a few calls, while `alone` is entered: beside others each kernel takes
        longer. On the CPU, and where CUPTI does not run, nothing is known."""
        if self.track.device != "cuda":
            return
        process, slots = self.track.process, len(self.track.slots)
        for slot in range(slots):
            self.track.refresh(slot, self.track.truths.seed(rng))
        order = [rng.randrange(slots) for _ in range(8)]
        body = {"op": "profile", "order": order, "mutates": list(self.track.mutates)}
        with alone:
            answer = process.request(body, process.limits.call_s, stage="timing").body
        told, names = answer.get("seconds"), answer.get("kernels")
        self.busy_s = float(told) if isinstance(told, int | float) and told > 0 else math.nan
        self.kernels = tuple(str(name)[:200] for name in names)[:64] if isinstance(names, list) else ()

    def run(self, order: Sequence[int]) -> None:
        process = self.track.process
        body = {"op": "run", "order": list(order), "mutates": list(self.track.mutates)}
        process.request(body, process.limits.call_s, stage="timing")


def _slope(run: Callable[[Sequence[int]], None], order: Sequence[int], clock: Callable[[], float]) -> float:
    """(time of 2N calls − time of N calls) / N, each the median of three, in alternating order.

    What a call costs once (a message, a synchronisation) cancels; the median sheds an interruption, and nobody can
    make one run fast and have the others forgotten.
    """
    return _slope_of(run, list(order), [*order, *reversed(order)], clock)


def _slope_of(
    run: Callable[[Sequence[int]], None],
    once: Sequence[int],
    twice: Sequence[int],
    clock: Callable[[], float],
    before: Callable[[Sequence[int]], None] = lambda chosen: None,
    after: Callable[[int, Sequence[int]], None] = lambda number, chosen: None,
) -> float:
    if len(twice) <= len(once):
        raise ValueError("slope: the longer run must be longer")
    took: dict[int, list[float]] = {len(once): [], len(twice): []}
    number = 0
    for turn in range(_TURNS):
        for calls in (twice, once) if turn % 2 else (once, twice):
            before(calls)
            start = clock()
            run(calls)
            took[len(calls)].append(clock() - start)
            after(number, calls)
            number += 1
    short, long = (statistics.median(took[len(calls)]) for calls in (once, twice))
    slope = (long - short) / (len(twice) - len(once))
    return slope if slope > 0 else long / len(twice)


def graphed(baseline: Baseline) -> Callable[[Sequence[int]], None]:
    """The baseline's calls from CUDA graphs: its energy is then the kernels', not that of waiting for Python.

    Where one cannot be captured (it synchronises), its calls are made one by one.
    """
    graphs: dict[int, Any] = {}
    before = torch.cuda.current_stream()
    try:
        for number in range(len(baseline.values)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                baseline.call(number)
            graphs[number] = graph
    except RuntimeError:
        torch.cuda.set_stream(before)
        _end_failed_capture()
        return baseline.run

    def run(order: Sequence[int]) -> None:
        for number in order:
            graphs[number].replay()

    return run


def _end_failed_capture() -> None:
    """What torch leaves undone when a capture fails (2.11 to 2.13, `CUDAGraph::capture_end` raises before it ends
    the generators' part): the default generator would think itself in a capture for ever, and refuse every draw."""
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    fresh = torch.Generator(device=generator.device)
    fresh.manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def baseline_modes(problem: Problem, device: str) -> Mapping[str, Callable_]:
    """Eager, torch.compile in both modes and the problem's libraries; compiled ones compile when called.

    On the CPU, where nothing is certified, eager alone.
    """
    if device != "cuda":
        return {"eager": problem.reference}
    torch._dynamo.config.recompile_limit = 256
    forward, made = problem.forward or (problem, _itself)
    compiled = {
        "compile": torch.compile(forward.reference, dynamic=False),
        "compile_max": torch.compile(forward.reference, dynamic=False, mode="max-autotune-no-cudagraphs"),
    }
    return {"eager": problem.reference, **{n: made(f) for n, f in compiled.items()}, **problem.libraries}


def _itself(function: Callable_) -> Callable_:
    return function
