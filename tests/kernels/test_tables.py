"""Measured tables: what is measured, and what is kept of an earlier measurement."""

from __future__ import annotations

from typing import Any

from benchmarks.kernels_best import merged
from benchmarks.kernels_tables import chosen
from kernels.generate.families import families_of
from kernels.problem import Case

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
