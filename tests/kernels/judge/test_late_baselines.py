"""A baseline that a busy host launches late accuses no candidate, and no candidate gains by it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.kernels.judge.race.contest import QUICK, Race
from nightshift.kernels.judge.race.contestants import Baseline
from nightshift.kernels.judge.race.timing import Board
from nightshift.kernels.judge.verdict import Comparison, Reason, Refusal

ALONE_S, BESIDE_S, MINE_S = 56e-6, 584e-6, 9e-6


class Drawn(Race):
    """Rounds of given times; each of them late, or none."""

    late: float

    def _refresh(self, number: int) -> None: ...

    def _calls(self) -> int:
        return 3

    def _round(self, seconds: dict[str, list[float]], calls: int) -> None:
        seconds["candidate"].append(MINE_S)
        late = len(seconds["eager"]) % 4 < 4 * self.late
        seconds["eager"].append(BESIDE_S if late or not self.late else ALONE_S)
        self.baselines[0].late.append(late)

    def _physics(self, candidate_s: float, floor_s: float) -> None: ...

    def _clocks(self, candidate_s: float) -> float:
        return candidate_s

    def _energy(self, comparisons: list[Comparison]) -> list[Comparison]:
        return comparisons


def raced(late: float) -> list[Comparison]:
    problem = SimpleNamespace(compulsory_bytes=lambda case: 1, flops=lambda case: 1)
    track: Any = SimpleNamespace(slots=[], problem=problem, case=SimpleNamespace(dtype="bfloat16"))
    baseline = Baseline("eager", lambda: None, [], None)
    entrant: Any = SimpleNamespace(name="candidate")
    race = Drawn(entrant, [baseline], track, Board(1.0, 1, {}), QUICK, random.Random(1), None, {"eager": ALONE_S})
    race.late = late
    return race.run()


@pytest.mark.parametrize("late", [1.0, 0.5, 0.25])
def test_a_late_round_counts_with_the_time_alone(late: float) -> None:
    (found,) = raced(late)
    assert found.speedup.point == pytest.approx(ALONE_S / MINE_S)
    assert found.baseline_s == pytest.approx(ALONE_S)


def test_one_that_was_on_time_speaks_against_the_candidate() -> None:
    with pytest.raises(Refusal, match=r"584\.0 µs beside the candidate, 56\.0 alone") as refused:
        raced(late=0.0)
    assert refused.value.reason is Reason.baseline_disturbed
