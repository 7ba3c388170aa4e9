"""The judge of schedules: legal by dependences, equal to the C text to the bit, and timed.

Every legal schedule is run on a small copy of the nest, of sizes that no tile divides, with normal random numbers
and without contraction of products and sums, and then in full size; all arrays must be equal to the bit. What is
timed is the library that was compared. Values in full size are small integers, so that fused multiply-adds change
nothing.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nightshift.kernels.judge.race.timing import interval
from nightshift.kernels.judge.verdict import Interval
from nightshift.kernels.loops import code, dependence
from nightshift.kernels.loops.nest import LoopNest, parse
from nightshift.kernels.loops.schedule import ActionError, applied
from nightshift.kernels.schemes.native import OPTIMISED, CompilerError, build, close

Arrays = dict[str, NDArray[np.float64]]

SMALL = 23
"""Largest size of the small copy; other sizes keep their proportions."""
ROUNDS = 9
_EXACT = ("-O2", "-ffp-contract=off")
POLLY = ("-O3", "-march=native", "-mllvm", "-polly")
"""clang's polyhedral optimiser; with threads also `-mllvm -polly-parallel`."""


@dataclass(frozen=True)
class Attempt:
    """What became of a list of actions. status: legal and equal ("timed"), or why not ("malformed", "illegal",
    "wrong", "refused" by the compiler). seconds: the median; speedup: over the C text by the same compiler."""

    actions: tuple[str, ...]
    status: str
    detail: str = ""
    seconds: float = math.nan
    speedup: float = math.nan

    def text(self) -> str:
        """The verdict as a proposer reads it."""
        if self.status != "timed":
            return f"{self.status}: {self.detail}"
        return (
            f"legal, equal to the bit, {self.seconds * 1e3:.2f} ms: {self.speedup:.2f} times as fast as the C text"
        )


class Built:
    """A compiled nest with its arrays in this process."""

    def __init__(self, nest: LoopNest, source: str, flags: Sequence[str], command: str = "") -> None:
        export = ", ".join(f"(double *){name}" for name, _ in nest.arrays)
        self._library = build(f"{source}\ndouble *arrays_of_nest[] = {{ {export} }};\n", tuple(flags), command)
        self._pointers = (ctypes.c_void_p * len(nest.arrays)).in_dll(self._library, "arrays_of_nest")
        self._nest = nest

    def close(self) -> None:
        """Give the arrays' memory back. Nothing may be called after it."""
        close(self._library)

    def put(self, arrays: Arrays) -> None:
        for pointer, (name, _) in zip(self._pointers, self._nest.arrays, strict=True):
            ctypes.memmove(pointer, arrays[name].ctypes.data, arrays[name].nbytes)

    def get(self) -> Arrays:
        out = {name: np.empty(lengths) for name, lengths in self._nest.arrays}
        for pointer, (name, _) in zip(self._pointers, self._nest.arrays, strict=True):
            ctypes.memmove(out[name].ctypes.data, pointer, out[name].nbytes)
        return out

    def run(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Seconds of one call."""
        began = clock()
        self._library.kernel()
        return clock() - began


def small(nest: LoopNest) -> LoopNest:
    """The nest with sizes from 5 to SMALL, in the order that the full ones have, and odd."""
    ranks = sorted({size for _, size in nest.sizes})
    sizes = {name: min(size, max(5, SMALL - 6 * (len(ranks) - 1 - ranks.index(size)))) for name, size in nest.sizes}
    return parse(nest.name, nest.source, sizes)


def values(nest: LoopNest, seed: int, whole: bool) -> Arrays:
    """Values for every array: small integers, or normal random numbers."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-3, 4, lengths).astype(np.float64) if whole else rng.standard_normal(lengths)
        for name, lengths in nest.arrays
    }


def _same(a: Arrays, b: Arrays) -> str:
    """The first array that differs; empty where none does. −0 is not +0 here."""
    return next((name for name in a if a[name].tobytes() != b[name].tobytes()), "")


@dataclass
class Court:
    """Judges schedules of one nest. threads: of parallel loops."""

    nest: LoopNest
    threads: int = 1
    clock: Callable[[], float] | None = None
    seed: int = 1
    _known: dict[str, Attempt] = field(default_factory=dict)

    @property
    def flags(self) -> tuple[str, ...]:
        return (*OPTIMISED, "-fopenmp" if self.threads > 1 else "-fopenmp-simd")

    @cached_property
    def baseline(self) -> Built:
        return Built(self.nest, self.nest.source, OPTIMISED)

    @cached_property
    def inputs(self) -> Arrays:
        return values(self.nest, self.seed, whole=True)

    @cached_property
    def expected(self) -> Arrays:
        self.baseline.put(self.inputs)
        self.baseline.run()
        return self.baseline.get()

    def time(self, built: Built) -> float:
        """One call on fresh inputs: seconds of this thread, so that others on the machine count little; of a
        parallel one, of the wall."""
        built.put(self.inputs)
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        return built.run(self.clock or (time.thread_time if self.threads == 1 else time.perf_counter))

    @cached_property
    def baseline_s(self) -> float:
        return min(self.time(self.baseline) for _ in range(3))

    def attempt(self, actions: Sequence[str]) -> Attempt:
        """The verdict on a list of actions; the same list is judged once."""
        key = "\n".join(actions)
        if key not in self._known:
            self._known[key] = self._attempt(tuple(actions))
        return self._known[key]

    def _attempt(self, actions: tuple[str, ...]) -> Attempt:
        try:
            schedule = applied(self.nest, actions)
            with dependence.bounded():
                if fault := dependence.fault_of(self.nest, schedule):
                    return Attempt(actions, "illegal", fault)
                source = code.source_of(self.nest, schedule)
            with dependence.bounded():
                if fault := differs(small(self.nest), actions, self.seed, self.threads):
                    return Attempt(actions, "wrong", fault)
            built = Built(self.nest, source, self.flags)
        except ActionError as error:
            return Attempt(actions, "malformed", str(error))
        except (CompilerError, dependence.library().Error) as error:
            return Attempt(actions, "refused", str(error))
        times = [self.time(built)]
        name = _same(self.expected, built.get())
        if times[0] < 2 * self.baseline_s:
            times += [self.time(built) for _ in range(2)]
        built.close()
        if name:
            return Attempt(actions, "wrong", f"array {name} differs from the C text's")
        best = min(times)
        return Attempt(actions, "timed", "", best, self.baseline_s / best)

    def race(self, actions: Sequence[str], rivals: dict[str, Built], rounds: int = ROUNDS) -> dict[str, Interval]:
        """Speed-up over each, from paired rounds: (low, point, high) at the judge's confidence."""
        mine = Built(self.nest, code.source_of(self.nest, applied(self.nest, actions)), self.flags)
        logs: dict[str, list[float]] = {name: [] for name in rivals}
        rng = np.random.default_rng(self.seed)
        for _ in range(rounds):
            seconds = {}
            for name in rng.permutation(["", *rivals]):
                seconds[str(name)] = min(self.time(rivals[name] if name else mine) for _ in range(2))
            for name in rivals:
                logs[name].append(math.log(seconds[name] / seconds[""]))
        return {name: interval(each) for name, each in logs.items()}


def differs(nest: LoopNest, actions: Sequence[str], seed: int, threads: int = 1) -> str:
    """Which array a schedule computes otherwise than the C text, to the bit, on random numbers; empty: none.
    It asks no dependence analysis: an illegal schedule is run as well."""
    flags = (*_EXACT, "-fopenmp") if threads > 1 else _EXACT
    start = values(nest, seed, whole=False)
    results = []
    for source in (nest.source, code.source_of(nest, applied(nest, actions))):
        built = Built(nest, source, flags)
        built.put(start)
        built.run()
        results.append(built.get())
        built.close()
    name = _same(*results)
    return f"array {name} differs from the C text's" if name else ""


def polly(nest: LoopNest, command: str, threads: int) -> Built:
    """The C text by clang with Polly. Raises CompilerError."""
    parallel = ("-mllvm", "-polly-parallel", "-fopenmp", "-lgomp") if threads > 1 else ()
    return Built(nest, nest.source, (*POLLY, *parallel), command)


def actions_of(text: str) -> list[str]:
    """The actions in a reply: one a line, between lines of three backticks where there are such."""
    fenced = re.search(r"```[a-z]*\n(.*?)```", text, re.DOTALL)
    lines = (fenced[1] if fenced else text).splitlines()
    return [" ".join(line.split()) for line in lines if line.strip() and not line.strip().startswith(("#", "//"))]
