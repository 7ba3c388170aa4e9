"""The race's statistics: identical contestants do not win, real differences do, physics cannot be beaten."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.judge.race import contestants
from nightshift.kernels.judge.race.contestants import Baseline, Hosted, Stir
from nightshift.kernels.judge.race.timing import Board, Rounds, board, decide, interval, rounds_disagree
from nightshift.kernels.judge.verdict import Comparison, Interval, Reason


def test_identical_contestants_are_called_faster_in_at_most_one_percent() -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_t(3, size=(2000, 15)) * 0.03
    assert sum(interval(row.tolist()).low > 1.0 for row in noise) <= 20


def test_the_interval_covers_the_true_ratio_at_its_confidence() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(1000):
        found = interval((math.log(1.2) + rng.normal(0, 0.02, 12)).tolist())
        hits += found.low <= 1.2 <= found.high
    assert hits >= 980


def test_outlying_rounds_do_not_move_the_estimate() -> None:
    logs = [0.1] * 20 + [3.0, -2.0]
    assert interval(logs).point == pytest.approx(math.exp(0.1), rel=1e-6)


def test_too_few_rounds_decide_nothing() -> None:
    found = interval([0.5, 0.5, 0.5])
    assert (found.low, found.high) == (0.0, math.inf)


@given(st.lists(st.floats(-1, 1), min_size=8, max_size=30), st.floats(-1, 1))
def test_the_interval_shifts_with_the_data_and_holds_its_point(logs: list[float], shift: float) -> None:
    one, other = interval(logs), interval([value + shift for value in logs])
    assert one.low <= one.point * (1 + 1e-9)
    assert one.point <= one.high * (1 + 1e-9)
    assert other.point == pytest.approx(one.point * math.exp(shift), rel=1e-9)


def test_exact_confidence_of_small_samples_matches_the_signed_rank_distribution() -> None:
    logs = [float(2**n) for n in range(9)]
    assert interval(logs, confidence=1 - 2 * 1 / 512).low == pytest.approx(math.exp(1.0))


def comparison(low: float, point: float, high: float, baseline: str = "eager") -> Comparison:
    return Comparison("m=1", baseline, "A", 1e-4, point * 1e-4, Interval(low, point, high), 15)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([comparison(1.2, 1.3, 1.4), comparison(1.02, 1.03, 1.04, "liger")], Reason.clears_best),
        ([comparison(1.2, 1.3, 1.4), comparison(1.005, 1.02, 1.03, "liger")], Reason.straddles),
        ([comparison(1.2, 1.3, 1.4), comparison(0.8, 0.9, 0.95, "liger")], Reason.below_baseline),
        ([comparison(0.99, 1.0, 1.005)], Reason.straddles),
    ],
)
def test_faster_means_clearing_every_baseline_by_the_margin(found: list[Comparison], reason: Reason) -> None:
    assert decide(found)[0] is reason


def test_rounds_that_fall_into_two_camps_are_found() -> None:
    rng = np.random.default_rng(3)
    steady = rng.normal(0.1, 0.01, 20).tolist()
    assert not rounds_disagree(steady)
    assert rounds_disagree([*steady[:10], *(value + 0.3 for value in steady[10:])])


def test_pairs_are_compared_round_by_round() -> None:
    drift = [1.0 + 0.1 * n for n in range(12)]
    rounds = Rounds({"candidate": drift, "eager": [2.0 * value for value in drift]})
    found = rounds.compare("m=1", "A", "eager")
    assert found.speedup.point == pytest.approx(2.0)
    assert found.speedup.width < 1e-9


def test_the_floor_of_an_h200_is_its_published_bandwidth() -> None:
    h200 = board(3201e6, 6144, 60 << 20, (9, 0), 132, 1.98e9)
    assert h200.bandwidth_bytes == pytest.approx(4.9e12, rel=0.01)
    traffic = 2 * 16384 * 4096 * 2
    assert h200.floor_s(traffic, 0, "bfloat16") == pytest.approx((traffic - (60 << 20)) / 4.917e12, rel=0.01)
    assert h200.floor_s(0, 2 * 4096**3, "float16") == pytest.approx(1.28e-4, rel=0.02)


def test_an_unknown_board_sets_no_floor() -> None:
    assert Board(0.0, 0, {}).floor_s(1 << 40, 1 << 60, "float16") == 0.0


@pytest.mark.parametrize("blends", [True, False])
def test_a_baseline_s_timed_calls_find_memory_as_the_candidate_s_do(
    blends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each call the slot's values are blended with the next slot's, elsewhere: they stay as they are."""
    values = [(torch.full((64, 3), float(n)), 2.5) for n in range(3)]
    told: list[tuple[str, set[float]]] = []
    stir = Stir(blends)

    def timed(
        calls: Sequence[Callable[[], Any]], flush: torch.Tensor, before: Sequence[Any], tries: int
    ) -> tuple[list[float], bool]:
        for action, call in zip(before, calls, strict=True):
            action()
            told.append(("stirred", set(next(iter(stir.rooms.values())).flatten().tolist())))
            call()
        return [1.0], True

    def called(x: torch.Tensor, scale: float) -> None:
        told.append(("called", set(x.flatten().tolist())))

    monkeypatch.setattr(contestants, "timed", timed)
    Baseline("eager", called, list(values), torch.empty(1), stir=stir).seconds([2, 0, 1])
    wanted = [({2.0, 0.0}, {2.0}), ({0.0, 1.0}, {0.0}), ({1.0, 2.0}, {1.0})]
    assert told == [
        (word, mixed if word == "stirred" and blends else own)
        for mixed, own in wanted
        for word in ("stirred", "called")
    ]
    assert len(stir.rooms) == 1, "one room for each input, whoever races"


def test_a_hosted_candidate_is_profiled_with_the_gpu_to_itself() -> None:
    """Beside others its kernels take longer than the judge's clock says, which looks like a cheat."""
    entered: list[str] = []

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        entered.append("alone")
        yield
        entered.append("shared again")

    class Process:
        limits = SimpleNamespace(call_s=1.0)

        def request(self, body: dict[str, Any], timeout_s: float, stage: str) -> Any:
            entered.append(body["op"])
            return SimpleNamespace(body={"seconds": 1e-3, "kernels": ["k"]})

    def refresh(slot: int, seed: int) -> None:
        entered.append("values")

    track: Any = SimpleNamespace(
        process=Process(), device="cuda", slots=[0, 1], mutates=(), to_json=list, refresh=refresh,
        truths=SimpleNamespace(seed=lambda rng: 1),
    )  # fmt: skip
    hosted = Hosted(track)
    hosted.profile(random.Random(1), alone())
    assert entered == ["slots", "values", "values", "alone", "profile", "shared again"]
    assert (hosted.busy_s, hosted.kernels) == (1e-3, ("k",))
