"""Twice ten plausible kernels with a hidden defect, written after a freeze: what the judge made of them is told.

`python -m benchmarks.kernels_exploits --parts mutants mutants_later` shows them to the judge. The first ten were
written against the judge at 9675821, the later ten against it at 8b8f0ae. Those it missed when it was frozen were
answered afterwards where that could be done, and the fixtures stay.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.candidate_file import read_candidate
from kernels.judge import static
from kernels.judge.gallery import Piece, read_gallery, show
from kernels.judge.inputs import CPU, INTERPRETER, QUICK_GPU, Probe, plan
from kernels.judge.judge import Judge
from kernels.problems import named

HERE = Path(__file__).parent / "mutants"
LATER = Path(__file__).parent / "mutants_later"
MUTANTS = read_gallery(HERE, "cpu")


def test_there_are_ten_and_the_static_read_has_nothing_against_nine_of_them() -> None:
    """They read like honest kernels; the one with a module global does not."""
    found = {piece.name: static.read(piece.file.candidate) for piece in read_gallery(HERE, "cuda")}
    assert len(found) == 10
    assert [name for name, seen in found.items() if seen] == ["quantise_by_the_last_scale"]


def test_the_later_ten_read_like_honest_kernels() -> None:
    found = {piece.name: static.read(piece.file.candidate) for piece in read_gallery(LATER, "cuda")}
    assert len(found) == 10
    assert [name for name, seen in found.items() if seen] == []


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("layernorm_one_pass_for_wide_rows", lambda p: p.distribution == "large_mean" and p.case["n"] > 8192),
        ("geglu_wide_path_trusts_one_stride", lambda p: p.case.layout == "odd_padded" and p.case["n"] > 4096),
        ("reduce_sum_forgets_a_chunk_of_one", lambda p: p.case["n"] > 1024 and p.case["n"] % 1024 == 1),
        ("rmsnorm_weight_gradient_of_8192_rows", lambda p: p.backward and p.case["m"] > 8192),
    ],
)
def test_every_plan_for_a_gpu_asks_what_a_mutant_once_was_not_asked(
    name: str, shows: Callable[[Probe], bool]
) -> None:
    """Too large for an interpreter, so that the plan is looked at instead."""
    file = read_candidate(LATER / f"{name}.py")
    for secret in range(20):
        assert any(shows(p) for p in plan(named(file.problem), file.candidate, bytes([secret]), QUICK_GPU))


# not among them: attention_floor_of_scores, which a verdict refuses for about every second secret only
SEEN_ON_THE_CPU = {
    "cross_entropy_gradient_skips_zero_rows",
    "max_integer_without_the_least",
    "rmsnorm_knows_epsilon",
}


@pytest.mark.full
@pytest.mark.parametrize(
    "piece", [p for p in read_gallery(LATER, "cpu") if p.name in SEEN_ON_THE_CPU], ids=lambda piece: piece.name
)
def test_a_later_mutant_that_needs_no_gpu_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    shown = show(interpreting_judge, piece, INTERPRETER, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


@pytest.mark.full
@pytest.mark.parametrize("piece", MUTANTS, ids=lambda piece: piece.name)
def test_a_mutant_that_needs_no_gpu_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    scope = INTERPRETER if piece.file.candidate.language == "triton" else CPU
    shown = show(interpreting_judge, piece, scope, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"
