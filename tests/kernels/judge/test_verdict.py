"""Every reason has exactly one status, and a verdict cannot contradict itself."""

from __future__ import annotations

import json
import math

import pytest

from nightshift.collectors.seal import canonical_json
from nightshift.kernels.judge.environment import machine_xid
from nightshift.kernels.judge.verdict import (
    SELF_REPORTED,
    STATUS_OF,
    Comparison,
    Interval,
    Reason,
    Refusal,
    Status,
    Verdict,
    readable,
)


def test_every_reason_belongs_to_one_status() -> None:
    assert set(STATUS_OF) == set(Reason)
    assert set(STATUS_OF.values()) == set(Status)


def test_a_reason_of_another_status_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to cheat"):
        Verdict("0" * 64, "softmax", Status.wrong, Reason.state_kept, "", "sweep")


def test_a_verdict_has_a_canonical_form_with_missing_figures_as_null() -> None:
    found = Comparison("m=1", "eager", "A", 1e-5, 2e-5, Interval(1.9, 2.0, math.inf), 9)
    verdict = Verdict("0" * 64, "softmax", Status.faster, Reason.clears_best, "", "timing", comparisons=(found,))
    again = json.loads(canonical_json(verdict.to_json()))
    assert again["comparisons"][0]["candidate_j"] is None
    assert again["comparisons"][0]["speedup"] == {"low": 1.9, "point": 2, "high": None}
    assert again["status"] == "faster"


def test_slow_is_not_refused_and_wrong_is() -> None:
    assert not Verdict("", "p", Status.slower, Reason.below_baseline, "", "timing").refused
    assert Verdict("", "p", Status.wrong, Reason.rmse, "", "sweep").refused


def test_nothing_that_is_raised_can_make_a_candidate_fit_or_nobodys_fault() -> None:
    for reason in (Reason.clears_best, Reason.passed, Reason.straddles, Reason.xid, Reason.judge_broken):
        with pytest.raises(ValueError, match="refuses nobody"):
            Refusal(reason, "")
        assert reason not in SELF_REPORTED


@pytest.mark.parametrize(
    ("code", "machine"), [(13, False), (31, False), (43, False), (48, True), (79, True), (95, True)]
)
def test_an_xid_is_the_machines_fault_only_where_no_program_can_cause_it(code: int, machine: bool) -> None:
    assert (machine_xid(code) is not None) is machine


def test_what_a_candidate_wrote_into_an_error_can_be_kept_and_shown() -> None:
    """Half characters end files, control characters terminals, and marks of direction a reader's trust."""
    said = readable("a\0\ud800\x1b[31m\u202e é 漢\n\tb" + "z" * 100_000)
    assert said.startswith("a\ufffd\ufffd\ufffd[31m\ufffd é 漢\n\tb")
    assert len(said) == 4000
    said.encode()
