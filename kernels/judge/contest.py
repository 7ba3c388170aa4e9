"""The race: a candidate against its baselines on one case, slot by slot, round by round, with everything checked.

Slots are sets of input and output buffers with values of their own, more bytes together than L2 holds. In every
round one slot gets fresh values under its old pointers and a NaN-filled output; contestants run in random order,
each a secret number of calls over a secret order of slots; the candidate's output of the fresh slot is then held
against the oracle. So a timed call that does not compute is found out, whichever calls it chooses.

Tier A: the launch plan is replayed by a judge-owned process and timed by CUDA events; the judge's own clock over N
and 2N calls must not contradict it. Tier B: the callable runs in its own process; its time is the slope of the
judge's clock over N and 2N calls, and the copy into the judge's buffer is charged to it and not to the baseline.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from kernels.judge.buffers import View
from kernels.judge.correctness import compare, expected
from kernels.judge.environment import Nvml
from kernels.judge.examine import contiguous
from kernels.judge.inputs import Probe
from kernels.judge.plan import Plan
from kernels.judge.process import Process, order_inputs
from kernels.judge.replay import timed
from kernels.judge.timing import MIN_ROUNDS, WIDTH, Board, Rounds, rounds_disagree
from kernels.judge.verdict import Comparison, Reason, Refusal
from kernels.problem import Case, Inputs, Outputs, Problem

Callable_ = Callable[..., Any]
_PER_SLOT = 100  # buffer numbers: slot s, input i → 1000 + 100 s + i; outputs from 50


@dataclass(frozen=True)
class Pace:
    """How long to race: rounds are added until the interval is narrow or the limit is hit."""

    min_rounds: int = 15
    max_rounds: int = 60
    round_s: float = 0.004
    max_calls: int = 40
    max_slots: int = 8
    slot_bytes: int = 8 << 30
    energy_s: float = 0.0


QUICK = Pace(min_rounds=MIN_ROUNDS, max_rounds=MIN_ROUNDS, round_s=0.002, max_slots=3)
FULL = Pace(energy_s=0.25)


class Clock(Protocol):
    """Seconds of the judge's clock."""

    def __call__(self) -> float: ...


@dataclass
class Slot:
    """One set of buffers lent to the candidate's process, and its current values."""

    inputs: list[Any]  # View, or a Python number
    outputs: list[View]
    seed: int = 0
    values: Inputs = ()


class Track:
    """The slots of one case, in buffers lent to one process."""

    def __init__(
        self, process: Process, problem: Problem, case: Case, mutates: Sequence[int], count: int, device: str
    ):
        self.process, self.problem, self.case, self.device = process, problem, case, device
        self.mutates = tuple(mutates)
        sample = problem.inputs(case, "normal", 1, device)
        self.forms = [(tuple(x.shape), x.dtype) for x in problem.eager(sample)]
        self.slots: list[Slot] = []
        sizes: dict[int, int] = {}
        for number in range(count):
            base = 1000 + _PER_SLOT * number
            views: list[Any] = [
                contiguous(base + i, tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x
                for i, x in enumerate(sample)
            ]
            outputs = [contiguous(base + 50 + k, shape, dtype) for k, (shape, dtype) in enumerate(self.forms)]
            outputs = [] if self.mutates else outputs
            for view in (*(v for v in views if isinstance(v, View)), *outputs):
                sizes[view.index] = math.prod(view.shape) * getattr(torch, view.dtype).itemsize
            self.slots.append(Slot(views, outputs))
        process.lend(sizes)

    def refresh(self, number: int, seed: int) -> None:
        """Fresh values under the slot's old pointers, and an output that shows what is not written."""
        slot = self.slots[number]
        slot.seed = seed
        slot.values = self.problem.inputs(self.case, "normal", seed, self.device)
        for view, value in zip(slot.inputs, slot.values, strict=True):
            if isinstance(view, View) and isinstance(value, torch.Tensor):
                view.of(self.process.lender.payload(view.index)).copy_(value)
        for view in slot.outputs:
            self.process.lender.payload(view.index).fill_(0xFF)
        _settle(self.device)

    def restore(self, number: int) -> None:
        """Put an in-place candidate's inputs back."""
        slot = self.slots[number]
        for position in self.mutates:
            slot.inputs[position].of(self.process.lender.payload(slot.inputs[position].index)).copy_(
                slot.values[position]
            )
        _settle(self.device)

    def outputs(self, number: int) -> Outputs:
        slot = self.slots[number]
        chosen = slot.outputs or [slot.inputs[position] for position in self.mutates]
        return tuple(view.of(self.process.lender.payload(view.index)).clone() for view in chosen)

    def check(self, number: int) -> None:
        """The slot's outputs, as a timed call left them, against the oracle. Raises Refusal."""
        slot = self.slots[number]
        taken = self.outputs(number)
        probe = Probe("accuracy", self.case, "normal", (slot.seed,))
        finding = compare(expected(self.problem, probe, slot.seed, slot.values), taken)
        if finding.reason is not None:
            text = f"a timed call's output: {finding.reason}: {finding.detail} ({self.case})"
            raise Refusal(Reason.timed_output_wrong, text, "timing")
        for position, (view, value) in enumerate(zip(slot.inputs, slot.values, strict=True)):
            if isinstance(view, View) and isinstance(value, torch.Tensor) and position not in self.mutates:
                now = view.of(self.process.lender.payload(view.index))
                if not torch.equal(now.view(torch.uint8), value.contiguous().view(torch.uint8)):
                    raise Refusal(Reason.input_mutated, f"a timed call changed input {position}", "timing")


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
            return _median(timed([lambda n=n: self.call(n) for n in order], self.flush))  # type: ignore[misc]
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
        slots = [
            {"in": order_inputs(slot.inputs), "out": [view.to_json() for view in slot.outputs]}
            for slot in self.track.slots
        ]
        process.request({"op": "slots", "slots": slots}, process.limits.call_s, stage="timing")

    def seconds(self, order: Sequence[int]) -> float:
        process = self.track.process
        body = {"op": "time", "order": list(order), "flush_bytes": self.flush_bytes}
        answer = process.request(body, process.limits.call_s, stage="timing")
        return _median([float(value) for value in answer.body["seconds"]])

    def slope(self, order: Sequence[int]) -> float:
        """Seconds per call by the judge's own clock, without flushes."""
        return _slope(self.run, order, self.clock)

    def run(self, order: Sequence[int]) -> None:
        process = self.track.process
        process.request({"op": "run", "order": list(order)}, process.limits.call_s, stage="timing")


@dataclass
class Hosted:
    """Tier B: the candidate's callable in its own process, by the judge's clock alone."""

    track: Track
    clock: Clock = time.perf_counter
    name: str = "candidate"

    def seconds(self, order: Sequence[int]) -> float:
        return _slope(self.run, order, self.clock)

    def run(self, order: Sequence[int]) -> None:
        process = self.track.process
        calls = [
            {"inputs": order_inputs(slot.inputs), "outputs": [view.to_json() for view in slot.outputs]}
            for slot in (self.track.slots[number] for number in order)
        ]
        body = {"op": "batch", "calls": calls, "mutates": list(self.track.mutates)}
        process.request(body, process.limits.call_s, stage="timing")


def _slope(run: Callable[[Sequence[int]], None], order: Sequence[int], clock: Clock) -> float:
    """(time of 2N calls − time of N calls) / N, the smaller run first or second as the order's parity has it."""
    once, twice = list(order), [*order, *reversed(order)]
    took: dict[int, float] = {}
    for calls in (once, twice) if sum(order) % 2 else (twice, once):
        start = clock()
        run(calls)
        took[len(calls)] = clock() - start
    return max(took[len(twice)] - took[len(once)], 1e-9) / len(once)


def _median(values: Sequence[float]) -> float:
    return float(sorted(values)[len(values) // 2]) if len(values) % 2 else float(torch.tensor(values).median())


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@dataclass
class Race:
    """One candidate against baselines on one case."""

    candidate: Replayed | Hosted
    baselines: Sequence[Baseline]
    track: Track
    board: Board
    pace: Pace
    rng: random.Random
    nvml: Nvml | None = None
    solo_s: Mapping[str, float] = field(default_factory=dict)  # baseline → its time when nobody else lived
    rounds_done: int = 0

    def run(self) -> list[Comparison]:
        """Comparisons with every baseline. Raises Refusal."""
        track, case = self.track, str(self.track.case)
        for number in range(len(track.slots)):
            self._refresh(number)
        tier = "A" if isinstance(self.candidate, Replayed) else "B"
        calls = self._calls()
        seconds: dict[str, list[float]] = {c.name: [] for c in (self.candidate, *self.baselines)}
        floor_s = self.board.floor_s(
            track.problem.compulsory_bytes(track.case), track.problem.flops(track.case), track.case.dtype
        )
        comparisons: list[Comparison] = []
        while len(seconds["candidate"]) < self.pace.max_rounds:
            self._round(seconds, calls)
            done = self.rounds_done = len(seconds["candidate"])
            if done < self.pace.min_rounds:
                continue
            rounds = Rounds(seconds)
            comparisons = [rounds.compare(case, tier, b.name, floor_s) for b in self.baselines]
            if all(c.speedup.width <= WIDTH for c in comparisons):
                break
        self._physics(comparisons[0].candidate_s, floor_s)
        self._clocks(comparisons[0].candidate_s)
        for baseline in self.baselines:
            logs = Rounds(seconds).logs(baseline.name)
            alone = self.solo_s.get(baseline.name, math.nan)
            now = _median(seconds[baseline.name])
            if now > 1.3 * alone + 5e-6:
                text = f"{baseline.name} takes {now * 1e6:.1f} µs beside the candidate, {alone * 1e6:.1f} alone"
                raise Refusal(Reason.baseline_disturbed, text, "timing")
            if rounds_disagree(logs):
                raise Refusal(
                    Reason.rounds_disagree, f"the ratio to {baseline.name} drifts between rounds", "timing"
                )
        return self._energy(comparisons)

    def _refresh(self, number: int) -> None:
        self.track.refresh(number, self.rng.getrandbits(63))
        copies = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in self.track.slots[number].values)
        for baseline in self.baselines:
            baseline.values[number] = copies

    def _calls(self) -> int:
        """A secret number of calls a round, from a first look at how long one takes."""
        first = self.candidate.seconds([0, 1 % len(self.track.slots), 0])
        self.track.check(0) if not self.track.mutates else None
        usual = max(3, min(self.pace.max_calls, int(self.pace.round_s / max(first, 1e-6))))
        return self.rng.randint(usual, usual + max(2, usual // 4))

    def _round(self, seconds: dict[str, list[float]], calls: int) -> None:
        slots = len(self.track.slots)
        fresh = self.rng.randrange(slots)
        self._refresh(fresh)
        order = [self.rng.randrange(slots) for _ in range(calls - 1)]
        order.insert(self.rng.randrange(calls), fresh)
        if self.track.mutates:  # a second call on changed values would compute something else
            order = [n for n in order if n != fresh] + [fresh]
        field_: list[Contestant] = [self.candidate, *self.baselines]
        self.rng.shuffle(field_)
        hosted = isinstance(self.candidate, Hosted)
        for contestant in field_:
            if hosted and contestant is not self.candidate:
                self.track.process.pause()
            try:
                seconds[contestant.name].append(contestant.seconds(order))
            finally:
                if hosted:
                    self.track.process.resume()
        if self.track.mutates:
            self.track.restore(fresh)
            self.candidate.run([fresh])
        self.track.check(fresh)

    def _physics(self, candidate_s: float, floor_s: float) -> None:
        if candidate_s < 0.98 * floor_s:
            text = f"{candidate_s * 1e6:.2f} µs, but no kernel can take less than {floor_s * 1e6:.2f}"
            raise Refusal(Reason.faster_than_physics, text, "timing")

    def _clocks(self, candidate_s: float) -> None:
        """Tier A's events against the judge's clock."""
        if not isinstance(self.candidate, Replayed):
            return
        order = [self.rng.randrange(len(self.track.slots)) for _ in range(30)]
        slopes = sorted(self.candidate.slope(order) for _ in range(3))
        launch_s = 40e-6 * max(1, self.candidate.plan.launches)
        if slopes[0] > 2.0 * candidate_s + launch_s:
            text = f"events say {candidate_s * 1e6:.1f} µs a call, the judge's clock {slopes[0] * 1e6:.1f}"
            raise Refusal(Reason.clocks_disagree, text, "timing")

    def _energy(self, comparisons: list[Comparison]) -> list[Comparison]:
        """Joules per call of the candidate and of the best baseline, over long runs, idle power included."""
        if self.nvml is None or not self.pace.energy_s:
            return comparisons
        best = min(comparisons, key=lambda c: c.baseline_s)
        mine = self._joules(self.candidate.run, best.candidate_s)
        baseline = next(b for b in self.baselines if b.name == best.baseline)
        theirs = self._joules(baseline._run, best.baseline_s)
        return [
            replace(c, candidate_j=mine, baseline_j=theirs if c.baseline == best.baseline else math.nan)
            for c in comparisons
        ]

    def _joules(self, run: Callable[[Sequence[int]], None], per_call_s: float) -> float:
        assert self.nvml is not None
        count = max(10, min(20_000, int(self.pace.energy_s / max(per_call_s, 1e-6))))
        order = [n % len(self.track.slots) for n in range(count)]
        torch.cuda.synchronize()
        before = self.nvml.energy_j()
        run(order)
        torch.cuda.synchronize()
        return (self.nvml.energy_j() - before) / count


def slot_count(problem: Problem, case: Case, l2_bytes: int, pace: Pace) -> int:
    """Slots whose bytes together are four times L2, within the pace's limits."""
    each = max(1, problem.compulsory_bytes(case))
    return max(2, min(pace.max_slots, -(-4 * max(l2_bytes, 1 << 20) // each), max(2, pace.slot_bytes // each)))


def compile_modes(problem: Problem) -> Mapping[str, Callable_]:
    """Eager, torch.compile in both modes and the problem's libraries; compiled ones compile when called."""
    torch._dynamo.config.recompile_limit = 256
    return {
        "eager": problem.reference,
        "compile": torch.compile(problem.reference, dynamic=False),
        "compile_max": torch.compile(problem.reference, dynamic=False, mode="max-autotune-no-cudagraphs"),
        **problem.libraries,
    }
