"""A hypothesis has a verdict of its figures alone, and none where it cannot run."""

from __future__ import annotations

import math

import pytest

from nightshift.kernels.lab.hypotheses import BY_NAME, REGISTER, verdict_on


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [((1.1, 1.2, 1.15, 1.3), "holds"), ((0.8, 0.9, 0.95, 0.7), "refuted"), ((0.5, 2.0, 0.6, 1.8), "undecided")],
)
def test_the_interval_decides(ratios: tuple[float, ...], verdict: str) -> None:
    row = verdict_on(BY_NAME["H3"], [math.log(r) for r in ratios], range(4))
    assert row["verdict"] == verdict
    assert row["interval_90"][0] <= row["ratio"] <= row["interval_90"][1]
    assert row["lines"] == [0, 1, 2, 3]


def test_what_cannot_run_here_says_so_and_how_it_would_run() -> None:
    apart = [h for h in REGISTER if h.needs]
    assert {h.name for h in apart} == {"H1", "H4", "H5", "H6"}
    for hypothesis in apart:
        row = verdict_on(hypothesis, [], [])
        assert row["verdict"] == "not run"
        assert row["needs"]
        assert row["protocol"]
        with pytest.raises(ValueError, match="cannot run here"):
            verdict_on(hypothesis, [0.1], [1])
    with pytest.raises(ValueError, match="has no figures"):
        verdict_on(BY_NAME["H2"], [], [])


def test_each_hypothesis_names_what_refutes_it() -> None:
    assert [h.name for h in REGISTER] == [f"H{n}" for n in range(1, 9)]
    assert all(h.claim and h.measure and h.refuted_if for h in REGISTER)
