"""The job's file takes each formula from the problem that it is judged by."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from nightshift.kernels.apply import bundle
from nightshift.kernels.apply.bundle import standalone
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.ops.problems import BY_NAME

ELSEWHERE = {
    "flash_attention_by_position": "torch's own kernels where there are some, and the logarithms with them",
    "flash_attention_by_position_backward": "the same",
    "adamw": "the problem's step, written into the tensors",
    "adamw_cast": "the same",
    "adamw_many": "the same, chunk by chunk",
}


@pytest.mark.parametrize("name", sorted(SPECS.keys() - ELSEWHERE.keys()))
def test_a_job_falls_back_to_the_formula_that_the_judge_knows(name: str) -> None:
    assert SPECS[name].reference is BY_NAME[name].reference


def test_the_rest_is_what_cannot_be_the_same_function() -> None:
    assert [n for n in SPECS if SPECS[n].reference is not BY_NAME[n].reference] == [
        n for n in SPECS if n in ELSEWHERE
    ]


def test_a_formula_stands_in_the_file_once_and_imports_nothing_of_ours() -> None:
    tree = ast.parse(standalone())
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(defined) == len(set(defined))
    for name in SPECS.keys() - ELSEWHERE.keys():
        assert defined.count(BY_NAME[name].reference.__name__) == 1
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in imported if module and module.startswith("nightshift")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from nightshift.kernels.draw import Draw", "a job may not have nightshift.kernels.draw"),
        ("import numpy", "a job may not have numpy"),
        ("from nightshift.kernels.ops.adamw.problem import table_of", "table_of may not use CHUNK"),
        ("def gelu_reference(): ...", "gelu_reference stands in"),
    ],
)
def test_what_a_job_cannot_have_is_refused_when_the_file_is_written(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bundle._source

    def planted(module: str) -> tuple[str, ast.Module]:
        source = real(module)[0]
        source += f"\n{text}\n" if module.endswith(".job.interface") else ""
        return source, ast.parse(source)

    monkeypatch.setattr(bundle, "_source", planted)
    with pytest.raises(ValueError, match=said):
        standalone()


def comparison(baseline: str, low: float, case: str = "m=8") -> dict[str, Any]:
    return {"baseline": baseline, "case": case, "speedup": {"low": low, "point": low + 0.01, "high": low + 0.02}}


def test_what_a_kernel_beats_is_by_the_lower_end_in_every_case() -> None:
    raced = [comparison("eager", 1.8), comparison("eager", 1.0, "m=9"), comparison("compile", 0.9)]
    assert bundle._beaten(raced) == []
    assert bundle._beaten([comparison("eager", 1.8), comparison("compile", 1.001)]) == ["compile", "eager"]


@pytest.mark.parametrize(
    ("problem", "status", "beats", "fits"),
    [
        ("rmsnorm", "faster", ["compile", "eager"], True),
        ("rmsnorm", "inconclusive", ["eager"], True),
        ("rmsnorm", "slower", ["eager"], True),
        ("rmsnorm", "slower", [], False),
        ("rmsnorm", "correct", [], False),  # nothing was raced
        ("linear", "inconclusive", ["eager"], False),  # a pass puts it into compiled regions
        ("rmsnorm_cast_backward", "slower", ["eager"], False),
        ("kernelbench/1", "faster", ["eager"], False),
    ],
)
def test_a_job_gets_what_beats_what_it_runs(problem: str, status: str, beats: list[str], fits: bool) -> None:
    record = {"problem": problem, "status": status, "beats": beats}
    assert bundle.fits_job(record) is fits
    assert bundle.fits_job(record, on_cpu=True) is (fits or status == "correct")
