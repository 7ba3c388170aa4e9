"""Twice ten plausible kernels with a hidden defect, written after a freeze: what the judge made of them is told.

`python -m benchmarks.kernels_exploits --parts mutants mutants_later` shows them to the judge. The first ten were
written against the judge at 9675821, the later ten against it at 8b8f0ae. Those it missed when it was frozen were
answered afterwards where that could be done, and the fixtures stay.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.judge import static
from kernels.judge.gallery import Piece, read_gallery, show
from kernels.judge.inputs import CPU, INTERPRETER
from kernels.judge.judge import Judge

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


@pytest.mark.full
@pytest.mark.parametrize("piece", MUTANTS, ids=lambda piece: piece.name)
def test_a_mutant_that_needs_no_gpu_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    scope = INTERPRETER if piece.file.candidate.language == "triton" else CPU
    shown = show(interpreting_judge, piece, scope, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"
