"""Every problem keeps the contract that the judge builds on."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from nightshift.kernels.candidate import PARTS, Bound, Candidate, Domain
from nightshift.kernels.judge.probes.correctness import compare
from nightshift.kernels.judge.probes.inputs import CPU, FULL_GPU, INTERPRETER, Stage, plan
from nightshift.kernels.judge.probes.layouts import laid_out, lay_out, place
from nightshift.kernels.judge.probes.oracle import expected
from nightshift.kernels.ops.problems import ALL, BY_NAME, named
from nightshift.kernels.problem import Case, Problem, ProblemError


def _candidate(problem: Problem, domain: Domain | None = None) -> Candidate:
    kind = "in_place" if problem.mutates else "library"
    return Candidate(
        "", "f", "python", kind, "bitwise", problem.mutates, bool(problem.gradients), domain or Domain()
    )


def _with_length() -> list[Any]:
    """All problems; one of each kind at every merge, the others with the long tests."""
    short = (
        "adamw", "copy", "embedding_gradient", "linear", "matmul", "max", "particle_weights", "permute", "quantise",
        "reduce_sum", "rotary_interleaved_by_position", "softmax", "softmax_backward", "stencil_3x3", "swiglu",
    )  # fmt: skip
    return [pytest.param(p, marks=[] if p.name in short else [pytest.mark.full], id=p.name) for p in ALL]


@pytest.mark.parametrize("problem", _with_length())
def test_eager_and_the_rounded_oracle_pass_their_own_probes(problem: Problem) -> None:
    """Neither torch's result nor the correctly rounded one may ever be refused."""
    for probe in plan(problem, _candidate(problem), b"contract", INTERPRETER):
        seed = probe.seeds[0]
        inputs = laid_out(problem.inputs(probe.case, probe.distribution, seed, "cpu"), probe.case.layout)
        want = expected(problem, probe, seed, inputs)
        assert compare(want, want.eager).reason is None, probe
        if not want.exact:
            pairs = zip(want.truth, want.eager, strict=True)
            best = [(t if e.is_floating_point() else t.round()).to(e.dtype) for t, e in pairs]
            assert compare(want, best).reason is None, probe


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_a_reference_leaves_its_inputs_alone(problem: Problem) -> None:
    case = next(p for p in plan(problem, _candidate(problem), b"x", INTERPRETER) if p.stage == "smoke").case
    inputs = problem.inputs(case, "normal", 1, "cpu")
    problem.eager(inputs)
    again = problem.inputs(case, "normal", 1, "cpu")
    for before, after in zip(inputs, again, strict=True):
        assert torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_numbers_among_the_inputs_depend_on_the_case_alone(problem: Problem) -> None:
    """A timed slot is registered once and then refilled with other seeds' tensors."""
    case = next(p for p in plan(problem, _candidate(problem), b"x", INTERPRETER) if p.stage == "smoke").case
    first, second = (problem.inputs(case, "normal", seed, "cpu") for seed in (1, 2))
    for a, b in zip(first, second, strict=True):
        assert isinstance(a, torch.Tensor) or a == b


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_a_plan_covers_dtypes_layouts_and_edges(problem: Problem) -> None:
    probes = plan(problem, _candidate(problem), b"cover", CPU)
    sweep = [p.case for p in probes if p.stage == "sweep"]
    assert {c.dtype for c in sweep} == set(problem.dtypes)
    mixed = {name for name, parts in PARTS.items() if set(parts) <= set(problem.layouts)}
    assert {c.layout for c in sweep} == set(problem.layouts) | mixed
    order = [get_args(Stage).index(p.stage) for p in probes]
    assert order == sorted(order)
    assert {p.distribution for p in probes if p.stage == "values"} == set(problem.distributions)
    for axis in problem.axes:
        asked = {c[axis.name] for c in sweep}
        assert len(asked & set(axis.edges)) >= len(axis.edges) - 1, (axis, asked)
    assert any(p.backward for p in probes) == bool(problem.gradients)
    alone = {p.gradients(problem) for p in probes if p.alone >= 0}
    assert alone == ({(position,) for position in problem.gradients} if len(problem.gradients) > 1 else set())
    assert all(len(p.seeds) == 2 for p in probes if p.distribution == "nan")


def test_plans_depend_on_the_secret_alone() -> None:
    problem = named("softmax")
    one = plan(problem, _candidate(problem), b"1", CPU)
    assert one == plan(problem, _candidate(problem), b"1", CPU)
    other = plan(problem, _candidate(problem), b"2", CPU)
    assert {s for p in one for s in p.seeds}.isdisjoint({s for p in other for s in p.seeds})
    assert [p.case for p in one] != [p.case for p in other]


def test_a_plan_stays_inside_the_declared_domain() -> None:
    problem = named("softmax")
    domain = Domain(("float16",), ("contiguous", "padded"), (Bound("n", 64, 1024, 64), Bound("m", 1, 100)))
    probes = plan(problem, _candidate(problem, domain), b"1", CPU)
    assert len(probes) > 10
    assert all(domain.admits(p.case.sizes, p.case.dtype, p.case.layout) for p in probes)
    assert {64, 1024} <= {p.case["n"] for p in probes}


def test_a_domain_that_admits_nothing_gives_an_empty_plan() -> None:
    problem = named("softmax")
    assert plan(problem, _candidate(problem, Domain(("int8",))), b"1", CPU) == ()
    narrow = Domain((), (), (Bound("n", 1 << 40, 1 << 41),))
    assert plan(problem, _candidate(problem, narrow), b"1", CPU) == ()


def test_the_full_plan_asks_for_the_benchmarked_and_the_huge_cases() -> None:
    problem = named("softmax")
    probes = plan(problem, _candidate(problem), b"1", FULL_GPU)
    assert set(problem.cases) <= {p.case for p in probes}
    huge = [p for p in probes if p.rows]
    assert [p.case["m"] * p.case["n"] > 1 << 31 for p in huge] == [True]


@pytest.mark.parametrize("layout", ["contiguous", "padded", "transposed", "offset", "sliced"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4), (0, 4), (1, 1), (2, 3, 2, 4)])
def test_a_layout_addresses_every_element_once(layout: str, shape: tuple[int, ...]) -> None:
    x = torch.arange(max(1, torch.Size(shape).numel()), dtype=torch.float32)[: torch.Size(shape).numel()].reshape(
        shape
    )
    out = lay_out(x, layout)
    where = place(shape, layout)
    assert torch.equal(out, x)
    assert out.stride() == where.strides
    assert out.storage_offset() == where.offset
    index = torch.arange(where.elements).as_strided(where.shape, where.strides, where.offset)
    assert index.unique().numel() == x.numel()


def test_the_anchor_cases_have_the_published_compulsory_traffic() -> None:
    """GB/s in the anchors' table times its milliseconds, from the bytes that we state."""
    for name, case, ms, gb_per_s in (
        ("rmsnorm", Case.of("bfloat16", m=16384, n=4096), 0.0677, 3964),
        ("softmax", Case.of("float16", m=4096, n=4096), 0.0219, 3066),
        ("cross_entropy", Case.of("bfloat16", m=4096, v=128256), 0.5355, 1962),
        ("swiglu", Case.of("bfloat16", m=16384, n=14336), 0.3245, 4342),
        ("stencil_3x3", Case.of("float32", c=3, h=4096, w=4096, k=3), 0.1751, 2299),
        ("stencil_5x5", Case.of("float32", c=16, h=2048, w=2048, k=5), 0.2839, 1891),
        ("reduce_sum", Case.of("bfloat16", m=1024, n=32768), 0.0228, 2941),
        ("rotary_half", Case.of("bfloat16", b=1, h=32, g=8, s=8192, d=128), 0.0475, 3619),
    ):
        assert case in named(name).cases
        assert named(name).compulsory_bytes(case) == pytest.approx(ms * 1e-3 * gb_per_s * 1e9, rel=0.03), name


def test_names_are_unique_and_an_unknown_one_is_told() -> None:
    assert len(BY_NAME) == len(ALL)
    with pytest.raises(ProblemError, match="softmax"):
        named("softmaxx")
