"""Promotion's statistics, played in worlds whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.promotion import hard_world
from nightshift.controllers.decision import Mode
from nightshift.controllers.drift import FeatureDrift
from nightshift.controllers.estimate import (
    LEAST_ARM,
    TrialTurn,
    arm_jobs,
    clustered_mean,
    doubly_robust,
    quantile_gap,
    violation_bound,
)
from nightshift.controllers.promotion import (
    Criteria,
    PolicyHealth,
    PolicyStanding,
    Tally,
    assess,
    chance_of,
    demotion,
    in_holdout,
    is_look_due,
    least_jobs,
    moved,
    trust_of,
)

STANDING = PolicyStanding("scheduling", "ppo@ab", "0" * 64, Mode.TRIAL, 0.0)


def world(
    seed: int, gain: float = 0.0, jobs: int = 80, windows: int = 12, *, slower: float = 0.0, spread: float = 0.05
) -> list[TrialTurn]:
    """A trial whose jobs differ (job effect twice the window's noise), with a confounder for propensities."""
    random = np.random.default_rng(seed)
    turns = []
    for job in range(jobs):
        own, level = random.normal(0, 2 * spread), random.normal()
        chance = 0.7 if level > 0 else 0.3
        lift = gain + random.normal(0, spread / 2)
        for _ in range(windows):
            treated = bool(random.random() < chance)
            noise = random.normal(0, spread)
            slowdown = 1.0 + abs(random.normal(0, 0.002)) + slower * treated
            reward = own + 0.1 * level + lift * treated + noise
            turns.append(TrialTurn(str(job), treated, chance, reward, slowdown, 1.0016 + slower, False, (level,)))
    return turns


def test_the_bound_covers_the_truth_as_often_as_it_says() -> None:
    covered = [doubly_robust(world(seed, 0.03, 40, 8)).low <= 0.03 for seed in range(400)]
    assert 0.925 <= np.mean(covered) <= 0.985


def test_windows_taken_as_independent_would_not_cover() -> None:
    covered = []
    for seed in range(300):
        random = np.random.default_rng(seed)
        values = np.repeat(random.normal(0, 1, 30), 10) + random.normal(0, 1, 300)
        covered.append(
            clustered_mean(values, np.arange(300)).low <= 0 <= clustered_mean(values, np.arange(300)).high
        )
    assert np.mean(covered) < 0.75


@pytest.mark.parametrize(("model", "chances"), [(True, True), (False, True), (True, False)])
def test_with_the_outcome_model_or_the_propensities_right_the_bound_covers_heavy_tailed_confounded_logs(
    model: bool, chances: bool
) -> None:
    """One of both may be wrong; where both are, nothing can help, and this world would show it."""
    covered = [doubly_robust(hard_world(s, 0.03, 80, model=model, chances=chances)).low <= 0.03 for s in range(60)]
    assert np.mean(covered) >= 0.9
    wrong = [doubly_robust(hard_world(s, 0.03, 80, model=False, chances=False)).low <= 0.03 for s in range(20)]
    assert np.mean(wrong) < 0.5


def rare_world(seed: int, jobs: int, chances: tuple[float, float], *, by_job: bool) -> list[TrialTurn]:
    """A confounder picks the propensity; the coin is a window's, or the whole job's as in canary."""
    random = np.random.default_rng((seed, 7))
    turns = []
    for job in range(jobs):
        own, level = random.normal(0, 0.1), random.normal()
        chance, lift = chances[int(level > 0)], 0.03 + random.exponential(0.05) - 0.05
        whole = bool(random.random() < chance)
        for _ in range(4):
            treated = whole if by_job else bool(random.random() < chance)
            reward = own + 0.1 * level + lift * treated + random.normal(0, 0.05)
            turns.append(TrialTurn(str(job), treated, chance, reward, 1.0, 1.0, False, (level,)))
    return turns


@pytest.mark.full
@pytest.mark.parametrize("by_job", [False, True])
@pytest.mark.parametrize("chances", [(0.03, 0.97), (0.05, 0.5), (0.095, 0.095)])
@pytest.mark.parametrize("jobs", [8, 40, 120])
def test_with_few_jobs_or_rare_draws_the_bound_covers_or_says_that_it_cannot_be_told(
    jobs: int, chances: tuple[float, float], by_job: bool
) -> None:
    """Skewed effects, 100 fixed worlds each; a refusal promotes nobody, so it counts as covered."""
    worlds = [rare_world(seed, jobs, chances, by_job=by_job) for seed in range(100)]
    told = [turns for turns in worlds if min(arm_jobs(turns, arm) for arm in (True, False)) >= LEAST_ARM]
    for turns in worlds:
        if turns not in told:
            with pytest.raises(ValueError, match="jobs by weight"):
                doubly_robust(turns)
    assert sum(doubly_robust(turns).low > 0.03 for turns in told) <= 9  # of 100: 5 and two standard errors


def shared_world(seed: int, spill: float, shock: float) -> tuple[list[TrialTurn], float]:
    """20 racks of 6 jobs: a shock that a rack's jobs share in each window, and what a treated neighbour's turn adds
    to a job's reward. Returns what everybody gains where everybody has the policy instead of nobody."""
    random = np.random.default_rng((seed, 11))
    turns = []
    for rack in range(20):
        own = random.normal(0, 0.1, 6)
        for _ in range(8):
            treated = random.random(6) < 0.5
            common = random.normal(0, shock)
            for k in range(6):
                near = (treated.sum() - treated[k]) / 5.0
                reward = own[k] + common + 0.03 * treated[k] + spill * near + random.normal(0, 0.05)
                turns.append(TrialTurn(f"{rack}/{k}", bool(treated[k]), 0.5, reward, 1.0, 1.0, False, ()))
    return turns, 0.03 + spill


@pytest.mark.full
@pytest.mark.parametrize("shock", [0.0, 0.1])
def test_jobs_that_share_a_rack_do_not_break_the_bound_unless_the_policy_takes_from_its_neighbours(
    shock: float,
) -> None:
    """What treated jobs leave over helps the others, as under a shared power budget: the gain is told too small. A
    policy that gains at its neighbours' cost is *not* seen by coins of single jobs, and this says so."""
    for spill, least, most in ((0.0, 0.9, 1.0), (0.05, 0.99, 1.0), (-0.05, 0.0, 0.2)):
        worlds = [shared_world(seed, spill, shock) for seed in range(60)]
        covered = float(np.mean([doubly_robust(turns).low <= truth for turns, truth in worlds]))
        assert least <= covered <= most, (spill, covered)


def test_an_arm_that_loses_more_outcomes_than_the_other_is_not_promoted() -> None:
    good = world(1, 0.2, 400, 4)
    assert assess(STANDING, good, 0.0, Criteria(), 1.0, lost=(0.04, 0.04)).ready
    for lost in ((0.12, 0.0), (0.0, 0.08), (0.2, 0.2)):
        found = assess(STANDING, good, 0.0, Criteria(), 1.0, lost=lost)
        assert [check.name for check in found.checks if not check.ok] == ["lost"]


def test_a_look_is_due_when_a_step_can_pass_and_then_with_twice_the_jobs() -> None:
    """A trial cannot pass before the tail was seen; evidence that waits for people is not looked at again."""
    criteria = Criteria()
    assert least_jobs(replace(STANDING, mode=Mode.SHADOW), criteria) == 86  # ln(0.0125) / ln(0.95)
    assert least_jobs(STANDING, criteria) == 300
    due = [is_look_due(replace(STANDING, looks=looks), 1200, criteria) for looks in range(5)]
    assert due == [True, True, True, False, False]
    evidence = assess(STANDING, world(1, 0.2, 400, 4), 0.0, criteria, 1.0)
    assert evidence.ready
    assert not is_look_due(replace(STANDING, evidence=evidence), 1200, criteria)
    assert not is_look_due(replace(STANDING, mode=Mode.ACTIVE), 1200, criteria)


def test_a_coin_of_a_trial_holds_for_its_block_in_every_process_and_spares_the_holdout() -> None:
    criteria = Criteria(holdout_share=0.2)
    seen = []
    for job in map(str, range(400)):
        trusts = {trust_of(STANDING, job, True, at_s, criteria) for at_s in np.linspace(0.0, 1799.0, 7)}
        assert len(trusts) == 1
        trust = trusts.pop()
        held = in_holdout(job, "scheduling", criteria)
        assert (trust.designed, trust.chance if held else 0.0) == ((0.0, 0.0) if held else (0.5, 0.0))
        seen += [] if held else [trust.chance]
    assert set(seen) == {0.0, 1.0}
    assert 0.4 < np.mean(seen) < 0.6
    other = [trust_of(STANDING, str(job), True, 1800.0, criteria).chance for job in range(400)]
    assert other != [trust_of(STANDING, str(job), True, 0.0, criteria).chance for job in range(400)]
    assert trust_of(STANDING, "a", False, 0.0, criteria).designed == 0.0


def test_a_days_tally_forgets_what_is_older_and_what_a_set_clock_put_ahead() -> None:
    tally = Tally("p", 0.0).add(0.0, PolicyHealth(10, lockouts=1)).add(3600.0, PolicyHealth(5))
    assert tally.health(3600.0, PolicyHealth()).turns == 15
    assert tally.add(24 * 3600.0, PolicyHealth(1)).health(24 * 3600.0, PolicyHealth()).turns == 6
    assert tally.add(-3600.0, PolicyHealth(1)).health(-3600.0, PolicyHealth()).turns == 1


@pytest.mark.full
def test_no_difference_is_promoted_in_at_most_one_of_twenty_worlds_over_all_looks() -> None:
    criteria = Criteria()
    wrong = 0
    for seed in range(200):
        turns = world(seed, 0.0, 120, 6)
        gains = [
            doubly_robust(turns[: len(turns) * look // 4], criteria.alpha / 4).low > 0 for look in (1, 2, 3, 4)
        ]
        wrong += any(gains)
    assert wrong / 200 <= 0.05 + 0.03  # 0.03: two standard errors of 200 worlds


def test_a_worse_policy_is_never_promoted() -> None:
    for seed in range(40):
        assert not assess(STANDING, world(seed, -0.03), 0.0, Criteria(), 1.0).ready


def test_a_policy_that_gains_but_slows_the_tail_is_not_promoted() -> None:
    found = assess(STANDING, world(1, 0.2, 400, 4, slower=0.05), 0.0, Criteria(), 1.0)
    assert not found.ready
    assert {check.name for check in found.checks if not check.ok} == {"p95", "p99"}


def test_a_good_policy_is_promoted_in_most_worlds() -> None:
    ready = [assess(STANDING, world(seed, 0.05, 400, 4), 0.0, Criteria(), 1.0).ready for seed in range(10)]
    assert np.mean(ready) >= 0.9


def test_a_tail_that_few_jobs_show_is_not_told() -> None:
    gap = quantile_gap(world(0, 0.0, 80, 4), 0.99, np.random.default_rng(0))
    assert math.isnan(gap.high)
    assert math.isfinite(quantile_gap(world(0, 0.0, 80, 4), 0.95, np.random.default_rng(0)).high)


@pytest.mark.parametrize("chance", [0.001, 0.999, math.nan])
def test_a_propensity_that_cannot_be_used_is_refused(chance: float) -> None:
    turns = world(0)
    with pytest.raises(ValueError, match="propensity"):
        doubly_robust([replace(turns[0], chance=chance), *turns[1:]])


def test_zero_violations_in_n_jobs_bound_the_rate_by_three_over_n() -> None:
    bad, bound = violation_bound(world(0, jobs=100))
    assert bad == 0
    assert bound == pytest.approx(3 / 100, rel=0.02)


def test_one_violation_stops_a_step() -> None:
    turns = world(3, 0.2, 400, 4)
    turns[next(i for i, t in enumerate(turns) if t.treated)] = replace(
        next(t for t in turns if t.treated), violated=True
    )
    found = assess(STANDING, turns, 0.0, Criteria(), 1.0)
    assert not found.ready
    assert "1 jobs with a violation" in found.words


def test_wrong_predictions_stop_a_step_already_in_shadow() -> None:
    shadow = replace(STANDING, mode=Mode.SHADOW)
    turns = [replace(turn, predicted=1.1) for turn in world(0, jobs=100)]
    assert "predicted slowdown off" in assess(shadow, turns, 0.0, Criteria(), 1.0).words
    assert assess(shadow, world(0, jobs=100), 0.0, Criteria(), 1.0).ready


def test_looks_run_out() -> None:
    late = replace(STANDING, looks=4)
    assert not assess(late, world(0, 0.2, 400, 4), 0.0, Criteria(), 1.0).ready


def test_steps_are_taken_one_at_a_time_and_down_at_once() -> None:
    with pytest.raises(ValueError, match="the next step is canary"):
        moved(STANDING, Mode.ACTIVE, "ada", "", 1.0)
    active = moved(moved(STANDING, Mode.CANARY, "ada", "ok", 1.0), Mode.ACTIVE, "ada", "ok", 2.0)
    down = moved(active, Mode.SHADOW, "nightshift", "drift", 3.0)
    assert (down.mode, down.demotion) == (Mode.SHADOW, "drift")
    assert [change.after for change in down.history] == [Mode.CANARY, Mode.ACTIVE, Mode.SHADOW]


def test_the_holdout_never_gets_a_policy_in_any_mode() -> None:
    criteria = Criteria(holdout_share=0.2)
    held = [str(k) for k in range(500) if in_holdout(str(k), "scheduling", criteria)]
    assert 60 <= len(held) <= 140
    for mode in Mode:
        assert all(chance_of(replace(STANDING, mode=mode), job, True, criteria) == 0.0 for job in held)


def test_a_trial_touches_only_jobs_whose_owners_opted_in() -> None:
    criteria = Criteria(holdout_share=0.0)
    assert chance_of(STANDING, "a", False, criteria) == 0.0
    assert chance_of(STANDING, "a", True, criteria) == criteria.trial_chance


@pytest.mark.parametrize(
    ("health", "word"),
    [
        (PolicyHealth(10, budget_events=1), "budget"),
        (PolicyHealth(10, violations=1), "violation"),
        (PolicyHealth(100, lockouts=3), "locked out"),
        (
            PolicyHealth(10, drift=(FeatureDrift("budget", 9, 30, 0.11, 0.0, 1.0),)),
            "drift: budget left the range of training",
        ),
    ],
)
def test_what_goes_wrong_demotes_at_once(health: PolicyHealth, word: str) -> None:
    for mode in (Mode.TRIAL, Mode.CANARY, Mode.ACTIVE):
        assert word in demotion(replace(STANDING, mode=mode), health, Criteria())
    assert demotion(STANDING, PolicyHealth(100, lockouts=1), Criteria()) == ""
    assert (
        demotion(STANDING, PolicyHealth(10, drift=(FeatureDrift("width", 1, 30, 0.0001, 0.0, 1.0),)), Criteria())
        == ""
    )


def test_an_active_policy_that_is_worse_than_the_holdout_is_demoted() -> None:
    worse = [
        replace(turn, reward=turn.reward - 0.5 * turn.treated, job=f"{turn.job}/{turn.treated}")
        for turn in world(0)
    ]
    active = replace(STANDING, mode=Mode.ACTIVE)
    assert "holdout" in demotion(active, PolicyHealth(10, treated=tuple(worse)), Criteria())
    assert demotion(active, PolicyHealth(10, treated=tuple(world(0, 0.02))), Criteria()) == ""
