"""Sixty plausible kernels with a hidden defect, ten written after each of six freezes: what was said is told.

A mutant is a patch of a known-good kernel; its head says what it breaks and which judge had been frozen.
`python -m benchmarks.kernels_exploits --parts mutants mutants_later mutants_third …` shows them to the
judge. Those it missed when it was frozen were answered afterwards where that could be done, and the patches stay.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.kernels_exploits import MUTANTS as FREEZES
from nightshift.kernels.candidate import Bound, Candidate, CandidateError, Domain
from nightshift.kernels.candidate_file import CandidateFile
from nightshift.kernels.draw import Draw
from nightshift.kernels.judge import static
from nightshift.kernels.judge.gallery import Piece, read_gallery, read_mutant, show
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.correctness import compare
from nightshift.kernels.judge.probes.inputs import CPU, FULL_GPU, INTERPRETER, QUICK_GPU, Probe, Scope, plan
from nightshift.kernels.judge.probes.oracle import expected, gradient_seeds
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.ops.problems import ALL, named
from nightshift.kernels.problem import Case, Problem, gradients_of, kind, unusual
from tests.kernels.judge.test_judge import library

FOLDER = Path(__file__).parents[1] / "mutants"
NOT_SHOWN_ON_A_CPU = {
    "attention_window_of_4096": "sizes that an interpreter does not reach",
    "embedding_gradient_index_of_16_bits": "65,536 programs",
    "embedding_gradient_token_of_16_bits": "sizes that an interpreter does not reach",
    "geglu_wide_path_trusts_one_stride": "sizes that an interpreter does not reach",
    "gelu_offsets_of_32_bits": "2^31 elements",
    "layernorm_one_pass_for_wide_rows": "sizes that an interpreter does not reach",
    "reduce_sum_forgets_a_chunk_of_one": "sizes that an interpreter does not reach",
    "reduce_sum_with_one_scratch": "see test_record, which asks for the very reason",
    "rmsnorm_residual_keeps_its_sum_by_hand": "a GPU's float32 error",
    "rmsnorm_rows_of_16_bits": "sizes that an interpreter does not reach",
    "rmsnorm_weight_gradient_of_8192_rows": "sizes that an interpreter does not reach",
    "rotary_gradient_of_both_outputs": "five to ten minutes; a GPU refuses it in 30 s (kernels_exploits_cuda.json)",
    "swiglu_reuses_large_outputs": "calls of the timed cases",
    "swiglu_rows_in_32_bits": "2^31 elements",
    # what no plan asks yet: see docs/judge-mutants.md
    "embedding_gradient_counts_in_a_byte": "no row is named 256 times in small cases",
    "swiglu_gradient_products_in_half": "no worse than eager",
}


def mutant(name: str) -> CandidateFile:
    return read_mutant(FOLDER / f"{name}.patch")[0]


def test_ten_were_written_after_each_freeze_and_each_says_what_it_breaks() -> None:
    pieces = read_gallery(FOLDER, "cuda")
    assert Counter(piece.frozen for piece in pieces) == dict.fromkeys(FREEZES.values(), 10)
    assert len({piece.breaks for piece in pieces}) == len(pieces) == 60
    assert all(piece.refused for piece in pieces)


def test_all_read_like_honest_kernels_but_the_one_with_a_module_global() -> None:
    found = {piece.name: static.read(piece.file.candidate) for piece in read_gallery(FOLDER, "cuda")}
    assert [name for name, seen in found.items() if seen] == ["quantise_by_the_last_scale"]


def test_the_last_forty_all_run_on_the_cpu() -> None:
    counts = Counter(piece.frozen for piece in read_gallery(FOLDER, "cpu"))
    assert [counts[freeze] for freeze in list(FREEZES.values())[2:]] == [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("-    scale", "-    scales"), "is not line 20 of the good kernel"),
        (("frozen: 9675821\n", ""), "expected 'breaks: …', 'frozen: …' and a unified diff"),
        (("@@ -17,7", "@@ -18,7"), "is not line 18 of the good kernel"),
    ],
)
def test_a_patch_that_does_not_fit_its_good_kernel_is_no_mutant(
    change: tuple[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "good").symlink_to(FOLDER.parent / "good")
    (tmp_path / "mutants").mkdir()
    path = tmp_path / "mutants" / "layernorm_unbiased_variance.patch"
    text = (FOLDER / path.name).read_text()
    path.write_text(text)
    assert "(n - 1) + eps" in read_mutant(path)[0].candidate.source
    assert text.count(change[0]) == 1
    path.write_text(text.replace(*change))
    with pytest.raises(CandidateError, match=said):
        read_mutant(path)


@pytest.mark.full
@pytest.mark.parametrize(
    "piece",
    [piece for piece in read_gallery(FOLDER, "cpu") if piece.name not in NOT_SHOWN_ON_A_CPU],
    ids=lambda piece: piece.name,
)
def test_a_mutant_that_needs_no_gpu_is_refused(interpreting_judge: Judge, piece: Piece) -> None:
    scope = INTERPRETER if piece.file.candidate.language == "triton" else CPU
    shown = show(interpreting_judge, piece, scope, static=False, pace=None)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


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
    file = mutant(name)
    for secret in range(20):
        assert any(shows(p) for p in plan(named(file.problem), file.candidate, bytes([secret]), QUICK_GPU))


SECRETS = [bytes([number]) for number in range(40)]
UNBOUND = Candidate("", "entry", "triton", "own_kernel", "bitwise", differentiable=True)
NARROW = replace(UNBOUND, domain=Domain(layouts=("contiguous",), bounds=(Bound("n", multiple=64),)))


@pytest.mark.parametrize("scope", [INTERPRETER, CPU, QUICK_GPU], ids=["interpreter", "cpu", "gpu"])
@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.name)
def test_no_plan_leaves_a_distribution_or_numbers_to_the_luck_of_its_secret(problem: Problem, scope: Scope) -> None:
    """Every distribution of values in every dtype; and the usual numbers among the inputs as well as others."""
    for secret in SECRETS[:12]:
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


def test_an_embeddings_table_is_larger_than_16_bits_count() -> None:
    file = mutant("embedding_gradient_index_of_16_bits")
    for secret in SECRETS[:10]:
        probes = plan(named(file.problem), file.candidate, secret, QUICK_GPU)
        assert max(p.case["v"] for p in probes) > 65536


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


@pytest.mark.full
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


# What the sixth ten taught: a share of nothing, infinite gradients, masked ends, sizes beyond 16 and 32 bits


@pytest.mark.parametrize(
    ("name", "axis", "least"),
    [
        ("rmsnorm_rows_of_16_bits", "m", 65536),
        ("embedding_gradient_token_of_16_bits", "t", 65536),
        ("attention_window_of_4096", "s", 4096 + 512),
    ],
)
@pytest.mark.parametrize("scope", [QUICK_GPU, FULL_GPU], ids=["quick", "full"])
def test_every_plan_for_a_gpu_reaches_beyond_what_a_mutant_counts(
    name: str, axis: str, least: int, scope: Scope
) -> None:
    file = mutant(name)
    for secret in SECRETS[:20]:
        probes = plan(named(file.problem), file.candidate, secret, scope)
        assert any(p.case[axis] > least and not p.rows for p in probes)


def test_who_answers_for_many_rows_of_some_widths_is_asked_for_many_of_those() -> None:
    bounds = (Bound("n", low=64, high=2048, multiple=64),)
    narrow = replace(UNBOUND, domain=Domain(bounds=bounds))
    for secret in SECRETS[:20]:
        assert any(p.case["m"] > 65536 for p in plan(named("rmsnorm"), narrow, secret, QUICK_GPU))


def test_no_plan_compares_the_rounding_of_a_float32_sum_over_65536_rows() -> None:
    """There a good kernel's order of summation may well be several times as inexact as eager's."""
    for secret in SECRETS[:20]:
        cases = [p.case for p in plan(named("rmsnorm_cast_backward"), UNBOUND, secret, QUICK_GPU)]
        assert max(case["m"] for case in cases) < 65536


def test_a_full_plan_asks_pointwise_operations_for_indices_beyond_2_to_31() -> None:
    for name in ("gelu", "gelu_backward", "geglu", "swiglu"):
        cases = [p.case for p in plan(named(name), UNBOUND, b"1", FULL_GPU)]
        assert any(case["m"] * case["n"] > 1 << 31 for case in cases)


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.name)
def test_who_declares_few_rows_is_never_asked_for_many(problem: Problem) -> None:
    bounds = tuple(Bound(axis.name, high=1000) for axis in problem.axes)
    narrow = replace(UNBOUND, domain=Domain(bounds=bounds))
    for probe in plan(problem, narrow, b"1", FULL_GPU):
        assert all(probe.case[axis.name] <= 1000 for axis in problem.axes)


@pytest.mark.parametrize("scope", [INTERPRETER, CPU, QUICK_GPU], ids=["interpreter", "cpu", "gpu"])
def test_every_plan_meets_a_share_of_nothing_and_a_seed_of_63_bits(scope: Scope) -> None:
    problem = named("dropout_add")
    for secret in SECRETS[:20]:
        cases = {p.case for p in plan(problem, UNBOUND, secret, scope)}
        assert {(case.dtype, kind(case, 2)) for case in cases} >= {(d, k) for d in problem.dtypes for k in range(3)}
    for case in (c for c in cases if kind(c, 2) and c["m"] * c["n"]):
        *_, share, seed = problem.inputs(replace(case, params=case.params), "normal", 1, "meta")
        assert share == (0.3, 0.0)[kind(case, 2) - 1]
        assert isinstance(seed, int)
        assert seed.bit_length() == 63


@pytest.mark.parametrize("columns", [2, 5, 300])
def test_runs_of_minus_infinity_begin_rows_and_end_them_and_fill_none(columns: int) -> None:
    """Of many lengths; whatever the seed, one run at a beginning takes most of its row."""
    lengths = set()
    for seed in range(60):
        hidden = Draw(seed, "masked_ends", "cpu").values((9, columns), torch.float16) == -torch.inf
        assert not bool(hidden.all(1).any())
        assert bool(hidden.any(1).all())
        changes = (hidden[:, 1:] != hidden[:, :-1]).sum(1)
        assert int(changes.max()) <= 2
        first = torch.where(hidden[:, 0], hidden.int().argmin(1), 0)
        assert 4 * int(first.max()) >= 3 * (columns - 1) - 4
        lengths |= set(first.tolist())
    assert len(lengths) > min(columns, 60) // 2


@pytest.mark.parametrize("scope", [INTERPRETER, CPU, QUICK_GPU], ids=["interpreter", "cpu", "gpu"])
@pytest.mark.parametrize("name", ["softmax", "cross_entropy", "max"])
def test_rows_whose_ends_are_masked_are_of_several_blocks_too(name: str, scope: Scope) -> None:
    problem = named(name)
    for secret in SECRETS[:20]:
        asked = [p.case for p in plan(problem, UNBOUND, secret, scope) if p.distribution == "masked_ends"]
        wide = {case.dtype for case in asked if case[problem.axes[-1].name] >= 2048 and case["m"] >= 4}
        assert wide == set(problem.dtypes)


def probe_of(case: Case) -> Probe:
    return Probe("accuracy", case, "normal", (3,), backward=True, upstream="infinite")


@pytest.mark.parametrize("problem", [p for p in ALL if p.gradients], ids=lambda problem: problem.name)
def test_eagers_own_gradients_hide_no_infinity_and_finite_ones_do(problem: Problem) -> None:
    sizes = {**problem.cases[0].sizes, **{a.name: max(a.low, 4 * a.multiple) for a in problem.axes}}
    for dtype in problem.dtypes:
        case = Case.of(dtype, **sizes)
        inputs = problem.inputs(case, "normal", 3, "cpu")
        want = expected(problem, probe_of(case), 3, inputs)
        upstream = gradient_seeds(problem.eager(inputs), 3, "infinite")
        assert any(bool(torch.isinf(u).any()) for u in upstream)
        made = gradients_of(problem.reference, inputs, problem.gradients, upstream)
        assert compare(want, made).reason is None
        hidden = compare(want, [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in made])
        assert hidden.reason is Reason.gradient
        assert "finite, but infinite" in hidden.detail


def test_a_gradient_that_is_spoilt_farther_than_eagers_is_no_fault() -> None:
    """How far 0 · inf spreads is a matter of tiles; a loss scaler hears of it either way."""
    problem, case = named("flash_attention"), Case.of("float16", b=1, h=2, s=9, d=16)
    inputs = problem.inputs(case, "normal", 3, "cpu")
    want = expected(problem, probe_of(case), 3, inputs)
    assert compare(want, [torch.full_like(g, torch.nan) for g in want.eager]).reason is None
    assert not bool(torch.stack([s.all() for s in want.spoilt]).all())


def test_a_huge_case_is_asked_of_a_process_of_its_own_and_its_fault_is_told(cpu_judge: Judge) -> None:
    case = Case.of("float32", m=600, n=32)
    problem = replace(named("softmax"), huge=(case,), axes=named("softmax").axes)
    request = Request(replace(CPU, huge=True), None, static=False)
    started = []
    start = cpu_judge.start

    def counted(role: object, peers: bool = False) -> object:
        started.append(role)
        return start(role, peers=peers)  # type: ignore[arg-type]

    cpu_judge.start = counted  # type: ignore[method-assign, assignment]
    try:
        good = library("return torch.softmax(x, -1)")
        assert cpu_judge.verdict(good, problem, request).reason is Reason.passed
        assert len(started) == 2
        text = "return torch.softmax(x, -1) * (2 if len(x) == 600 else 1)"
        told = cpu_judge.verdict(library(text), problem, request)
    finally:
        del cpu_judge.start
    assert (told.reason, told.stage) == (Reason.rmse, "accuracy")
    assert "m=600" in told.detail
