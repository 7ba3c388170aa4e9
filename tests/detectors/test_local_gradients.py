"""A rank whose own gradients leave its peers' is named; what all ranks have in common, or one batch, is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nightshift.detectors.base import Finding, State
from nightshift.detectors.contract.testing import START_S, changes, inventory, rank, steps, tick
from nightshift.detectors.loss.gradient_witness import LocalGradients

ONSET = 300


def said(ranks: int, factor: Callable[[int, int], float], count: int = 500, scatter: float = 0.3) -> list[Finding]:
    """Every change where rank r's norm of step n is factor(r, n) times what its batch gives; ten steps a look."""
    draw = np.random.default_rng(5)
    ticks = []
    for first in range(0, count, 10):
        at_s = START_S + first
        series = []
        for r in range(ranks):
            norm = np.exp(draw.normal(0.0, scatter, 10)) * [factor(r, first + k) for k in range(10)]
            series.append(
                steps(rank(r), first, [at_s + 0.1 * k for k in range(10)], {"local_grad_norm": norm.tolist()})
            )
        ticks.append(tick(at_s + 1.0, series=series))
    return changes(LocalGradients(), ticks, inventory(ranks))


@pytest.mark.parametrize("ranks", [2, 8, 24])
@pytest.mark.parametrize("every", [1, 5])
def test_a_rank_whose_norm_is_fifty_times_its_peers_is_named_within_fifty_steps(ranks: int, every: int) -> None:
    found = said(ranks, lambda r, n: 50.0 if r == 1 and n >= ONSET and n % every == 0 else 1.0)
    assert {(f.subject, f.state) for f in found} == {(rank(1), State.FIRING)}
    assert found[0].at.t_s - START_S - ONSET <= 50.0


@pytest.mark.parametrize(
    "factor",
    [
        lambda r, n: 1.0,
        lambda r, n: 1.0 + r,  # pipeline stages, shards
        lambda r, n: 50.0 if n % 20 == 0 else 1.0,  # a bad batch for all
        lambda r, n: 50.0 if n % 97 == 0 and r == n % 3 else 1.0,  # one now and then
        lambda r, n: float(np.exp(-n / 100.0)),
        lambda r, n: 4.0 if n > ONSET else 1.0,
    ],
    ids=["healthy", "stages", "all at once", "seldom", "falling", "a phase of training"],
)
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("scatter", [0.05, 0.6])
def test_norms_that_differ_as_batches_and_stages_do_name_nobody(
    factor: Callable[[int, int], float], ranks: int, scatter: float
) -> None:
    assert said(ranks, factor, 2000, scatter) == []


def test_a_rank_is_cleared_when_it_is_as_its_peers_again() -> None:
    found = said(4, lambda r, n: 50.0 if r == 2 and ONSET <= n < 400 else 1.0)
    assert [(f.subject, f.state) for f in found] == [(rank(2), State.FIRING), (rank(2), State.CLEAR)]
