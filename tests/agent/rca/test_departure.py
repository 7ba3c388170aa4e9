"""Whose fault a divergence was: named only where one rank alone ran away right before the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.agent.rca.evidence import first_to_leave, gather
from nightshift.agent.rca.rules import diagnose
from nightshift.agent.rca.summary import as_text, summarise
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.history import History
from nightshift.collectors.tick import Tick
from tests.agent.rooted import INVENTORY, NOW_S, ONSET_S, RANKS, diverged, incident

STEPS, DAMAGE = 200, 150


def trained(*changes: tuple[int, int, int, float], same: bool = False, seed: int = 1) -> History:
    """Four ranks' gradient norms by step; `changes` multiply rank r from step a to b. All run away at DAMAGE."""
    noise = np.random.default_rng(seed)
    norms = np.abs(noise.normal(1.0, 0.05, (len(RANKS), STEPS)))
    if same:
        norms[:] = norms[0]
    norms[:, DAMAGE:] *= 20.0
    for rank, first, last, times in changes:
        norms[rank, first:last] *= times
    kept = History()
    step = np.arange(STEPS)
    t_s = ONSET_S + (step - DAMAGE) * 1.0
    series = [StepSeries(r, "run", step, t_s, {"grad_norm": norms[n]}, "log") for n, r in enumerate(RANKS)]
    kept.add(Tick(NOW_S, steps=series))
    return kept


def test_the_rank_that_ran_away_alone_before_the_others_is_named_with_its_lead() -> None:
    found = first_to_leave(trained((2, DAMAGE - 4, DAMAGE, 9.0)), RANKS, ONSET_S)
    assert found is not None
    assert (found.rank, found.step, found.lead_steps, found.ranks) == (RANKS[2], DAMAGE - 4, 4, 4)


def test_a_rank_whose_gradient_is_no_longer_a_number_is_named() -> None:
    found = first_to_leave(trained((1, DAMAGE - 3, DAMAGE, math.inf)), RANKS, ONSET_S)
    assert found is not None
    assert found.rank == RANKS[1]


@pytest.mark.parametrize(
    "seen",
    [
        trained(),
        trained((2, DAMAGE - 60, DAMAGE - 55, 30.0)),
        trained((2, DAMAGE - 4, DAMAGE, 9.0), (3, DAMAGE - 4, DAMAGE, 9.0)),
        trained((2, DAMAGE - 1, DAMAGE, 9.0)),
        trained((2, DAMAGE - 4, DAMAGE, 1.2)),
        trained(same=True),
        History(),
    ],
    ids=[
        "all at once",
        "a spike long before",
        "two at once",
        "one step",
        "within the spread",
        "all-reduced",
        "nothing",
    ],
)
def test_nobody_is_named_where_nobody_stood_out(seen: History) -> None:
    assert first_to_leave(seen, RANKS, ONSET_S) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_noise_names_nobody(seed: int) -> None:
    assert first_to_leave(trained(seed=seed), RANKS, ONSET_S) is None


def test_the_suspect_is_in_headline_summary_and_claims_and_moves_the_safe_checkpoint_before_its_departure() -> None:
    found = [diverged(n) for n in range(4)]
    told = diagnose(found, gather(found, trained((2, DAMAGE - 4, DAMAGE, 9.0)), INVENTORY, NOW_S), INVENTORY)
    assert told.headline.endswith("suspect rank 2")
    assert told.facts["suspect_gpu"].startswith("GPU-00000002")  # type: ignore[union-attr]
    assert any("left the others of 4 ranks at step 146" in claim.sentence for claim in told.claims)
    assert "Suspect: rank ml/a#2 on GPU-00000002" in as_text(summarise(incident(*found, diagnosis=told), NOW_S))
