"""What the sixth ten taught: a share of nothing, infinite gradients, masked ends, sizes beyond 16 and 32 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nightshift.kernels.candidate import Bound, Candidate, Domain
from nightshift.kernels.candidate_file import read_candidate
from nightshift.kernels.draw import Draw
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.correctness import compare
from nightshift.kernels.judge.probes.inputs import CPU, FULL_GPU, INTERPRETER, QUICK_GPU, Probe, Scope, plan
from nightshift.kernels.judge.probes.oracle import expected, gradient_seeds
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.ops.problems import ALL, named
from nightshift.kernels.problem import Case, Problem, gradients_of, kind
from tests.kernels.test_judge import library

SIXTH = Path(__file__).parent / "mutants_sixth"
SECRETS = [bytes([number]) for number in range(20)]
UNBOUND = Candidate("", "entry", "triton", "own_kernel", "bitwise", differentiable=True)


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
    file = read_candidate(SIXTH / f"{name}.py")
    for secret in SECRETS:
        probes = plan(named(file.problem), file.candidate, secret, scope)
        assert any(p.case[axis] > least and not p.rows for p in probes)


def test_who_answers_for_many_rows_of_some_widths_is_asked_for_many_of_those() -> None:
    bounds = (Bound("n", low=64, high=2048, multiple=64),)
    narrow = replace(UNBOUND, domain=Domain(bounds=bounds))
    for secret in SECRETS:
        assert any(p.case["m"] > 65536 for p in plan(named("rmsnorm"), narrow, secret, QUICK_GPU))


def test_no_plan_compares_the_rounding_of_a_float32_sum_over_65536_rows() -> None:
    """There a good kernel's order of summation may well be several times as inexact as eager's."""
    for secret in SECRETS:
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
    for secret in SECRETS:
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
    for secret in SECRETS:
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
