"""The race: a candidate against its baselines on one case, slot by slot, round by round, with everything checked.

Slots are sets of input and output buffers with values of their own, more bytes together than L2 holds. Contestants
run in random order, each a secret number of calls over a secret order of slots; every call of the candidate finds
values that no earlier call has seen (`kernels.judge.probes.blend`) and a NaN-filled output, and what one slot's
last call left is then held against the oracle. So a timed call that does not compute is found out, whichever it is.

Tier A: the launch plan is replayed by a judge-owned process and timed by CUDA events; the judge's own clock over N
and 2N calls must not contradict it. Tier B: the callable runs in its own process; its time is the slope of the
judge's clock over N and 2N calls, and the copy into the judge's buffer is charged to it and not to the baseline.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from nightshift.kernels.judge.environment import Nvml
from nightshift.kernels.judge.race.contestants import CHAIN_S, Baseline, Contestant, Hosted, Replayed, graphed
from nightshift.kernels.judge.race.timing import MIN_ROUNDS, WIDTH, Board, Rounds, rounds_disagree
from nightshift.kernels.judge.race.track import Track
from nightshift.kernels.judge.verdict import Comparison, Reason, Refusal
from nightshift.kernels.problem import Case, Problem

# What the judge's clock may say of chained calls beyond the events' figure: those are of calls on a flushed L2, so
# slower if anything, and between two kernels of a graph pass one to two microseconds.
CHAINED, CHAINED_STEP_S = 1.3, 4e-6
_LONGER = 4
"""Times as many slow calls in the chain that decides, where a short one contradicts the events."""
_SLOPE_S = 0.12
"""Of a run's calls, of which the judge's clock asks 27 times: a deep convolution takes 50 ms a call."""
_COPIED_BYTES = 1 << 30
"""Inputs of fewer bytes are copied for baselines; larger ones they share with the judge."""


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
    check_every: int = 1  # rounds between checks of a timed output


QUICK = Pace(min_rounds=MIN_ROUNDS, max_rounds=MIN_ROUNDS, round_s=0.002, max_slots=3, check_every=3)
FULL = Pace(energy_s=0.25)


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
    label: str = ""  # what its comparisons call the case
    rounds_done: int = 0

    def run(self) -> list[Comparison]:
        """Comparisons with every baseline. Raises Refusal."""
        track, case = self.track, self.label or str(self.track.case)
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
        if any(any(baseline.late) for baseline in self.baselines):
            rounds = Rounds(seconds | {b.name: self._as_alone(b, seconds[b.name]) for b in self.baselines})
            comparisons = [rounds.compare(case, tier, b.name, floor_s) for b in self.baselines]
        self._physics(comparisons[0].candidate_s, floor_s)
        chained_s = self._clocks(comparisons[0].candidate_s)
        comparisons = [replace(c, chained_s=chained_s) for c in comparisons]
        for baseline in self.baselines:
            on_time = [not late for late in baseline.late] or [True] * self.rounds_done
            if 2 * sum(on_time) <= len(on_time):  # the host was busy, which says nothing of the candidate
                continue
            logs = list(itertools.compress(Rounds(seconds).logs(baseline.name), on_time))
            alone = self.solo_s.get(baseline.name, math.nan)
            now = statistics.median(itertools.compress(seconds[baseline.name], on_time))
            if now > 1.3 * alone + 5e-6:
                text = f"{baseline.name} takes {now * 1e6:.1f} µs beside the candidate, {alone * 1e6:.1f} alone"
                raise Refusal(Reason.baseline_disturbed, text, "timing")
            if rounds_disagree(logs):
                raise Refusal(
                    Reason.rounds_disagree, f"the ratio to {baseline.name} drifts between rounds", "timing"
                )
        return self._energy(comparisons)

    def _as_alone(self, baseline: Baseline, seconds: Sequence[float]) -> list[float]:
        """A round in which a busy host launched a baseline late counts with its time alone, where that is less."""
        alone = self.solo_s.get(baseline.name, math.inf)
        return [min(value, alone) if late else value for value, late in zip(seconds, baseline.late, strict=True)]

    def _refresh(self, number: int) -> None:
        self.track.refresh(number, self.track.truths.seed(self.rng))
        copies = self.track.slots[number].values
        size = sum(x.nbytes for x in copies if isinstance(x, torch.Tensor))
        if size < _COPIED_BYTES:  # of many GiB, a second copy beside the slots' would not fit
            copies = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in copies)
        for baseline in self.baselines:
            baseline.values[number] = copies

    def _calls(self) -> int:
        """A secret number of calls a round, from a first look at how long one takes."""
        self.candidate.run_spoiled([0])
        self.track.check(0)
        self._refresh(0)
        first = self.candidate.seconds([0, 1 % len(self.track.slots), 0])
        usual = max(3, min(self.pace.max_calls, int(self.pace.round_s / max(first, 1e-6))))
        return self.rng.randint(usual, usual + max(2, usual // 4))

    def _round(self, seconds: dict[str, list[float]], calls: int) -> None:
        """One number for each contestant; in a checked round a slot, of new values or old, is looked into."""
        slots = len(self.track.slots)
        chosen = self.rng.randrange(slots)
        checked = self.rng.randrange(self.pace.check_every) == 0 or not self.rounds_done
        if checked and self.rng.random() < 0.5:
            self._refresh(chosen)
        order = [self.rng.randrange(slots) for _ in range(calls - 1)]
        order.insert(self.rng.randrange(calls), chosen)
        field_: list[Contestant] = [self.candidate, *self.baselines]
        self.rng.shuffle(field_)
        hosted = isinstance(self.candidate, Hosted)
        for contestant in field_:
            beside = hosted and contestant is not self.candidate
            with self.track.process.paused() if beside else contextlib.nullcontext():
                seconds[contestant.name].append(contestant.seconds(order))
        if checked:
            self.track.check(chosen)

    def _physics(self, candidate_s: float, floor_s: float) -> None:
        if candidate_s < 0.98 * floor_s:
            text = f"{candidate_s * 1e6:.2f} µs, but no kernel can take less than {floor_s * 1e6:.2f}"
            raise Refusal(Reason.faster_than_physics, text, "timing")

    def _clocks(self, candidate_s: float) -> float:
        """Tier A's events, tier B's profile, against the judge's clock. Seconds of a chained call, or NaN."""
        if isinstance(self.candidate, Hosted):
            busy_s = self.candidate.busy_s
            if busy_s > 1.5 * candidate_s + 20e-6:  # more GPU time than passed: work went on after "done"
                text = f"the profiler says {busy_s * 1e6:.1f} µs a call, the judge's clock {candidate_s * 1e6:.1f}"
                raise Refusal(Reason.clocks_disagree, text, "timing")
            return math.nan
        slots, steps = len(self.track.slots), max(1, len(self.candidate.plan.steps))
        chained_s = math.nan
        if self.candidate.blends:  # a certificate may come of it
            calls = min(self.rng.randint(12, 20), max(3, int(CHAIN_S / max(candidate_s, 1e-9))))
            order = [self.rng.randrange(slots) for _ in range(calls)]
            chained_s = self.candidate.chained(order, candidate_s)
        if math.isfinite(chained_s):
            limit_s = CHAINED * candidate_s + CHAINED_STEP_S * steps
            if chained_s > limit_s:  # a busy host is late once in a chain, a slow call each time
                chained_s = self.candidate.chained(_LONGER * order, candidate_s)
            told_s = chained_s
        else:
            calls = min(30, max(3, int(_SLOPE_S / max(candidate_s, 1e-9))))
            order = [self.rng.randrange(slots) for _ in range(calls)]
            told_s = min(self.candidate.slope(order) for _ in range(3))
            limit_s = 2.0 * candidate_s + 40e-6 * steps
        if told_s > limit_s:
            text = f"events say {candidate_s * 1e6:.1f} µs a call, the judge's clock {told_s * 1e6:.1f}"
            raise Refusal(Reason.clocks_disagree, text, "timing")
        return chained_s

    def _energy(self, comparisons: list[Comparison]) -> list[Comparison]:
        """Joules per call of the candidate and of the best baseline, over long runs, idle power included."""
        if self.nvml is None or not self.pace.energy_s:
            return comparisons
        best = min(comparisons, key=lambda c: c.baseline_s)
        mine = self._joules(self.candidate.run, best.candidate_s)
        baseline = next(b for b in self.baselines if b.name == best.baseline)
        theirs = self._joules(graphed(baseline), best.baseline_s)
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


def slot_count(problem: Problem, case: Case, l2_bytes: int, pace: Pace, single_use: bool = False) -> int:
    """Slots whose bytes together are four times L2, within the pace's limits. `single_use`: a run uses each slot
    once, so there are as many as the limits allow."""
    each = max(1, problem.compulsory_bytes(case))
    if single_use:
        return max(2, min(pace.max_slots, pace.slot_bytes // each))
    return max(2, min(pace.max_slots, -(-4 * max(l2_bytes, 1 << 20) // each), max(2, pace.slot_bytes // each)))
