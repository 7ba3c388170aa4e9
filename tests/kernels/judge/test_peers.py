"""A baseline that cannot run is told, in the verdict and in the certificate, and "faster" says over which it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from nightshift.collectors.seal import Signer, open_envelope
from nightshift.kernels.candidate import Candidate, Domain
from nightshift.kernels.certification.certificate import issue
from nightshift.kernels.certification.envelope import PAYLOAD_TYPE
from nightshift.kernels.judge import trial as trial_module
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.race import baselines as baselines_module
from nightshift.kernels.judge.race.contest import Pace
from nightshift.kernels.judge.trial import JudgeTrial
from nightshift.kernels.judge.verdict import Comparison, Interval, LeftOut, Reason
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Problem

CASE = Case.of("float32", m=64, n=512)
TINY = replace(INTERPRETER, max_bytes=1 << 12, sweep_random=1, repeats=2)


def _missing(x: torch.Tensor) -> torch.Tensor:
    raise ImportError("No module named 'liger_kernel'")


def _misread(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 0)


def _slow(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        y = torch.softmax(x, -1)
    return y


def _problem(**libraries: Callable[..., Any]) -> Problem:
    return replace(named("softmax"), name="softmax " + " ".join(libraries), cases=(CASE,), libraries=libraries)


@pytest.fixture
def racing(cpu_judge: Judge, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """A judge that races libraries and, for once, a library composition as if it were a kernel."""
    monkeypatch.setattr(
        baselines_module, "baseline_modes", lambda problem, device: {"eager": _slow, **problem.libraries}
    )
    monkeypatch.setattr(trial_module, "class_refusal", lambda *_: None)
    return cpu_judge


def _candidate() -> Candidate:
    source = "import torch\n\n\ndef entry(x):\n    return torch.softmax(x, -1)\n"
    return Candidate(source, "entry", "python", "own_kernel", "bitwise", domain=Domain(("float32",)))


def _request(promote: bool = False) -> Request:
    pace = Pace(min_rounds=9, max_rounds=9, round_s=0.005, max_slots=2)
    return Request(TINY, pace, static=False, promote=promote, gradients=False)


def test_a_baseline_that_is_not_installed_or_computes_something_else_is_told_with_its_reason(racing: Judge) -> None:
    solo = racing.solo(_problem(absent=_missing, misread=_misread), CASE)
    told = {entry.baseline: entry for entry in solo.left_out("a case")}
    assert set(solo.functions) == {"eager"}
    assert "No module named" in told["absent"].why
    assert "computes something else" in told["misread"].why
    assert all(entry.missing for entry in told.values())


def test_a_baseline_that_is_only_slow_is_told_and_is_not_missing(racing: Judge) -> None:
    solo = racing.solo(_problem(fast=lambda x: torch.softmax(x, -1), slow=_slow), CASE)
    told = {entry.baseline: entry.missing for entry in solo.left_out("a case")}
    assert "slow" in told
    assert not any(told.values())  # on a busy machine eager may be slow, too


def _decided(left_out: tuple[LeftOut, ...], promote: bool) -> tuple[Reason, str]:
    trial = JudgeTrial(None, _candidate(), named("softmax"), _request(promote), b"")  # type: ignore[arg-type]
    trial.comparisons = [Comparison(str(CASE), "eager", "A", 1e-5, 2e-5, Interval(1.9, 2.0, 2.1), 15)]
    trial.left_out = list(left_out)
    reason, text, _ = trial._decide()
    return reason, text


ABSENT = LeftOut(str(CASE), "liger", "ModuleNotFoundError: No module named 'liger_kernel'", True)
SLOW = LeftOut(str(CASE), "compile", "1.90 times the best baseline's time, alone", False)


def test_faster_says_over_which_baselines_it_is() -> None:
    reason, text = _decided((ABSENT, SLOW), promote=False)
    assert reason is Reason.clears_best
    assert "raced: eager; NOT raced: liger (ModuleNotFoundError: No module named 'liger_kernel')" in text


def test_nothing_is_promoted_as_faster_without_a_race_against_every_peer() -> None:
    """A slow peer needs no race; one that could not run leaves the verdict inconclusive."""
    assert _decided((ABSENT,), promote=True)[0] is Reason.peer_missing
    assert _decided((SLOW,), promote=True)[0] is Reason.clears_best


def test_the_verdict_and_the_certificate_carry_those_left_out(racing: Judge) -> None:
    problem = _problem(absent=_missing)
    verdict = racing.verdict(_candidate(), problem, _request(), b"peers")
    assert [entry.baseline for entry in verdict.left_out if entry.missing] == ["absent"], verdict.detail
    signer = Signer.generate()
    envelope = issue(verdict, _candidate(), problem, signer, "2026-11-21T00:00:00+00:00", "abc")
    payload, _ = open_envelope(envelope, PAYLOAD_TYPE, {signer.key_id: signer.public})
    assert b"No module named" in payload
    assert b'"left_out"' in payload
    assert any("could not run: absent" in gap for gap in verdict.not_checked)
    assert b'"not_checked"' in payload
