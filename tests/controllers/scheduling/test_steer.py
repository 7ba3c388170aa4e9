"""The shield of scheduling, under every state that a broken sensor or policy may bring."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.controllers.decision import Mode, decide
from nightshift.controllers.scheduling.steer import (
    InOrder,
    Let,
    Steer,
    SteerLimits,
    SteerShield,
    SteerVerb,
    WaitingJob,
)

LIMITS = SteerLimits()
SHIELD = SteerShield(LIMITS)
SEEN = WaitingJob("q", "ns/a", 1000.0, 900.0, 3600.0, 8, 64, 600.0, False, 3, False, True, False)
NUMBERS = st.one_of(st.floats(-1e7, 1e7), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
STATES = st.builds(
    WaitingJob,
    queue=st.just("q"), workload=st.just("ns/a"), now_s=st.floats(0, 1e7), submitted_s=st.floats(0, 1e7),
    bound_s=st.floats(0, 1e6), gpus=NUMBERS, healthy_gpus=NUMBERS, guess_s=NUMBERS, planned=st.booleans(),
    place=st.integers(0, 500), late=st.booleans(), opted_in=st.booleans(), evicts=st.booleans(),
    ramp_w=NUMBERS, slope_w=NUMBERS, added_w=NUMBERS,
)  # fmt: skip
ACTIONS = st.builds(Steer, st.sampled_from(SteerVerb), NUMBERS, st.integers(-(10**6), 10**6))


@given(STATES, ACTIONS)
@settings(max_examples=400, deadline=None)
def test_whatever_is_proposed_no_hold_lacks_an_end_and_none_outlasts_the_bound_and_its_grace(
    seen: WaitingJob, action: Steer
) -> None:
    done = SHIELD.decide(seen, action).action
    if done.verb is SteerVerb.HOLD:
        assert math.isfinite(done.until_s)
        assert done.until_s <= seen.now_s + max(LIMITS.most_hold_s, LIMITS.ramp_hold_s) + 1e-6
        assert done.until_s <= seen.submitted_s + seen.bound_s + LIMITS.ramp_grace_s + 1e-6
        assert seen.waited_s < seen.bound_s + LIMITS.ramp_grace_s
        assert seen.opted_in
    else:
        assert done.until_s == 0.0
    assert abs(done.boost) <= LIMITS.most_boost
    assert done.boost == 0 or not seen.evicts


@given(STATES, ACTIONS)
@settings(max_examples=200, deadline=None)
def test_asking_twice_gives_the_same_and_what_was_let_through_passes_again(seen: WaitingJob, action: Steer) -> None:
    once = SHIELD.decide(seen, action)
    assert SHIELD.decide(seen, action) == once
    assert SHIELD.decide(seen, once.action).action == once.action


@given(STATES, ACTIONS)
@settings(max_examples=200, deadline=None)
def test_a_job_past_its_bound_waits_for_nothing_but_the_racks_ramp(seen: WaitingJob, action: Steer) -> None:
    over = replace(seen, now_s=seen.submitted_s + seen.bound_s + 1.0, ramp_w=0.0)
    assert SHIELD.decide(over, action).action.verb is SteerVerb.START


def test_a_start_waits_where_the_rack_would_rise_too_fast_and_the_receipt_says_so() -> None:
    steep = replace(SEEN, ramp_w=4000.0, slope_w=5000.0, added_w=2000.0, planned=True)
    action, receipt = decide(
        "scheduling", Mode.ACTIVE, InOrder(), Let(), SHIELD, steep, np.random.default_rng(0), 1000.0
    )
    assert action.verb is SteerVerb.HOLD
    assert [clip.constraint for clip in receipt.clips] == ["rack_ramp"]
    assert receipt.proposed["verb"] == "start"


def test_a_first_start_is_never_too_steep_since_nothing_else_would_ever_start_it() -> None:
    alone = replace(SEEN, ramp_w=0.0, slope_w=100.0, added_w=2000.0, planned=True)
    assert SHIELD.decide(alone, Steer(SteerVerb.START)).action.verb is SteerVerb.START


def test_work_is_kept_off_degraded_gpus_for_a_while() -> None:
    ruling = SHIELD.decide(replace(SEEN, healthy_gpus=4.0), Steer(SteerVerb.START))
    assert ruling.action.verb is SteerVerb.HOLD
    assert ruling.clips[0].constraint == "degraded"


@pytest.mark.parametrize("name", ["gpus", "guess_s", "healthy_gpus", "ramp_w"])
def test_a_missing_number_hands_control_to_the_baseline(name: str) -> None:
    blind = replace(SEEN, **{name: math.nan})
    action, receipt = decide(
        "scheduling", Mode.ACTIVE, InOrder(), Let(), SHIELD, blind, np.random.default_rng(0), 1000.0
    )
    assert action == Steer(SteerVerb.START)
    assert name in receipt.fallback


def test_in_shadow_the_baseline_is_executed_and_the_proposal_is_on_the_receipt() -> None:
    action, receipt = decide(
        "scheduling", Mode.SHADOW, InOrder(), Let(), SHIELD, SEEN, np.random.default_rng(0), 1000.0
    )
    assert action == Steer(SteerVerb.START)
    assert receipt.proposed["verb"] == "hold"
    assert receipt.baseline["verb"] == "start"
