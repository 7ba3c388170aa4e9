"""Attention's kernels where projections leave its tensors: right, with each tensor's own strides, and what was
measured is still written byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.candidate_file import parse_candidate
from nightshift.kernels.generate.template import Family, candidate, rewritten
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.ops.attention.triton_family import FlashAttention
from nightshift.kernels.ops.attention.triton_gradient_family import FlashBackward
from nightshift.kernels.ops.families import ALL
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "kernels_table.json"
CASE = Case.of("float16", b=2, h=2, s=40, d=16)


def test_what_was_measured_heads_first_is_still_written_byte_for_byte() -> None:
    """The candidates of the committed table, from their configurations."""
    rows = [row for row in json.loads(TABLE.read_text())["rows"] if row["problem"].startswith("flash_attention")]
    rows = [row for row in rows if "by_position" not in row["problem"]]
    assert len(rows) >= 4
    for row in rows:
        *sizes, dtype = row["case"].split()
        case = Case.of(dtype, **{name: int(value) for name, value in (item.split("=") for item in sizes)})
        family = next(family for family in ALL if family.name == row["family"])
        assert candidate(family, row["problem"], case, row["config"]).sha256 == row["candidate_sha256"], row["case"]


def test_a_rewriting_that_finds_no_such_lines_or_several_is_refused() -> None:
    body = "a = 1\nb = 2\nif a:\n    a = 1\n"
    assert rewritten(body, "- a = 1\n+ a = 3\n+ c = 4\n") == "a = 3\nc = 4\nb = 2\nif a:\n    a = 1\n"
    for changes in ("- c = 1\n+ c = 2", "-  = 2\n+ b = 3", "- a = 1\n+ a = 2\n\n- a = 1\n+ a = 3"):
        with pytest.raises(ValueError, match="does not stand in the kernel once"):
            rewritten(body, changes)
    with pytest.raises(ValueError, match="does not stand in the kernel once"):
        rewritten(body + "a = 1\n", "- a = 1\n+ a = 2")


MIXED_UP = [
    (FlashAttention(), "", "q.stride(1), k.stride(1), v.stride(1)", "q.stride(1), q.stride(1), v.stride(1)"),
    (FlashAttention(), "", "q.stride(1), k.stride(1), v.stride(1)", "q.stride(1), k.stride(1), k.stride(1)"),
    (FlashAttention(), "", "q.stride(1), k.stride(1), v.stride(1)", "h * d, k.stride(1), v.stride(1)"),
    (FlashBackward(), "_backward", "= gradient.stride(1), q", "= q.stride(1), q"),
    (FlashBackward(), "_backward", "q.stride(1), k.stride(1), v", "q.stride(1), q.stride(1), v"),
    (FlashBackward(), "_backward", "k.stride(1), v.stride(1)", "k.stride(1), k.stride(1)"),
    (FlashBackward(), "_backward", "by[0], out.stride(1)", "by[0], h * d"),
]


def _made(family: Family, problem: str, tma: int = 0, old: str = "", new: str = "") -> Candidate:
    """Of float16 alone: the interpreter's products of bfloat16 are products of their bits."""
    configs = [c for c in family.space(problem, CASE) if int(c["bm"]) == int(c["bn"]) == 64]
    config = next(c for c in configs if c.get("tma", tma) == tma)
    source = family.source(problem, CASE, config)
    for text in ("dtypes: float16 bfloat16", *([old] if old else [])):
        assert source.count(text) == 1
    source = source.replace("dtypes: float16 bfloat16", "dtypes: float16")
    return parse_candidate(source.replace(old, new) if old else source, "a test").candidate


@pytest.mark.full
@pytest.mark.parametrize(("family", "back", "old", "new"), MIXED_UP)
def test_a_kernel_that_takes_one_tensor_s_strides_for_another_s_is_refused(
    interpreting_judge: Judge, family: Family, back: str, old: str, new: str
) -> None:
    """Of the layouts some tensors lie whole and others sliced."""
    problem = f"flash_attention_by_position{back}"
    wrong = _made(family, problem, old=old, new=new)
    verdict = interpreting_judge.verdict(wrong, named(problem), Request(INTERPRETER, None, cases=(CASE,)))
    assert verdict.status == "wrong", verdict.detail
    assert "sliced" in verdict.detail


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "back", "tma"),
    [(FlashAttention(), "", 0), (FlashAttention(), "", 1), (FlashBackward(), "_backward", 0)],
)
def test_every_layout_that_a_kernel_answers_for_is_asked_and_right(
    interpreting_judge: Judge, family: Family, back: str, tma: int
) -> None:
    problem = f"flash_attention_by_position{back}"
    made = _made(family, problem, tma)
    assert made.domain.layouts == ("contiguous", "sliced")
    verdict = interpreting_judge.verdict(made, named(problem), Request(INTERPRETER, None, cases=(CASE,)))
    assert verdict.status == "correct", verdict.detail
    assert set(verdict.domain["layouts"]) == {"contiguous", "sliced"}
