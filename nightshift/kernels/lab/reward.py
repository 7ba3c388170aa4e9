"""What a written kernel is worth: format × correctness × a robust speed-up, so that a fast wrong kernel never pays.

Staged: 0 without the format or for a cheat, 0.1 for a kernel that is refused, and 1 + a speed-up for a correct one
(Kevin, arXiv 2507.11948; CUDA-L1, arXiv 2507.14111). The speed-up is the baseline's time over the median of several
looks, with those that disagree with the others by more than a fifth taken out. It is clipped, and what a clock
cannot tell from noise counts as none.

    RewardError (Permanent)
    ├── RewardRaised   whoever answers raised
    └── RewardHung     whoever answers did not within its time
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nightshift.collectors.base import Permanent
from nightshift.kernels.judge.verdict import Status

T = TypeVar("T")
FORMAT, CORRECT = 0.1, 1.0
CLIP, NOISE, APART = 4.0, 0.02, 0.2
RIGHT = frozenset({Status.faster, Status.slower, Status.inconclusive, Status.correct})


class RewardError(Permanent):
    """A reward could not be computed: training stops, and continues from its last checkpoint."""


class RewardRaised(RewardError):
    """Whoever answers raised."""


class RewardHung(RewardError):
    """Whoever answers did not within its time."""


@dataclass(frozen=True)
class Answer:
    """What became of a sample. status: None without the format. looks: seconds of each look at its time."""

    status: Status | None
    looks: tuple[float, ...] = ()


def robust_s(looks: Sequence[float]) -> float:
    """The median of the looks near their own median, in seconds; NaN of none."""
    finite = [s for s in looks if math.isfinite(s) and s > 0]
    if not finite:
        return math.nan
    middle = statistics.median(finite)
    near = [s for s in finite if abs(s / middle - 1) <= APART]
    return statistics.median(near or finite)


def speed_term(baseline_s: float, looks: Sequence[float]) -> float:
    """0 to 1: log of the clipped speed-up over the baseline, as a share of its clip; slower than it is 0."""
    seconds = robust_s(looks)
    if not (math.isfinite(seconds) and baseline_s > 0):
        return 0.0
    ratio = min(CLIP, baseline_s / seconds)
    return math.log(ratio) / math.log(CLIP) if ratio > 1 + NOISE else 0.0


def reward_of(answer: Answer, baseline_s: float) -> float:
    """0, 0.1 or 1 + (0 to 1)."""
    if answer.status is None or answer.status is Status.cheat:
        return 0.0
    if answer.status not in RIGHT:
        return FORMAT
    return CORRECT + speed_term(baseline_s, answer.looks)


def naive_reward_of(answer: Answer, baseline_s: float) -> float:
    """What hypothesis H7 compares with: the speed-up of the first look, whatever it is."""
    if answer.status is None or answer.status is Status.cheat:
        return 0.0
    return baseline_s / answer.looks[0] if answer.status in RIGHT and answer.looks else FORMAT


def advantages(rewards: Sequence[float]) -> list[float]:
    """Each reward relative to its group's mean, in the group's deviations; all 0 in a group without variance."""
    spread = statistics.pstdev(rewards) if len(rewards) > 1 else 0.0
    if spread < 1e-9:
        return [0.0] * len(rewards)
    middle = statistics.fmean(rewards)
    return [(r - middle) / spread for r in rewards]


def within(limit_s: float, call: Callable[[], T]) -> T:
    """What a call returns. Raises RewardRaised or RewardHung; a call that hangs is left behind on its thread."""
    made: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            made.append(call())
        except BaseException as error:  # noqa: BLE001  told below, on the caller's thread
            raised.append(error)

    thread = threading.Thread(target=run, name="reward", daemon=True)
    thread.start()
    thread.join(limit_s)
    if raised:
        raise RewardRaised(f"reward raised {type(raised[0]).__name__}: {raised[0]}") from raised[0]
    if not made:
        raise RewardHung(f"reward gave no answer within {limit_s:g} s")
    return made[0]
