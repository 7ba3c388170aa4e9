"""Six times ten plausible kernels with a hidden defect, each ten written after a freeze: what was said is told.

`python -m benchmarks.kernels_exploits --parts mutants mutants_later mutants_third …` shows them to the
judge. The first ten were written against the judge at 9675821, the later ten against it at 8b8f0ae, the third ten
at 5c0c819, the fourth at 8b994f9, the fifth at d2a488d, the
sixth at 63418da.
Those it missed when it was frozen were answered afterwards where that could be done, and the fixtures stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nightshift.kernels.candidate import Bound, Candidate, Domain
from nightshift.kernels.candidate_file import read_candidate
from nightshift.kernels.judge import static
from nightshift.kernels.judge.gallery import Piece, read_gallery, show
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER, QUICK_GPU, Probe, Scope, plan
from nightshift.kernels.judge.probes.oracle import gradient_seeds
from nightshift.kernels.ops.problems import ALL, named
from nightshift.kernels.problem import Case, Problem, unusual

HERE = Path(__file__).parent / "mutants"
LATER = Path(__file__).parent / "mutants_later"
THIRD = Path(__file__).parent / "mutants_third"
FOURTH = Path(__file__).parent / "mutants_fourth"
FIFTH = Path(__file__).parent / "mutants_fifth"
SIXTH = Path(__file__).parent / "mutants_sixth"
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
        (
            "layernorm_one_pass_for_wide_rows",
            lambda p: (p.distribution, p.case.dtype) == ("large_mean", "float32") and p.case["n"] > 8192,
        ),
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


SECRETS = [bytes([number]) for number in range(40)]
UNBOUND = Candidate("", "entry", "triton", "own_kernel", "bitwise", differentiable=True)
NARROW = replace(UNBOUND, domain=Domain(layouts=("contiguous",), bounds=(Bound("n", multiple=64),)))


@pytest.mark.parametrize("scope", [INTERPRETER, CPU, QUICK_GPU], ids=["interpreter", "cpu", "gpu"])
@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.name)
def test_no_plan_leaves_a_distribution_or_numbers_to_the_luck_of_its_secret(problem: Problem, scope: Scope) -> None:
    """Every distribution of values in every dtype; and the usual numbers among the inputs as well as others."""
    for secret in SECRETS:
        # exact probes have inputs of their own, one for each rule
        probes = [p for p in plan(problem, UNBOUND, secret, scope) if p.stage != "exact"]
        drawn = {(p.distribution, p.case.dtype) for p in probes}
        assert drawn == set(itertools.product(problem.distributions, problem.dtypes))
        for dtype in problem.dtypes if problem.numbers else ():
            for name in {"normal", "tiny"} & set(problem.distributions):
                kinds = {unusual(p.case) for p in probes if (p.distribution, p.case.dtype) == (name, dtype)}
                assert kinds == {False, True}
        if problem.gradients:
            upstreams = {(p.upstream, p.case.dtype) for p in probes if p.backward}
            asked = {"expanded", "some_zero", "scaled", "infinite"}
            assert set(itertools.product(asked, problem.dtypes)) <= upstreams
            assert {p.case.layout for p in probes if p.backward} >= set(problem.layouts)


@pytest.mark.parametrize("problem", [p for p in ALL if p.numbers], ids=lambda problem: problem.name)
def test_a_narrow_domain_meets_other_numbers_too(problem: Problem) -> None:
    for secret in SECRETS:
        kinds = {unusual(p.case) for p in plan(problem, NARROW, secret, CPU) if p.distribution == "normal"}
        assert kinds == {False, True}


def test_of_few_rows_of_upstream_gradients_some_are_zero_and_some_are_not() -> None:
    for seed in range(40):
        (made,) = gradient_seeds([torch.empty(2, 5)], seed, "some_zero")
        assert sorted((made == 0).all(dim=1).tolist()) == [False, True]


def test_some_row_of_integers_holds_only_the_least_there_is() -> None:
    case = Case.of("int32", m=2, n=9)
    for seed in range(40):
        (values,) = named("max").inputs(case, "nan", seed, "cpu")
        assert isinstance(values, torch.Tensor)
        assert bool((values == torch.iinfo(torch.int32).min).all(dim=1).any())


def test_all_scores_of_an_attention_can_lie_far_below_zero() -> None:
    case = Case.of("float16", b=1, h=2, s=17, d=16)
    for seed in range(40):
        q, k, _ = named("flash_attention").inputs(case, "large_negative", seed, "cpu")
        assert isinstance(q, torch.Tensor)
        assert isinstance(k, torch.Tensor)
        assert float((q.double() @ k.double().transpose(-1, -2) * 16**-0.5).max()) < -200


# the others show only on a GPU, or in sizes that an interpreter does not reach
SEEN_ON_THE_CPU = {
    "attention_floor_of_scores",
    "cross_entropy_gradient_skips_zero_rows",
    "max_integer_without_the_least",
    "rmsnorm_knows_epsilon",
    "dropout_of_nothing_forgets_the_residual",
    "dropout_seed_of_48_bits",
    "rmsnorm_gradient_hides_infinities",
    "softmax_of_a_masked_first_block",
}


@pytest.mark.full
@pytest.mark.parametrize(
    "piece",
    [p for folder in (LATER, SIXTH) for p in read_gallery(folder, "cpu") if p.name in SEEN_ON_THE_CPU],
    ids=lambda piece: piece.name,
)
def test_a_later_mutant_that_needs_no_gpu_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    shown = show(interpreting_judge, piece, INTERPRETER, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


@pytest.mark.full
@pytest.mark.parametrize("piece", read_gallery(THIRD, "cpu"), ids=lambda piece: piece.name)
def test_a_mutant_of_the_third_ten_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    shown = show(interpreting_judge, piece, INTERPRETER, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


# what no plan for an interpreter asks yet: see docs/judge-mutants.md
NOT_ANSWERED = {
    "embedding_gradient_counts_in_a_byte",
    "swiglu_gradient_products_in_half",
}


@pytest.mark.full
@pytest.mark.parametrize(
    "piece", [p for p in read_gallery(FOURTH, "cpu") if p.name not in NOT_ANSWERED], ids=lambda piece: piece.name
)
def test_a_mutant_of_the_fourth_ten_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    shown = show(interpreting_judge, piece, INTERPRETER, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


@pytest.mark.full
@pytest.mark.parametrize(
    "piece",
    [p for p in read_gallery(FIFTH, "cpu") if p.name != "embedding_gradient_index_of_16_bits"],  # 65,536 programs
    ids=lambda piece: piece.name,
)
def test_a_mutant_of_the_fifth_ten_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    shown = show(interpreting_judge, piece, INTERPRETER, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


def test_an_embeddings_table_is_larger_than_16_bits_count() -> None:
    file = read_candidate(FIFTH / "embedding_gradient_index_of_16_bits.py")
    for secret in SECRETS[:10]:
        probes = plan(named(file.problem), file.candidate, secret, QUICK_GPU)
        assert max(p.case["v"] for p in probes) > 65536


@pytest.mark.parametrize("folder", [FOURTH, FIFTH, SIXTH], ids=["fourth", "fifth", "sixth"])
def test_later_mutants_read_like_honest_kernels_and_all_run_on_the_cpu(folder: Path) -> None:
    found = {piece.name: static.read(piece.file.candidate) for piece in read_gallery(folder, "cpu")}
    assert len(found) == 10
    assert [name for name, seen in found.items() if seen] == []


@pytest.mark.parametrize("scope", [INTERPRETER, QUICK_GPU], ids=["interpreter", "gpu"])
@pytest.mark.parametrize("name", ["reduce_sum", "rmsnorm", "swiglu", "quantise"])
def test_every_plan_asks_for_groups_of_rows_and_parts_of_a_tile(name: str, scope: Scope) -> None:
    """Rows modulo 8, and the eighth of 128 in which the last columns end; backward passes odd widths too."""
    for secret in SECRETS:
        probes = plan(named(name), UNBOUND, secret, scope)
        cases = [p.case for p in probes if not p.backward]
        assert {case["m"] % 8 for case in cases} == set(range(8))
        assert {case["n"] % 128 // 16 for case in cases} == set(range(8))
        if named(name).gradients:
            assert {p.case["n"] % 2 for p in probes if p.backward} == {0, 1}


@pytest.mark.parametrize("scope", [INTERPRETER, QUICK_GPU], ids=["interpreter", "gpu"])
def test_every_plan_asks_for_sizes_between_and_for_shapes_of_one_number_of_elements(scope: Scope) -> None:
    """Each quarter of each octave of columns; and two shapes, one right after the other."""
    for secret in SECRETS[:8]:
        cases = [p.case for p in plan(named("reduce_sum"), UNBOUND, secret, scope) if p.stage == "sweep"]
        for power, quarter in itertools.product(range(9, 14), range(4)):
            low = (1 << power) + (quarter << power - 2)
            assert any(low <= case["n"] <= low + (1 << power - 2) for case in cases)
        pairs = [(a, b) for a, b in itertools.pairwise(cases) if a["m"] * a["n"] == b["m"] * b["n"]]
        other = [{(2 * a["m"], a["n"] // 2), (a["m"] // 2, 2 * a["n"])} for a, _ in pairs]
        assert any((b["m"], b["n"]) in shapes for shapes, (_, b) in zip(other, pairs, strict=True))


@pytest.mark.parametrize("problem", [p for p in ALL if p.gradients], ids=lambda problem: problem.name)
def test_every_plan_asks_for_a_second_backward_pass_weights_of_zero_and_gradients_of_some_outputs(
    problem: Problem,
) -> None:
    smallest = {**problem.cases[0].sizes, **{axis.name: max(axis.low, axis.multiple) for axis in problem.axes}}
    made = problem.eager(problem.inputs(Case.of(problem.cases[0].dtype, **smallest), "normal", 1, "cpu"))
    assert len(made) == problem.outputs
    for secret in SECRETS[:8]:
        probes = [p for p in plan(problem, UNBOUND, secret, CPU) if p.backward]
        assert any(p.twice for p in probes)
        assert {p.only for p in probes} == ({-1, *range(len(made))} if len(made) > 1 else {-1})
        if "ties" in problem.distributions:
            assert {p.case.dtype for p in probes if p.distribution == "ties"} == set(problem.dtypes)


def test_weights_under_ties_are_sometimes_zero() -> None:
    _, weight, *_ = named("layernorm").inputs(Case.of("float32", m=2, n=64), "ties", 1, "cpu")
    assert isinstance(weight, torch.Tensor)
    assert 5 < int((weight == 0).sum()) < 40
    assert bool((weight[weight != 0].abs() >= 0.5).all())  # not −1 and 1: eager's rounding would vanish there


def test_who_answers_for_every_stride_is_asked_about_one_of_zero_and_about_every_second_column() -> None:
    """And nobody else is."""
    strided = replace(UNBOUND, domain=Domain(layouts=("contiguous", "padded", "transposed", "offset")))
    for secret in SECRETS[:10]:
        for candidate, asked in ((UNBOUND, True), (strided, True), (NARROW, False)):
            layouts = {p.case.layout for p in plan(named("softmax"), candidate, secret, CPU)}
            assert ("repeated" in layouts) is ("stepped" in layouts) is asked


def test_the_third_ten_read_like_honest_kernels_and_all_run_on_the_cpu() -> None:
    found = {piece.name: static.read(piece.file.candidate) for piece in read_gallery(THIRD, "cpu")}
    assert len(found) == 10
    assert [name for name, seen in found.items() if seen] == []


def test_every_plan_asks_gradients_of_values_that_overflow_an_exponential() -> None:
    """In the backward pass alone; of 16-bit dtypes, as in float32 eager is more exact there than it must be."""
    for problem, secret in itertools.product((p for p in ALL if p.gradients), SECRETS):
        steep = {"large_mean", "large_negative"} & set(problem.distributions)
        short = {d for d in problem.dtypes if d != "float32"}
        asked = {(p.distribution, p.case.dtype) for p in plan(problem, UNBOUND, secret, CPU) if p.backward}
        assert set(itertools.product(steep, short)) <= asked


def test_unusual_numbers_of_adamw_are_late_steps_whose_moments_still_remember_their_beginning() -> None:
    case = next(c for c in (Case.of("float32", n=n) for n in range(2, 99)) if unusual(c))
    *_, beta2, _, _, step = named("adamw").inputs(case, "normal", 1, "cpu")
    assert isinstance(beta2, float)
    assert isinstance(step, int)
    assert step > 2000
    assert beta2**step > 0.1


def test_codes_to_dequantise_reach_the_least_there_is() -> None:
    codes, _ = named("dequantise").inputs(Case.of("float32", m=64, n=257), "normal", 1, "cpu")
    assert isinstance(codes, torch.Tensor)
    assert (int(codes.min()), int(codes.max())) == (-128, 127)


@pytest.mark.full
@pytest.mark.parametrize("piece", MUTANTS, ids=lambda piece: piece.name)
def test_a_mutant_that_needs_no_gpu_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    scope = INTERPRETER if piece.file.candidate.language == "triton" else CPU
    shown = show(interpreting_judge, piece, scope, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"
