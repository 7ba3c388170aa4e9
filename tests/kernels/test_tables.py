"""Measured tables: what is measured, what is kept of an earlier measurement, and what rows come of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.kernels_best import merged
from benchmarks.kernels_neighbours import chosen as neighbours
from benchmarks.kernels_rows import ceiling, dearest_first, losing, rows
from benchmarks.kernels_tables import chosen
from nightshift.kernels.ops.families import families_of
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

CASE = Case.of("float16", m=4096, n=4096)


def _table(warps: list[int], figures: dict[int, float | None], failures: dict[str, str]) -> dict[str, Any]:
    return {
        "environment": {"gpu": "one"},
        "dimensions": {"warps": warps},
        "configs": [[warps.index(w)] for w in figures],
        "microseconds": list(figures.values()),
        "failures": failures,
    }


def test_a_part_of_a_space_can_be_measured_alone() -> None:
    """--where keeps the points with one of the values named, and ignores names that the space does not have."""
    family = families_of("softmax")[0]
    found = chosen(family, "softmax", CASE, 1000, {"warps": {"4", "8"}, "no_such": {"1"}})
    assert {c["warps"] for c in found} == {4, 8}
    assert len(found) == sum(c["warps"] in (4, 8) for c in family.space("softmax", CASE))


def test_figures_measured_anew_replace_only_themselves() -> None:
    """The others stand with their failures; values that the space lost go, and another GPU's table goes whole."""
    old = _table([1, 2, 4], {1: 10.0, 2: 20.0, 4: None}, {"2": "wrong"})
    new = _table([2, 4, 8], {2: 19.0, 8: 7.0}, {})
    both = merged(old, new)
    values = [both["dimensions"]["warps"][row[0]] for row in both["configs"]]
    assert dict(zip(values, both["microseconds"], strict=True)) == {2: 19.0, 4: None, 8: 7.0}
    assert [values[int(i)] for i in both["failures"]] == [4]
    assert merged({**old, "environment": {"gpu": "another"}}, new) == new


def _row(problem: str, speedup: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    return {"problem": problem, "case": "c", "speedup": speedup, "best_peer": "eager", **more}


def test_the_dearest_rows_of_the_last_run_go_first_and_new_ones_before_them(tmp_path: Path) -> None:
    """So several GPUs end together."""
    softmax = rows(["softmax"])
    last = tmp_path / "last.json"
    last.write_text(json.dumps({"rows": [{"problem": "softmax", "case": str(softmax[0][1]), "took_s": 9.0}]}))
    assert dearest_first(softmax, last) == softmax[::-1]
    assert dearest_first(softmax, tmp_path / "none.json") == softmax


def test_a_row_loses_by_its_middle_or_where_a_library_is_at_the_limit_by_its_whole_interval() -> None:
    """A ceiling is that of the faster pass over the row's bytes."""
    interval = (0.98, 0.99, 1.01)
    assert losing([_row("softmax", interval), _row("matmul", interval), _row("matmul", (0.9, 0.95, 0.99))]) == [
        "softmax c",
        "matmul c",
    ]
    row = _row("softmax", interval, peers_us={"eager": 12.0}, copy_us=10.0)
    assert (ceiling(row), ceiling({**row, "in_place_us": 8.0})) == (1.2, 1.5)


def test_neighbours_are_asked_of_each_family_with_and_without_lines_that_l2_holds() -> None:
    case = max(named("rmsnorm").cases, key=named("rmsnorm").compulsory_bytes)
    found = dict(neighbours("rmsnorm", case))
    assert {"rows_direct_cuda", "rows_direct_cuda evict_last", "rmsnorm_looped"} <= set(found)
    assert "L2::evict_last.b64" in found["rows_direct_cuda evict_last"].source
    assert "L2::evict_last.b64" not in found["rows_direct_cuda"].source
