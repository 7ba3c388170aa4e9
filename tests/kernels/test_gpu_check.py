"""`make gpu-check`: every family has a kernel to judge, and what the time cut off is no success."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.kernels_gpu_check import Book, best_of, judge_sha256
from nightshift.kernels.ops.families import ALL


def test_every_family_has_a_kernel_for_a_case_of_its_own() -> None:
    for family in ALL:
        found = best_of(family, "NVIDIA H100 80GB HBM3", "cuda")
        assert found is not None, family.name
        problem, case, made = found
        assert problem.name in family.problems
        assert made.domain.admits(case.sizes, case.dtype, case.layout), (family.name, str(case))


def test_what_the_time_cut_off_is_named_and_not_right(tmp_path: Path) -> None:
    record = {"families": [], "not_run": [], "judge_sha256": judge_sha256()}
    book = Book(tmp_path / "check.json", 100.0, record)
    book.each("families", ["a"], 1, 0.5, lambda name: {"name": name, "right": True})
    book.until_s = 0.0
    book.each("families", ["b"], 1, 0.5, lambda name: {"name": name, "right": True})
    told = json.loads((tmp_path / "check.json").read_text())
    assert [(row["name"], row["right"]) for row in told["families"]] == [("a", True), ("b", False)]
    assert told["not_run"] == ["families: b"]
    assert len(told["judge_sha256"]) == 64
