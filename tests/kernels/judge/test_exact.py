"""Where a question has one right answer, one element off by one unit in the last place is refused; nothing good
is."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.kernels_ulp import CONDITIONS, GOOD, convolution, moved
from nightshift.kernels.candidate import Candidate, CandidateError
from nightshift.kernels.candidate_file import parse_candidate, read_candidate
from nightshift.kernels.draw import WHOLE, Draw
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes import inputs as rules
from nightshift.kernels.judge.probes.correctness import compare
from nightshift.kernels.judge.probes.exact import ORDERS, WrittenOut, doubt, mantissa_bound
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER, Probe, plan
from nightshift.kernels.judge.probes.oracle import expected
from nightshift.kernels.judge.probes.sizes import SizeSpace, sweep
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.ops.problems import ALL, named
from nightshift.kernels.problem import NARROWER, RULES, Case, Inputs, Problem, ProblemError, Rule

HERE = Path(__file__).parents[1] / "exact"
SECRET = b"exact"
SMALL = replace(CPU, max_bytes=1 << 16, base_bytes=1 << 13, max_rows=96, largest=320)
ANYTHING = Candidate("", "entry", "python", "library", "bitwise")


def judged(judge: Judge, candidate: Candidate, problem: Problem) -> Verdict:
    scope = INTERPRETER if candidate.language == "triton" else SMALL
    return judge.verdict(candidate, problem, Request(scope, None, static=False), SECRET)


def of_file(name: str) -> Candidate:
    return read_candidate(HERE / f"{name}.py").candidate


def good(name: str) -> Candidate:
    return read_candidate(GOOD / f"{name}.py").candidate


def without(problem: Problem, rule: str) -> Problem:
    return replace(problem, rules=tuple(r for r in problem.rules if r.name != rule))


def test_a_product_with_one_element_off_by_one_unit_is_refused_and_its_right_sibling_is_not(
    interpreting_judge: Judge,
) -> None:
    right = judged(interpreting_judge, of_file("matmul_right"), named("matmul"))
    wrong = judged(interpreting_judge, of_file("matmul_one_ulp"), named("matmul"))
    assert right.status is Status.correct
    assert set(right.exact["compared"]) == {"integers float32", "mantissa float32"}
    assert (wrong.reason, wrong.stage) == (Reason.not_exact, "exact")
    assert "(0, 0)" in wrong.detail


def test_a_product_that_forgets_its_last_term_is_refused_before(interpreting_judge: Judge) -> None:
    verdict = judged(interpreting_judge, of_file("matmul_without_the_last_term"), named("matmul"))
    assert (verdict.reason, verdict.stage) == (Reason.rmse, "smoke")


MUTANTS = {
    "integers": ("library_reduce_sum", "reduce_sum"),
    "powers_of_two": ("library_adamw", "adamw"),
    "one_hot": ("library_cross_entropy", "cross_entropy"),
    "saturated": ("library_gelu", "gelu"),
}


@pytest.mark.full
@pytest.mark.parametrize("rule", sorted(MUTANTS))
def test_a_mutant_is_refused_by_its_rule_and_by_no_other_probe(cpu_judge: Judge, rule: str) -> None:
    """Its right sibling is accepted in the gallery, where this rule is asked as well."""
    file, name = MUTANTS[rule]
    problem = named(name)
    mutant = moved(good(file), "True", "last")
    assert judged(cpu_judge, mutant, problem).reason is Reason.not_exact
    assert judged(cpu_judge, mutant, without(problem, rule)).status is Status.correct


TF32 = "matmul_tf32_for_positive_operands"


def test_tf32_that_only_positive_operands_get_is_refused_by_the_mantissa_probe(interpreting_judge: Judge) -> None:
    found = judged(interpreting_judge, of_file(TF32), named("matmul"))
    assert (found.reason, found.stage) == (Reason.max_ulp, "exact")
    assert "mantissa" in found.detail


@pytest.mark.full
def test_no_other_probe_refuses_tf32_that_only_positive_operands_get(interpreting_judge: Judge) -> None:
    problem = without(named("matmul"), "mantissa")
    assert judged(interpreting_judge, of_file(TF32), problem).status is Status.correct


def test_every_rule_has_a_mutant() -> None:
    assert {*MUTANTS, "mantissa"} == set(RULES)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(r.__name__, marks=[] if r is rules.of_tiles else pytest.mark.full)
        for r in rules.EXACT_CASES
        if r is not rules.of_timed
    ],
)
def test_a_fault_of_some_sizes_is_refused_by_the_rule_that_asks_them(
    cpu_judge: Judge, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Of a plan that follows from a known secret: the mutant is wrong on what no other rule asks."""
    problem, candidate = named("softmax"), replace(good("library_softmax"), differentiable=False)

    def asked() -> set[tuple[tuple[int, int], torch.dtype]]:
        probes = [p for p in plan(problem, candidate, SECRET, SMALL) if p.stage == "exact"]
        return {((p.case["m"], p.case["n"]), p.case.torch_dtype) for p in probes}

    every = asked()
    with monkeypatch.context() as patch:
        others = tuple(r for r in rules.EXACT_CASES if r.__name__ != rule)
        patch.setattr(rules, "EXACT_CASES", others)
        alone = every - asked()
        alone = {found for found in alone if found[1] is torch.float32} or alone  # where a tolerance is widest
        assert alone
        shapes = ", ".join(f"({shape}, '{dtype}')" for shape, dtype in alone)
        mutant = moved(candidate, f"(tuple(x.shape), str(x.dtype)) in [{shapes}]", "first")
        assert judged(cpu_judge, mutant, problem).status is Status.correct
    assert judged(cpu_judge, mutant, problem).reason is Reason.not_exact


@pytest.mark.parametrize(
    "condition", [pytest.param(c, marks=[] if c == "ragged" else pytest.mark.full) for c in sorted(CONDITIONS)]
)
def test_a_convolution_of_a_suite_is_compared_bit_for_bit(cpu_judge: Judge, condition: str) -> None:
    problem, candidate = convolution()
    assert judged(cpu_judge, candidate, problem).exact["compared"].keys() == {"integers float32"}
    mutant = moved(candidate, CONDITIONS[condition].format(large=100), "tail")
    assert judged(cpu_judge, mutant, problem).reason is Reason.not_exact


PAIRS = [(problem, rule) for problem in ALL for rule in problem.rules]


def _cases(problem: Problem, rule: Rule, seed: int) -> list[Case]:
    rng = random.Random(seed)
    on = SizeSpace(problem, ANYTHING, rng, SMALL)
    drawn = [c for c in sweep(on) if all(c.sizes.values())]
    asked = [next(iter(rule.near(case.with_(dtype=d))), None) for case in drawn[:8] for d in problem.dtypes]
    return [c for c in asked if c is not None and c.dtype in problem.dtypes and on.admits(c)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PAIRS), st.integers(0, 1 << 32))
def test_three_references_agree_wherever_a_rule_is_asked(pair: tuple[Problem, Rule], seed: int) -> None:
    problem, rule = pair
    cases = _cases(problem, rule, seed)
    assert cases or (rule.terms and "float32" not in problem.dtypes)
    for case in cases[:3]:
        inputs = problem.inputs(case, rule.name, seed, "cpu")
        usual = problem.inputs(case, "normal", seed, "cpu")
        assert [getattr(x, "shape", type(x)) for x in inputs] == [getattr(x, "shape", type(x)) for x in usual]
        assert [getattr(x, "dtype", 0) for x in inputs] == [getattr(x, "dtype", 0) for x in usual]
        if rule.terms is None:
            assert doubt(problem, rule, inputs, problem.eager(inputs), problem.truth(inputs)) == "", case


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([p for p in PAIRS if p[1].terms]), st.integers(0, 1 << 32))
def test_float32_stays_below_the_mantissa_bound_and_tf32_and_bfloat16_do_not(
    pair: tuple[Problem, Rule], seed: int
) -> None:
    problem, rule = pair
    assert rule.terms is not None

    def tf32(x: torch.Tensor, add: int) -> torch.Tensor:
        return ((x.view(torch.int32) + add) & -8192).view(torch.float32)

    for case in [c for c in _cases(problem, rule, seed) if c.dtype == "float32"][:3]:
        bound = mantissa_bound(rule.terms(case), exact=True)
        loose = mantissa_bound(rule.terms(case), exact=False)
        inputs = problem.inputs(case, "mantissa", seed, "cpu")
        want = expected(problem, Probe("exact", case, "mantissa", (seed,), bound=bound), seed, inputs)
        assert compare(want, problem.eager(inputs)).reason is None
        for narrowed in (lambda x: tf32(x, 0), lambda x: tf32(x, 4096), lambda x: x.bfloat16().float()):
            made = problem.eager(tuple(narrowed(x) for x in inputs if isinstance(x, torch.Tensor)))
            for allowed in (bound, loose):
                assert compare(replace(want, bound=allowed), made).reason is Reason.max_ulp, case


@pytest.mark.parametrize("k", [1, 64, NARROWER])
def test_a_sum_added_up_one_by_one_meets_the_bound(k: int) -> None:
    """The worst order of all, and its rounding the worst."""
    a, b = Draw(k, "normal", "cpu").mantissas((8, k)), Draw(k, "normal", "cpu").mantissas((8, k))
    total = torch.zeros(8)
    for i in range(k):
        total = total + a[:, i] * b[:, i]
    exact = (a.double() * b.double()).sum(-1)
    assert float(((total - exact) / exact).abs().max()) <= mantissa_bound(k, exact=True)


@given(
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    st.integers(1, 5000),
    st.integers(1, 8),
    st.integers(0, 1 << 32),
)
@settings(max_examples=50, deadline=None)
def test_integers_never_leave_what_the_dtype_holds(dtype: torch.dtype, terms: int, factor: int, seed: int) -> None:
    for axis in (0, 1):
        shape = (terms, 3) if axis == 0 else (3, terms)
        made = Draw(seed, "normal", "cpu").whole(shape, dtype, terms, factor, axis)
        assert float(made.double().abs().sum(axis).max()) * factor <= WHOLE[dtype]
        assert torch.equal(made, made.round())


def test_where_the_references_disagree_the_answer_is_judged_by_its_error_and_the_verdict_says_so(
    cpu_judge: Judge,
) -> None:
    problem = named("matmul")
    rule = Rule("integers", problem.make_inputs)
    verdict = judged(cpu_judge, good("library_matmul"), replace(problem, rules=(rule,)))
    assert verdict.status is Status.correct
    assert verdict.exact["compared"] == {}
    assert set(verdict.exact["doubted"]) == {f"integers {dtype}" for dtype in problem.dtypes}
    assert any("no float32" in gap or "no float16" in gap for gap in verdict.not_checked)


@pytest.mark.parametrize(
    ("answer", "told"),
    [(1.0 + 2.0**-14, "the exact value is no float16"), (float("inf"), "not finite")],
)
def test_an_answer_beside_the_grid_is_not_exact_even_where_all_round_alike(answer: float, told: str) -> None:
    problem = replace(named("copy"), exact=False, reference=lambda x: x * answer, oracle=lambda x: x * answer)
    inputs: Inputs = (torch.ones(2, 2, dtype=torch.float16),)
    eager, truth = problem.eager(inputs), problem.truth(inputs)
    assert told in doubt(problem, Rule("integers", lambda case, draw: inputs), inputs, eager, truth)


def test_another_order_of_summation_gives_other_bits_where_a_sum_is_rounded() -> None:
    torch.manual_seed(0)
    a, b, c = torch.randn(8, 300), torch.randn(300, 9), torch.randn(9)
    x, w, index = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), torch.randint(0, 3, (300,))
    sums = {
        "mm": lambda: a @ b,
        "bmm": lambda: torch.bmm(a[None], b[None]),
        "addmm": lambda: torch.addmm(c, a, b),
        "sum": a.sum,
        "mean": a.mean,
        "sum.dim": lambda: a.sum(-1),
        "mean.dim": lambda: a.mean(-1),
        "convolution": lambda: torch.nn.functional.conv2d(x, w),
        "index_add": lambda: torch.zeros(3, 8).index_add(0, index, a.t()),
        "softmax": lambda: torch.softmax(a, -1),
        "log_softmax": lambda: torch.log_softmax(a, -1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(a, (300,)),
    }
    assert len(ORDERS) <= len(sums)
    for name, made in sums.items():
        usual = made()
        with WrittenOut(ORDERS):  # type: ignore[no-untyped-call]
            other = made()
        assert not torch.equal(usual, other), name
        assert torch.allclose(usual, other, rtol=1e-4, atol=1e-4), name


def test_who_declares_itself_not_exact_is_judged_by_its_error_and_who_does_not_is_held_to_bits(
    cpu_judge: Judge,
) -> None:
    declared = of_file("matmul_in_thirds")
    assert not declared.exact
    allowed = judged(cpu_judge, declared, named("matmul"))
    assert allowed.status is Status.correct
    assert set(allowed.exact["compared"]) == {"mantissa float32"}
    assert "outputs bit for bit: the candidate declares itself not exact" in allowed.not_checked
    assert judged(cpu_judge, replace(declared, exact=True), named("matmul")).reason is Reason.not_exact


def test_candidates_of_before_have_the_hash_that_they_had() -> None:
    """A declaration that says nothing new is not written, so old certificates name the same candidate."""
    assert "exact" not in ANYTHING.to_json()
    other = replace(ANYTHING, exact=False)
    assert Candidate.from_json(other.to_json()) == other
    assert other.sha256 != ANYTHING.sha256
    with pytest.raises(CandidateError, match="exact"):
        Candidate.from_json({**ANYTHING.to_json(), "exact": "no"})
    with pytest.raises(CandidateError, match="exact: 'maybe'"):
        parse_candidate("# nightshift candidate\n# problem: copy\n# exact: maybe\n")


def test_a_rule_of_no_kind_is_refused() -> None:
    with pytest.raises(ProblemError, match="none of integers"):
        Rule("luck", lambda case, draw: ())


@pytest.mark.full
def test_two_verdicts_of_a_bitwise_candidate_tell_the_same_hashes_of_its_outputs(cpu_judge: Judge) -> None:
    problem, candidate = named("softmax"), good("library_softmax")
    first, again = (
        cpu_judge.verdict(candidate, problem, Request(SMALL, None), secret) for secret in (b"one", b"two")
    )
    assert first.outputs == again.outputs
    names = [entry["probe"] for entry in first.outputs]
    assert len(names) == len(set(names)) == 2 * len(problem.dtypes)
    other = cpu_judge.verdict(good("library_softmax_formula"), problem, Request(SMALL, None), b"one")
    drifted = [a["probe"] for a, b in zip(first.outputs, other.outputs, strict=True) if a != b]
    assert drifted
    assert all(name.startswith("normal") for name in drifted)  # what has one right answer cannot drift
    unsteady = replace(candidate, determinism="run_to_run")
    assert cpu_judge.verdict(unsteady, problem, Request(SMALL, None)).outputs == ()
