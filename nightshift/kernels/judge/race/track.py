"""The ground a race is run on: slots of buffers in the candidate's process, their values, and what must come out.

A slot is a set of input and output buffers with its own values. Before each timed call it is given a blend of
them with its neighbour's (`kernels.judge.probes.blend`), its outputs are spoiled, and after any call the judge may
look into it; reference outputs stay in the judge's memory.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

from nightshift.kernels.judge.host.process import Process, order_inputs
from nightshift.kernels.judge.probes.blend import PLAIN, blend_each, blended
from nightshift.kernels.judge.probes.buffers import View, give_back
from nightshift.kernels.judge.probes.correctness import Expected, compare
from nightshift.kernels.judge.probes.examine import contiguous
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.oracle import expected
from nightshift.kernels.judge.verdict import Reason, Refusal
from nightshift.kernels.problem import Case, Inputs, Outputs, Problem

_PER_SLOT, _OUTPUTS = 1 << 16, 1 << 15
"""Buffer numbers: slot s, input i → (s + 1) · 65,536 + i; outputs from 32,768 on. A model's parameters are
inputs."""


@dataclass
class Slot:
    """One set of buffers lent to the candidate's process, and its current values."""

    inputs: list[Any]  # View, or a Python number
    outputs: list[View]
    seed: int = 0
    values: Inputs = ()
    blend: int = PLAIN  # seed of what its buffers hold


class Truths:
    """Where a race's values and their oracle come from: made anew for each seed."""

    def seed(self, rng: random.Random) -> int:
        return rng.getrandbits(63)

    def inputs(self, problem: Problem, case: Case, seed: int, device: str) -> Inputs:
        """Tensors of the seed; numbers always those of seed 1, because a launch plan holds them."""
        made = problem.inputs(case, "normal", seed, device)
        if all(isinstance(x, torch.Tensor) for x in made):
            return made
        fixed = problem.inputs(case, "normal", 1, device)
        return tuple(x if isinstance(x, torch.Tensor) else y for x, y in zip(made, fixed, strict=True))

    def expected(self, problem: Problem, case: Case, seed: int, values: Inputs) -> Expected:
        probe = Probe("accuracy", case, "normal", (seed,), rows=problem.sampled_rows)
        return expected(problem, probe, seed, values)


POOL_BYTES = 8 << 30
"""What a search keeps of its oracles at most: those of a vocabulary's logits are many GiB each, in float64."""


class Pool(Truths):
    """A few secret seeds for a whole search: their oracles are computed once, which is most of a quick race's time.

    One case's at a time, and of those the latest within `POOL_BYTES`: what is left out is computed again. One
    thread computes, the others wait for what it finds. A full verdict never draws from it.
    """

    def __init__(self, seeds: Sequence[int], most_bytes: int = POOL_BYTES) -> None:
        self._seeds, self._most_bytes = list(seeds), most_bytes
        self._case: tuple[str, Case] | None = None
        self._kept: dict[tuple[str, int], Any] = {}
        self._one = threading.RLock()

    def seed(self, rng: random.Random) -> int:
        return rng.choice(self._seeds)

    def inputs(self, problem: Problem, case: Case, seed: int, device: str) -> Inputs:
        made: Inputs = self._found(problem, case, ("inputs", seed), lambda: super(Pool, self).inputs(
            problem, case, seed, device
        ))  # fmt: skip
        return made

    def expected(self, problem: Problem, case: Case, seed: int, values: Inputs) -> Expected:
        made: Expected = self._found(problem, case, ("expected", seed), lambda: super(Pool, self).expected(
            problem, case, seed, values
        ))  # fmt: skip
        return made

    def _found(self, problem: Problem, case: Case, key: tuple[str, int], make: Callable[[], Any]) -> Any:
        with self._one:
            if self._case != (problem.name, case):
                self._case = (problem.name, case)
                self._kept.clear()
            if key in self._kept:
                return self._kept[key]
            made = self._kept[key] = make()
            while len(self._kept) > 1 and sum(map(_kept_bytes, self._kept.values())) > self._most_bytes:
                del self._kept[next(iter(self._kept))]  # the oldest
            return made


def _kept_bytes(value: Any) -> int:
    """Of the tensors in a value, tuples and dataclasses looked into."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, tuple | list):
        return sum(map(_kept_bytes, value))
    return sum(_kept_bytes(getattr(value, one.name)) for one in fields(value)) if is_dataclass(value) else 0


class Track:
    """The slots of one case, in buffers lent to one process."""

    def __init__(
        self,
        process: Process,
        problem: Problem,
        case: Case,
        mutates: Sequence[int],
        count: int,
        device: str,
        truths: Truths,
    ) -> None:
        self.process, self.problem, self.case, self.device, self.truths = process, problem, case, device, truths
        self.mutates = tuple(mutates)
        self.races = 0
        self.kept = False  # whether the process keeps copies of the slots' values to blend
        sample = problem.inputs(case, "normal", 1, device)
        self.forms = [(tuple(x.shape), x.dtype) for x in problem.eager(sample)]
        self.slots: list[Slot] = []
        sizes: dict[int, int] = {}
        for number in range(count):
            base = _PER_SLOT * (number + 1)
            views: list[Any] = [
                contiguous(base + i, tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x
                for i, x in enumerate(sample)
            ]
            outputs = [contiguous(base + _OUTPUTS + k, shape, dtype) for k, (shape, dtype) in enumerate(self.forms)]
            outputs = [] if self.mutates else outputs
            for view in (*(v for v in views if isinstance(v, View)), *outputs):
                sizes[view.index] = math.prod(view.shape) * getattr(torch, view.dtype).itemsize
            self.slots.append(Slot(views, outputs))
        process.lend(sizes)

    def to_json(self) -> list[dict[str, Any]]:
        """The slots as an order names them."""
        return [
            {"in": order_inputs(slot.inputs), "out": [view.to_json() for view in slot.outputs]}
            for slot in self.slots
        ]

    def refresh(self, number: int, seed: int) -> None:
        """Fresh values under the slot's old pointers, and an output that shows what is not written."""
        slot, before = self.slots[number], self.slots[number - 1]
        slot.seed = seed
        slot.values = self.truths.inputs(self.problem, self.case, seed, self.device)
        self._fill(number, PLAIN)
        if before.blend != PLAIN:  # a blend with the values that are gone: nothing could be held against it
            self._fill(number - 1, PLAIN)
        _settle(self.device)
        if self.kept:
            self.process.request({"op": "keep", "slot": number}, self.process.limits.call_s, stage="timing")

    def blend(self, numbers: Iterable[int], rng: random.Random) -> None:
        """Give slots values that no earlier call has seen, from here (tier B; a replay does it between calls)."""
        for number in set(numbers):
            self._fill(number, rng.getrandbits(62) + 1)
        _settle(self.device)

    def beside(self, number: int) -> Slot:
        """The slot that a slot's values are blended with."""
        return self.slots[(number + 1) % len(self.slots)]

    def _fill(self, number: int, seed: int) -> None:
        slot, payload = self.slots[number], self.process.lender.payload
        slot.blend = seed
        lent = [view.of(payload(view.index)) if isinstance(view, View) else None for view in slot.inputs]
        blend_each(lent, slot.values, self.beside(number).values if seed != PLAIN else slot.values, seed)
        for view in slot.outputs:
            payload(view.index).fill_(0xFF)

    def outputs(self, number: int) -> Outputs:
        slot = self.slots[number]
        chosen = slot.outputs or [slot.inputs[position] for position in self.mutates]
        return tuple(view.of(self.process.lender.payload(view.index)).clone() for view in chosen)

    def check(self, number: int) -> None:
        """The slot's outputs, as its last call left them, against the oracle. Raises Refusal."""
        slot = self.slots[number]
        values = slot.values
        if slot.blend != PLAIN:
            values = blended(slot.values, self.beside(number).values, slot.blend)
        taken = self.outputs(number)
        give_back()
        if self.problem.accepts is not None:
            if wrong := self.problem.accepts([(values, taken)]):
                raise Refusal(Reason.timed_output_wrong, f"a timed call's output: {wrong} ({self.case})", "timing")
            return
        if slot.blend == PLAIN:
            want = self.truths.expected(self.problem, self.case, slot.seed, values)
        else:
            want = Truths().expected(self.problem, self.case, slot.seed, values)
        finding = compare(want, taken)
        if finding.reason is not None:
            text = f"a timed call's output: {finding.reason}: {finding.detail} ({self.case})"
            raise Refusal(Reason.timed_output_wrong, text, "timing")
        for position, (view, value) in enumerate(zip(slot.inputs, values, strict=True)):
            if isinstance(view, View) and isinstance(value, torch.Tensor) and position not in self.mutates:
                now = view.of(self.process.lender.payload(view.index))
                if not torch.equal(_bytes(now), _bytes(value)):
                    raise Refusal(Reason.input_mutated, f"a timed call changed input {position}", "timing")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)  # a single number has no dimension to split


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
