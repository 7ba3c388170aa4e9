"""`make gpu-check`: every family has a kernel to judge, and what the time cut off is no success."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.kernels_gpu_check import Book, Piece, best_of, judge_sha256, slowest_first
from nightshift.kernels.ops.families import ALL


def test_every_family_has_a_kernel_for_a_case_of_its_own() -> None:
    for family in ALL:
        found = best_of(family, "NVIDIA H100 80GB HBM3", "cuda")
        assert found is not None, family.name
        problem, case, made = found
        assert problem.name in family.problems
        assert made.domain.admits(case.sizes, case.dtype, case.layout), (family.name, str(case))


def piece(name: str, rows: list[dict[str, Any]]) -> Piece:
    return Piece("families", name, lambda: rows.pop(0))


def test_what_the_time_cut_off_is_named_and_not_right(tmp_path: Path) -> None:
    record = {"families": [], "not_run": [], "judge_sha256": judge_sha256()}
    book = Book(tmp_path / "check.json", 100.0, record)
    taken = {"right": False, "reason": "vram_taken"}
    # the second has its memory taken once, the third always
    book.each([piece("a", [{"right": True}]), piece("b", [taken, {"right": True}]), piece("c", [taken, taken])], 1)
    book.until_s = 0.0
    book.each([piece("d", [{"right": True}])], 1)
    told = json.loads((tmp_path / "check.json").read_text())
    assert [(row["name"], row["right"]) for row in told["families"]] == [
        ("a", True), ("b", True), ("c", False), ("d", False),
    ]  # fmt: skip
    assert told["not_run"] == ["families: d"]
    assert len(told["judge_sha256"]) == 64


def test_what_took_longest_is_judged_first(tmp_path: Path) -> None:
    (tmp_path / "last.json").write_text(
        json.dumps({"families": [{"name": "a", "took_s": 3.0}, {"name": "b", "took_s": 9.0}]})
    )
    asked = [piece(name, []) for name in "abc"]
    assert [p.name for p in slowest_first(asked, tmp_path / "last.json")] == ["c", "b", "a"]
    assert [p.name for p in slowest_first(asked, tmp_path / "none.json")] == ["a", "b", "c"]
