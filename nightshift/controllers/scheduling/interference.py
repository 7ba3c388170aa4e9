"""How much two jobs slow each other on one GPU: a stated model, fitted to measurements, decided on its upper side.

**What was measured** (`tests/recordings/h200_interference.csv`): five kinds of kernels in two processes on one
H200, time-sliced, at several duties; 31 pairs, both sides. **The fit** (`fit`): the logarithm of a kernel's
slowdown is linear in its own SM and DRAM activity when it runs and the neighbour's SM activity and duty. It is
coarse: left out pair by pair, its error is about 0.4 in the logarithm, so decisions use the upper quantile.

**From kernels to jobs** (assumed, not measured): an iteration alternates between GPU, host and network phases; only
its GPU share is slowed by the neighbour's kernels; host and network are shared by time, so two jobs that together
ask for more than one host or link are both stretched by what they ask for together. A gang is as slow as its
slowest GPU. Two jobs a GPU at most, since pairs are what was measured. Memory is checked first and never shared out
beyond `MEMORY_SHARE`.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.base import Permanent

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]
MEMORY_SHARE = 0.8
"""Of a card's memory two jobs may fill together, by their highest known use."""
QUANTILE = 0.9
KINDS = ("language", "vision", "input_bound", "simulation")


@dataclass(frozen=True, slots=True)
class Load:
    """What a job does to its GPUs. Shares of an iteration: `gpu_duty`, `host`, `network`; activity *while* the GPU
    works: `sm`, `dram` (as NVML's GPM reports); `memory`: highest share of the card's memory. NaN = not known."""

    kind: str
    gpu_duty: float
    host: float
    network: float
    sm: float
    dram: float
    memory: float


UNKNOWN = Load("unknown", *[math.nan] * 6)
_TYPICAL = {
    "language": Load("language", 0.88, 0.02, 0.20, 0.75, 0.30, 0.45),
    "vision": Load("vision", 0.42, 0.42, 0.30, 0.65, 0.40, 0.35),
    "input_bound": Load("input_bound", 0.10, 0.80, 0.06, 0.55, 0.45, 0.25),
    "simulation": Load("simulation", 0.03, 0.88, 0.01, 0.10, 0.05, 0.12),
}
"""Orders of magnitude by kind; a job's own are measured by the collectors once it runs."""


def load_of(kind: str, random: np.random.Generator) -> Load:
    """A job of the kind: the typical shares times lognormal noise of 10 %, memory of 40 %."""
    typical = _TYPICAL[kind]
    noise = np.exp(random.normal(0.0, 0.1, 5))
    shares = (typical.gpu_duty, typical.host, typical.network, typical.sm, typical.dram)
    known = [float(min(share * factor, 1.0)) for share, factor in zip(shares, noise, strict=True)]
    memory = float(min(typical.memory * np.exp(random.normal(0.0, 0.4)), 1.0))
    return Load(kind, known[0], known[1], known[2], known[3], known[4], memory)


@dataclass(frozen=True)
class Interference:
    """`weights`: of 1, own SM, own DRAM, other's SM × duty, other's duty. `spread`: of the fit's error, left out
    pair by pair, in the logarithm; `upper`: its upper quantile."""

    weights: tuple[float, ...]
    spread: float
    upper: float

    def log_kernel(self, own: F8, other: F8) -> F8:
        """Log slowdown of `own`'s kernels; rows as `columns` makes them, broadcast."""
        bias, sm, dram, other_sm, duty = self.weights
        return np.asarray(
            bias
            + sm * own[..., 3]
            + dram * own[..., 4]
            + other_sm * other[..., 3] * other[..., 0]
            + duty * other[..., 0]
        )

    def slowdown(self, own: F8, other: F8, shift: F8 | float = 0.0) -> F8:
        """Times slower `own` runs beside `other`, at least 1. `shift`: added in the logarithm (`upper` to decide,
        a draw of `spread` to simulate). What is not known (NaN) makes the answer infinite."""
        kernel = np.maximum(np.exp(self.log_kernel(own, other) + shift), 1.0)
        by_gpu = 1.0 + own[..., 0] * (kernel - 1.0)
        by_host = own[..., 1] + other[..., 1]
        by_network = own[..., 2] + other[..., 2]
        found = np.maximum(np.maximum(by_gpu, by_host), np.maximum(by_network, 1.0))
        return np.asarray(np.where(np.isnan(found), np.inf, found))

    def fits_memory(self, own: F8, other: F8) -> NDArray[np.bool_]:
        """Whether both fit; not known is no."""
        return np.asarray(own[..., 5] + other[..., 5] <= MEMORY_SHARE)


SET_BY_HOST = 1.25
"""Up to this much slower than host and network explain, a slowdown is taken as theirs."""
NOISE = 0.15
"""Spread of one pair of jobs around its pair of kinds, in the logarithm (assumed until runs say otherwise)."""


@dataclass
class Experience:
    """What sharing has cost so far, by (own kind, neighbour's kind): the model's error is taken to be the same for
    every pair of two kinds and learned from a few of them (normal prior `spread` wide, observations `NOISE` wide).

    `sums`, `counts` `[kinds + 1, kinds + 1]`; the last row and column are kinds that nobody knows."""

    model: Interference
    sums: F8 = field(default_factory=lambda: np.zeros((len(KINDS) + 1, len(KINDS) + 1)))
    counts: F8 = field(default_factory=lambda: np.zeros((len(KINDS) + 1, len(KINDS) + 1)))
    _shifts: dict[bool, F8] = field(default_factory=dict, init=False)
    """Of all pairs of kinds, until more is seen."""

    def see(self, own: int, other: int, own_load: F8, other_load: F8, slowdown: float) -> None:
        """One pair's observed slowdown, of a job of kind `own` beside one of kind `other` (indices of `KINDS`, -1:
        unknown). Where host or network set the pace, the GPU's share is known from above only: taken as that where
        it was expected to be more, as nothing where not."""
        floor = max(float(own_load[1] + other_load[1]), float(own_load[2] + other_load[2]), 1.0)
        if min(own, other) < 0 or not math.isfinite(slowdown + floor) or not own_load[0] > 0:
            return
        kernel = 1.0 + (max(slowdown, 1.0) - 1.0) / float(own_load[0])
        shift = math.log(kernel) - float(self.model.log_kernel(own_load, other_load))
        if slowdown <= floor * SET_BY_HOST:
            expected = float(self.model.log_kernel(own_load, other_load)) + float(
                self.shift(own, other, upper=False)
            )
            # less was expected, and host or network hide how much less it was: nothing is learned
            if 1.0 + float(own_load[0]) * (math.exp(expected) - 1.0) <= slowdown:
                return
        # nothing seen is ever forgotten, so one absurd reading must not decide for its kinds for good
        self.sums[own, other] += float(np.clip(shift, -3.0, 3.0))
        self.counts[own, other] += 1.0
        self._shifts.clear()

    def shift(self, own: I8 | int, other: I8 | int, *, upper: bool) -> F8:
        """To add to the model's logarithm for these kinds: its upper quantile, or (not `upper`) what gives the mean
        slowdown."""
        if upper not in self._shifts:
            # the margin narrows to what pairs of jobs differ by; that noise no number of observations takes away
            prior, noise = self.model.spread**2, NOISE**2
            left = 1.0 / (1.0 / prior + self.counts / noise)
            mean, margin = self.sums / noise * left, self.model.upper * np.sqrt((left + noise) / (prior + noise))
            # half of the variance: the mean of a lognormal lies above its median by so much
            self._shifts[upper] = mean + (margin if upper else left / 2.0)
        return np.asarray(self._shifts[upper][own, other])


def columns(loads: list[Load]) -> F8:
    """`[n, 6]`: duty, host, network, SM, DRAM, memory."""
    rows = [(load.gpu_duty, load.host, load.network, load.sm, load.dram, load.memory) for load in loads]
    return np.asarray(rows, float).reshape(-1, 6)


MEASURED = Interference((-0.319, 0.528, 0.465, 0.083, 0.537), 0.419, 0.617)
"""`fit` of our recording; a test makes it again."""


def fit(path: Path, quantile: float = QUANTILE) -> Interference:
    """Ridge least squares on the logarithm; the error of each pair by a fit without that pair.

    Raises Permanent where the file lacks a column or a load's run alone.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        alone = {
            (r["a"], float(r["a_duty"])): (float(r["sm_active"]), float(r["dram_active"]))
            for r in rows
            if not r["b"]
        }
        features, logs, pairs = [], [], []
        for row in rows:
            if not row["b"]:
                continue
            for own, other in (("a", "b"), ("b", "a")):
                # its activity while it runs is what it has alone at full duty
                sm, dram = alone[row[own], 1.0]
                duty = float(row[other + "_duty"])
                features.append((1.0, sm, dram, alone[row[other], 1.0][0] * duty, duty))
                # a slowdown below 1 is noise of the measurement
                logs.append(np.log(max(float(row[own + "_slowdown"]), 1.0)))
                pairs.append(tuple(sorted((row["a"], row["b"]))))
    except (OSError, KeyError, ValueError) as error:
        raise Permanent(f"{path}: {error!r}") from error
    matrix, target = np.asarray(features), np.asarray(logs)
    errors = np.empty(len(target))
    for pair in set(pairs):
        # both sides of a pair at once: one would give the other away
        out = np.asarray([each == pair for each in pairs])
        errors[out] = target[out] - matrix[out] @ _ridge(matrix[~out], target[~out])
    weights = tuple(round(float(w), 3) for w in _ridge(matrix, target))
    return Interference(
        weights, round(float(np.sqrt(np.mean(errors**2))), 3), round(float(np.quantile(errors, quantile)), 3)
    )


def _ridge(matrix: F8, target: F8) -> F8:
    return np.asarray(np.linalg.solve(matrix.T @ matrix + 0.01 * np.eye(matrix.shape[1]), matrix.T @ target))
