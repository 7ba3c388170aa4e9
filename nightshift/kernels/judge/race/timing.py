"""What a pile of paired times says: pure statistics, no clock, no GPU.

One *round* gives one number per contestant (the median over a secret number of calls). Rounds are paired: within a
round contestants run in random order, so drift of clocks and temperature cancels in the log ratio. Over rounds the
Hodges-Lehmann estimate (the median of Walsh averages) is the ratio and the Wilcoxon signed-rank interval around it
its confidence interval (Hollander, Wolfe and Chicken, *Nonparametric Statistical Methods*, 3rd ed., §3.2): it
assumes no distribution, tolerates outlying rounds and is exact for few rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nightshift.kernels.judge.verdict import Comparison, Interval, Reason

# Two-sided: identical kernels come out "faster" in at most 0.5 % of comparisons before the margin.
CONFIDENCE = 0.99
# A difference below this is nobody's win: two processes on one GPU differ by some tenths of a percent.
MARGIN = 0.01
WIDTH = 0.03
"""An interval wider than this asks for more rounds."""
MIN_ROUNDS = 9


@cache
def _signed_rank_counts(n: int) -> NDArray[np.float64]:
    """Probability of each value 0…n(n+1)/2 of Wilcoxon's signed-rank statistic under symmetry."""
    counts = np.zeros(n * (n + 1) // 2 + 1)
    counts[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(counts)
        shifted[rank:] = counts[: len(counts) - rank]
        counts = (counts + shifted) / 2.0
    return counts


def _order_statistic(n: int, confidence: float) -> int:
    """How many Walsh averages may be cut from each end; −1 where n rounds cannot give that confidence."""
    below = np.cumsum(_signed_rank_counts(n))
    return int(np.searchsorted(below, (1.0 - confidence) / 2.0, side="right")) - 1


def interval(log_ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The ratio and its confidence interval from per-round log ratios.

    With too few rounds for the confidence the interval is (0, point, inf): it decides nothing.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        raise ValueError("interval: needs at least one finite log ratio")
    rows, columns = np.triu_indices(n)
    walsh = np.sort((values[rows] + values[columns]) / 2.0)
    point = math.exp(float(np.median(walsh)))
    cut = _order_statistic(n, confidence)
    if cut < 0:
        return Interval(0.0, point, math.inf)
    return Interval(math.exp(float(walsh[cut])), point, math.exp(float(walsh[-1 - cut])))


def rounds_disagree(log_ratios: Sequence[float]) -> bool:
    """Whether the rounds fall into two camps (first and second half differ by more than their spread allows).

    A kernel that is fast only while it is watched, or a GPU that changes its clocks halfway, shows here.
    """
    n = len(log_ratios)
    if n < 2 * MIN_ROUNDS:
        return False
    first, second = np.asarray(log_ratios[: n // 2]), np.asarray(log_ratios[n // 2 :])
    spread = max(float(np.median(np.abs(part - np.median(part)))) for part in (first, second))
    return abs(float(np.median(first) - np.median(second))) > max(0.05, 8.0 * spread)


@dataclass(frozen=True)
class Rounds:
    """Seconds per call of each contestant, one number a round; "candidate" is one of the names."""

    seconds: Mapping[str, Sequence[float]]

    def compare(self, case: str, tier: str, baseline: str, floor_s: float = math.nan) -> Comparison:
        mine, other = np.asarray(self.seconds["candidate"]), np.asarray(self.seconds[baseline])
        logs = np.log(other / mine)
        return Comparison(
            case=case,
            baseline=baseline,
            tier=tier,
            candidate_s=float(np.median(mine)),
            baseline_s=float(np.median(other)),
            speedup=interval(logs.tolist()),
            pairs=len(logs),
            floor_s=floor_s,
        )

    def logs(self, baseline: str) -> list[float]:
        mine, other = np.asarray(self.seconds["candidate"]), np.asarray(self.seconds[baseline])
        return [float(value) for value in np.log(other / mine)]


def decide(comparisons: Sequence[Comparison]) -> tuple[Reason, str]:
    """Faster, slower or inconclusive on one or more cases, against the best baseline of each.

    Faster: on every case the interval clears every baseline by the margin. Slower: on some case it lies below one.
    """
    if not comparisons:
        raise ValueError("decide: no comparisons")
    worst = min(comparisons, key=lambda c: c.speedup.point)
    text = (
        f"{worst.speedup.point:.3f}x [{worst.speedup.low:.3f}, {worst.speedup.high:.3f}] against {worst.baseline} "
        f"on {worst.case} ({worst.candidate_s * 1e6:.1f} µs against {worst.baseline_s * 1e6:.1f})"
    )
    if all(c.speedup.low > 1.0 + MARGIN for c in comparisons):
        return Reason.clears_best, text
    if any(c.speedup.high < 1.0 - MARGIN for c in comparisons):
        return Reason.below_baseline, text
    return Reason.straddles, text


@dataclass(frozen=True)
class Board:
    """What physics allows on one GPU. Rates per second; zero bandwidth means that nothing is known."""

    bandwidth_bytes: float
    l2_bytes: int
    flops: Mapping[str, float]

    def floor_s(self, compulsory_bytes: int, flops: int, dtype: str) -> float:
        """No kernel is faster: compulsory traffic beyond L2 at theoretical bandwidth, or peak arithmetic."""
        memory = max(0, compulsory_bytes - self.l2_bytes) / self.bandwidth_bytes if self.bandwidth_bytes else 0.0
        peak = self.flops.get(dtype, 0.0)
        return max(memory, flops / peak if peak else 0.0)


# Dense tensor-core FLOP per cycle and SM (NVIDIA's architecture white papers; a multiply-add counts two). float32
# is TF32's rate, which torch may be told to use; integers are not bounded.
_DENSE_FLOP = {
    (8, 0): {"float16": 2048, "bfloat16": 2048, "float32": 1024, "float64": 128},
    (8, 6): {"float16": 1024, "bfloat16": 1024, "float32": 512, "float64": 4},
    (8, 9): {"float16": 1024, "bfloat16": 1024, "float32": 512, "float64": 4},
    (9, 0): {"float16": 4096, "bfloat16": 4096, "float32": 2048, "float64": 256},
    (10, 0): {"float16": 8192, "bfloat16": 8192, "float32": 4096, "float64": 256},
}


def board(
    memory_hz: float, bus_bits: int, l2_bytes: int, capability: tuple[int, int], sms: int, sm_hz: float
) -> Board:
    """From NVML's maximum clocks: double data rate × bus width; SMs × clock × FLOP per cycle."""
    per_cycle = _DENSE_FLOP.get(capability, {})
    flops = {dtype: rate * sms * sm_hz for dtype, rate in per_cycle.items()}
    return Board(2.0 * memory_hz * bus_bits / 8.0, l2_bytes, flops)
