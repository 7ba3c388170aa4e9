"""A row close to its best peer is told by races on several buffers; one that is far, by its verdict."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.kernels_close import RACES, Done, elsewhere, pooled
from nightshift.kernels.judge.verdict import Comparison, Interval
from nightshift.kernels.problem import Case

CASE = Case.of("float32", m=8, n=64)
CONFIG = {"rows": 1, "warps": 1, "waves": 0, "stages": 1, "load": "", "store": ""}


def _against(peer: str, ratio: float, ours_s: float = 1e-5) -> Comparison:
    around = Interval(ratio * 0.99, ratio, ratio * 1.01)
    return Comparison(str(CASE), peer, "A", ours_s, ours_s * ratio, around, 15)


def _row(ratio: float) -> dict[str, Any]:
    return {
        "problem": "softmax",
        "case": str(CASE),
        "family": "softmax",
        "config": CONFIG,
        "speedup": [ratio * 0.99, ratio, ratio * 1.01],
        "best_peer": "compile",
        "ours_us": 10.0,
        "peers_us": {"compile": 10.0 * ratio, "eager": 90.0},
        "copy_us": 9.0,
        "in_place_us": 9.5,
    }


def test_races_together_have_the_best_peer_of_all_of_them_and_their_own_spread() -> None:
    points = [1.02, 0.99, 1.00, 1.01, 0.98, 1.03]
    raced = [(_against("compile", x), _against("liger", 1.04)) for x in points]
    told = pooled(_row(1.02), raced)
    assert told["best_peer"] == "compile"
    low, point, high = told["speedup"]
    assert (low, high) == pytest.approx((0.98, 1.03))
    assert point == pytest.approx(1.005, abs=2e-3)
    assert told["races"] == pytest.approx(points)
    assert told["peers_us"] == pytest.approx({"compile": 10.05, "liger": 10.4, "eager": 90.0})
    assert told["of_copy"] == pytest.approx(0.9)
    raced = [(_against("compile", 1.02), _against("liger", 0.99)) for _ in points]
    assert pooled(_row(1.02), raced)["best_peer"] == "liger"


class _Judge:
    """Gives one race for each request; `refuses` on the third."""

    device = "cpu"

    def __init__(self, refuses: bool = False) -> None:
        self.asked = 0
        self._refuses = refuses

    def give_back(self) -> None: ...

    def verdict(self, written: object, problem: object, request: object) -> SimpleNamespace:
        self.asked += 1
        refused = self._refuses and self.asked == 3
        raced = () if refused else (_against("compile", 1.0 + 0.01 * self.asked),)
        return SimpleNamespace(comparisons=raced, refused=refused, reason="rmse", detail="here")


def test_close_rows_are_raced_on_other_memory_and_rows_that_are_far_are_not() -> None:
    told: list[tuple[str, Any]] = []
    rows = [Done(_row(x), "softmax", CASE, []) for x in (1.5, 0.99, 0.8)]
    judge = _Judge()
    elsewhere(judge, rows, lambda *words: told.append(words), time.time() + 60)  # type: ignore[arg-type]
    assert judge.asked == RACES
    assert [word for word, _ in told] == ["row"]
    assert told[0][1]["speedup"][1] == pytest.approx(
        math.exp(sum(math.log(1 + k / 100) for k in range(1, 7)) / 6), 1e-3
    )
    assert "races" not in rows[0].made
    assert rows[1].made["races"][0] == pytest.approx(1.01)


@pytest.mark.parametrize(("refuses", "seconds", "asked"), [(True, 60.0, 3), (False, -1.0, 0)])
def test_a_row_whose_races_do_not_end_keeps_what_its_verdict_said(
    refuses: bool, seconds: float, asked: int
) -> None:
    told: list[tuple[str, Any]] = []
    row, judge = Done(_row(1.01), "softmax", CASE, []), _Judge(refuses)
    elsewhere(judge, [row], lambda *words: told.append(words), time.time() + seconds)  # type: ignore[arg-type]
    assert judge.asked == asked
    assert row.made == _row(1.01)
    assert told == ([("tried", f"softmax {CASE}: rmse on other memory: here")] if refuses else [])
