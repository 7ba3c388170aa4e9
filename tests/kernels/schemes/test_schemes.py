"""Bilinear schemes: walks find them, the checker misses no wrong coefficient, lifts and kernels are exact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.kernels.problem import Case
from nightshift.kernels.schemes import flip_graph, lifting, scheme
from nightshift.kernels.schemes.native import compiler
from nightshift.kernels.schemes.scheme import Format, Scheme, SchemeError

STRASSEN = flip_graph.search(Format.of("2x2x2"), 7, 0, 30.0)
KEPT = [scheme.read(path) for path in sorted(scheme.LIBRARY.glob("*.json"))]


@pytest.mark.parametrize("text", ["2x2", "0x1x1", "9x2x2", "lower-3", "upper-9", ""])
def test_a_format_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(SchemeError, match="format"):
        Format.of(text)


@pytest.mark.parametrize("text", ["1x1x1", "2x3x4", "upper-3"])
def test_the_definition_of_a_product_is_exact(text: str) -> None:
    assert scheme.fault_of(scheme.definition(Format.of(text))) == ""


def _wrong(right: Scheme, term: int, axis: int, place: int, by: int) -> Scheme:
    factor = list(right.terms[term][axis])
    factor[place] += by
    changed = [list(each) for each in right.terms]
    changed[term][axis] = tuple(factor)
    return replace(right, terms=tuple(tuple(each) for each in changed))  # type: ignore[misc]


@settings(max_examples=60)
@given(st.data())
def test_one_corrupted_coefficient_is_caught_in_any_scheme(data: st.DataObject) -> None:
    right = data.draw(st.sampled_from([STRASSEN, *[each for each in KEPT if each.rank < 30]]))
    term, axis = data.draw(st.integers(0, right.rank - 1)), data.draw(st.integers(0, 2))
    place = data.draw(st.integers(0, right.format.lengths[axis] - 1))
    by = data.draw(st.sampled_from([-1, 1, 3]))
    assert scheme.fault_of(right) == ""
    assert scheme.fault_of(_wrong(right, term, axis, place, by)) != ""


def test_the_compiled_walk_and_pythons_take_the_same_steps() -> None:
    if compiler() is None:
        pytest.skip("no C compiler")
    start = scheme.packed(scheme.definition(Format.of("2x2x3"), "GF(2)"))
    for seed in range(3):
        ways = [
            walk(start, 11, 5000, seed, patience=40) for walk in (flip_graph.walk_python, flip_graph.walk_native)
        ]
        assert ways[0] == ways[1]


def test_without_a_compiler_the_search_walks_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flip_graph, "_library", lambda: flip_graph.build("", (), "/nowhere/cc"))
    assert flip_graph.chosen_walk() is flip_graph.walk_python
    assert flip_graph.search(Format.of("2x2x2"), 7, 0, 30.0, steps=20_000) == STRASSEN


def test_a_search_grows_one_size_at_a_time() -> None:
    assert [str(each) for each in flip_graph.stages(Format.of("3x3x3"))] == ["2x2x2", "2x2x3", "2x3x3", "3x3x3"]
    assert [str(each) for each in flip_graph.stages(Format.of("4x5x5"))][-3:] == ["4x4x4", "4x4x5", "4x5x5"]
    wide = flip_graph.grown(STRASSEN, Format.of("2x3x3"))
    assert wide.rank == 7 + 18 - 8
    assert scheme.fault_of(wide) == ""


def test_laderman_s_rank_is_found_and_lifted_to_the_integers() -> None:
    found = flip_graph.search(Format.of("3x3x3"), 23, 2, 60.0)  # those of seeds 0 and 1 have no lift
    whole = lifting.lifted(found)
    assert found.rank == 23
    assert whole is not None
    assert scheme.fault_of(whole) == ""
    assert all(np.array_equal(a & 1, b & 1) for a, b in zip(whole.factors(), found.factors(), strict=True))


def test_a_file_with_another_rank_or_a_wrong_term_is_refused(tmp_path: Path) -> None:
    path = scheme.write(STRASSEN, tmp_path)
    assert scheme.read(path) == STRASSEN
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "rank": 6}))
    with pytest.raises(SchemeError, match="rank: 6"):
        scheme.read(path)
    record["terms"][3][1][0] ^= 1
    path.write_text(json.dumps(record))
    with pytest.raises(SchemeError, match="should add"):
        scheme.read(path)
    path.write_text('{"format": "2x2x2"}')
    with pytest.raises(SchemeError, match="no field 'rank'"):
        scheme.read(path)


def test_the_library_holds_the_published_ranks() -> None:
    ranks = {(str(each.format), each.ring): each.rank for each in KEPT}
    assert ranks[("4x4x4", "GF(2)")] == 47
    assert ranks[("upper-4", "Z")] == 34
    assert ranks[("4x5x5", "GF(2)")] == 76
    assert (ranks[("2x2x2", "Z")], ranks[("3x3x3", "Z")]) == (7, 23)
    assert all(each.origin["seconds"] >= 0 and "seed" in each.origin for each in KEPT)


def test_a_kernel_needs_integers_and_a_full_product() -> None:
    from nightshift.kernels.schemes.kernel import Schemes, candidate, source

    with pytest.raises(SchemeError, match="integers"):
        source(STRASSEN, 1, "triton")
    whole = lifting.lifted(STRASSEN)
    assert whole is not None
    with pytest.raises(SchemeError, match="levels"):
        source(whole, 4, "triton")
    made = candidate(whole, 2, "triton")
    assert not made.exact
    assert made.domain.admits({"m": 64, "n": 8, "k": 4}, "float16", "contiguous")
    assert not made.domain.admits({"m": 66, "n": 8, "k": 4}, "float16", "contiguous")
    from nightshift.kernels.generate.base import Task
    from nightshift.kernels.ops.products.problem import MATMUL

    proposals = Schemes([whole]).propose(Task(MATMUL, Case.of("float32", m=64, n=64, k=64)), [], 9)
    assert len(proposals) == 6


@pytest.mark.full
def test_the_judge_finds_strassen_s_kernel_exact_on_integers_and_further_off_than_torch_else() -> None:
    """A right scheme has no error but that of rounding, which is more than torch's: the judge grants it nothing."""
    from nightshift.kernels.candidate_file import parse_candidate
    from nightshift.kernels.draw import Draw
    from nightshift.kernels.judge.judge import Judge, Request
    from nightshift.kernels.judge.probes.inputs import CPU
    from nightshift.kernels.judge.verdict import Reason
    from nightshift.kernels.ops.products.problem import MATMUL
    from nightshift.kernels.problem import Inputs
    from nightshift.kernels.schemes.kernel import source

    def integers(case: Case, draw: Draw) -> Inputs:
        shapes = (case["m"], case["k"]), (case["k"], case["n"])
        return tuple((draw.integers(shape, 9) - 4).to(case.torch_dtype) for shape in shapes)

    wide = tuple(case.with_(dtype="float32") for case in MATMUL.cases[:1])
    whole_numbers = replace(
        MATMUL,
        make_inputs=integers,
        exact=True,
        rules=(),
        dtypes=("float32",),
        distributions=("normal",),
        cases=wide,
    )
    whole = lifting.lifted(STRASSEN)
    assert whole is not None
    text = source(whole, 1, "library")
    at = text.index("tl.store(to + 0 * rows * columns, ") + len("tl.store(to + 0 * rows * columns, ")
    right, corrupted = (parse_candidate(each, "k").candidate for each in (text, text[:at] + "1.5 * " + text[at:]))
    with Judge("cpu", interpret=True, compiled=False) as court:
        exact = court.verdict(right, whole_numbers, Request(CPU, None))
        assert not exact.refused, exact.detail
        assert court.verdict(corrupted, whole_numbers, Request(CPU, None)).reason is Reason.not_exact
        rounded = court.verdict(right, MATMUL, Request(CPU, None))
    assert rounded.reason in (Reason.rmse, Reason.worst_row, Reason.max_ulp), rounded.detail
