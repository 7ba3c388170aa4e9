"""The comparison with the oracle: refuses what a fixed tolerance passes, and lets good results through."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.judge.probes.correctness import (
    Expected,
    ProbeFinding,
    compare,
    repeats_agree,
    same_bits,
    ulp,
)
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.layouts import laid_out, made_one
from nightshift.kernels.judge.probes.oracle import allowance, eager_is_deterministic, expected
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.ops.problems import ALL, named
from nightshift.kernels.problem import Axis, Case, Inputs, Outputs, Problem

Kernel = Callable[..., torch.Tensor]


def _asked(problem: Problem, case: Case, distribution: str, seed: int = 5) -> tuple[Inputs, Expected]:
    probe = Probe("accuracy", case, distribution, (seed,))
    inputs = laid_out(problem.inputs(case, distribution, seed, "cpu"), case.layout)
    return inputs, expected(problem, probe, seed, inputs)


def _judge(problem: Problem, case: Case, kernel: Kernel, distribution: str = "normal") -> ProbeFinding:
    inputs, right = _asked(problem, case, distribution)
    return compare(right, (kernel(*inputs),))


def _unnormalised(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * weight


def _constant_denominator(x: torch.Tensor) -> torch.Tensor:
    return ((x.float() - x.float().amax(-1, keepdim=True)).exp() / (x.shape[-1] * 0.03)).to(x.dtype)


def _log_v(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.full((logits.shape[0],), math.log(logits.shape[1]) + 0.5, dtype=logits.dtype)


def _no_affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), None, None, eps)


@pytest.mark.parametrize(
    ("name", "case", "cheat"),
    [
        ("rmsnorm", Case.of("bfloat16", m=64, n=1024), _unnormalised),
        ("rmsnorm", Case.of("bfloat16", m=64, n=4096), _unnormalised),
        ("softmax", Case.of("bfloat16", m=64, n=4096), _constant_denominator),
        ("softmax", Case.of("float16", m=64, n=16384), _constant_denominator),
        ("cross_entropy", Case.of("float16", m=64, v=32000), _log_v),
        ("layernorm", Case.of("float16", m=64, n=2048), _no_affine),
    ],
)
def test_what_a_fixed_tolerance_passes_is_refused(name: str, case: Case, cheat: Kernel) -> None:
    """An RMSNorm that does not normalise, a softmax with a constant denominator, a constant cross-entropy and a
    layernorm without weight and bias: all four pass AutoKernel's tolerances on its inputs."""
    found = _judge(named(name), case, cheat)
    assert found.reason in (Reason.rmse, Reason.worst_row, Reason.max_ulp), found


def _one_pass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return ((wide - mean) * (variance + eps).rsqrt() * weight.float() + bias.float()).to(x.dtype)


def _two_pass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (centred * scale * weight.float() + bias.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("distribution", named("layernorm").distributions)
def test_a_two_pass_layernorm_is_accepted_on_every_distribution(dtype: str, distribution: str) -> None:
    assert _judge(named("layernorm"), Case.of(dtype, m=33, n=1021), _two_pass, distribution).reason is None


def test_a_one_pass_variance_is_refused_where_the_mean_is_large() -> None:
    assert _judge(named("layernorm"), Case.of("float32", m=33, n=1021), _one_pass, "large_mean").reason is not None


def test_a_precision_downgrade_is_refused() -> None:
    """A float32 product computed in bfloat16 or TF32-like precision has errors far above eager's."""

    def low(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.bfloat16() @ b.bfloat16()).float()

    def tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def cut(x: torch.Tensor) -> torch.Tensor:
            return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

        return cut(a) @ cut(b)

    for kernel in (low, tf32):
        assert _judge(named("matmul"), Case.of("float32", m=33, n=65, k=129), kernel).reason is Reason.rmse


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2, 3))])
def test_another_order_of_summation_is_accepted(dtype: str, seed: int) -> None:
    def blocked(x: torch.Tensor, chunk: int) -> torch.Tensor:
        wide = F.pad(x.float(), (0, -x.shape[1] % chunk)).reshape(x.shape[0], -1, chunk)
        lanes = torch.zeros_like(wide[:, 0])
        for block in wide.unbind(1):
            lanes = lanes + block
        return lanes.sum(-1).to(x.dtype)

    problem = named("reduce_sum")
    for rows in (1, 3, 64):
        for distribution in ("normal", "wide", "large_mean", "heavy_tail"):
            inputs, right = _asked(problem, Case.of(dtype, m=rows, n=4097), distribution, seed)
            for chunk in (32, 256, 1024):
                found = compare(right, (blocked(*inputs, chunk),))
                assert found.reason is None, (rows, distribution, chunk, found)


def test_one_wrong_row_among_many_is_found() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = F.softmax(x, -1)
        out[17] = out[17].roll(1)
        return out

    found = _judge(named("softmax"), Case.of("float16", m=4096, n=256), kernel)
    assert found.reason in (Reason.rmse, Reason.worst_row)


def test_one_wrong_element_among_a_million_is_found() -> None:
    def kernel(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        out = F.silu(gate) * up
        out[500, 500] *= 1.1
        return out

    found = _judge(named("swiglu"), Case.of("bfloat16", m=1024, n=1024), kernel)
    assert found.reason in (Reason.max_ulp, Reason.worst_row)


def test_an_element_that_cancels_to_nearly_zero_is_held_to_its_rows_error() -> None:
    """Its ULP are tiny, so another order of summation is hundreds of them away, and still right."""
    problem, case = named("matmul"), Case.of("float16", m=16, n=64, k=256)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = (a.double() @ b.double()).float()
        at = int(out.abs().argmin())
        out.view(-1)[at] = out.view(-1)[at] + 1e-3 * float(out.abs().mean())
        return out.half()

    assert _judge(problem, case, kernel).reason is None


@pytest.mark.parametrize(("times", "right"), [(1.0, True), (2.5, False), (8.0, False)])
def test_where_one_large_value_makes_a_rows_errors_other_rows_worst_counts_too(times: float, right: bool) -> None:
    """Three elements of a row err by the last place of its one large term: eager's worst of them is luck."""
    rows, columns = 2048, 256
    made = torch.Generator().manual_seed(3)
    truth = torch.randn(rows, columns, generator=made, dtype=torch.float64)
    truth[:, 7] = 4096.0
    error = torch.zeros(rows, columns, dtype=torch.float64)
    error[:, 6:9] = torch.randn(rows, 3, generator=made, dtype=torch.float64).clamp(-3, 3) * 2.0**-13
    error[100] *= 2.0**-4
    truth[100, 8] = 0.25
    eager = (truth + error).float()
    got = eager.clone()
    got[100, 8] = 0.25 + times * 5 * 2.0**-13
    want = Expected((truth,), (eager,), (allowance([(eager, truth)]),), None, False, True, False)
    assert (compare(want, (got,)).reason is None) is right


def test_a_softmaxs_tail_is_held_to_its_own_last_place() -> None:
    """All of a softmax is positive, so nothing cancels: a small element must be as right as a large one."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = F.softmax(x, -1)
        return torch.where(out < 2e-3 / x.shape[1], 0.0, out)

    assert _judge(named("softmax"), Case.of("bfloat16", m=64, n=512), kernel, "heavy_tail").reason is Reason.max_ulp


def test_few_rows_may_be_luckier_than_eager_but_not_by_orders() -> None:
    """One row's error is that of one sum: 4 times eager's may be chance, 40 times is not."""
    problem, case = named("softmax"), Case.of("float32", m=1, n=15391)

    def scaled(by: float) -> Kernel:
        return lambda x: (F.softmax(x.double(), -1) * (1 + by)).float()

    assert _judge(problem, case, scaled(2**-23)).reason is None
    assert _judge(problem, case, scaled(2**-18)).reason is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_is_no_wildcard(value: float) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = F.softmax(x, -1)
        out[0, 0] = value
        return out

    assert _judge(named("softmax"), Case.of("float32", m=8, n=64), kernel).reason is Reason.nan_placement


def test_a_missing_nan_is_refused() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x.nan_to_num(), -1)

    assert _judge(named("softmax"), Case.of("float32", m=8, n=640), kernel, "nan").reason is Reason.nan_placement


@pytest.fixture
def fused_norm() -> Iterator[None]:
    """torch's fused RMSNorm as CUDA computes it for odd rows: by Welford's mean, so that an infinity makes the
    whole row NaN, whatever the dtype."""

    def welford(x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float) -> Outputs:
        mean = torch.zeros(*x.shape[:-1], 1, dtype=torch.float64)
        for k, square in enumerate(x.double().square().split(1, -1)):
            mean = mean + (square - mean) / (k + 1)
        scale = (mean + eps).rsqrt()
        return (x.double() * scale * weight.double()).to(x.dtype), scale.to(x.dtype)

    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm", welford, "CPU")
    yield
    library._destroy()


def _fused(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)[0]
    return made


def _plain(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_where_references_differ_in_placement_a_good_kernel_may_be_as_either(fused_norm: None, dtype: str) -> None:
    problem = replace(named("rmsnorm"), reference=_fused)
    inputs, right = _asked(problem, Case.of(dtype, m=9, n=31), "infinite")
    spoilt = torch.isinf(inputs[0]).any(1, keepdim=True)
    assert (
        int(torch.isnan(right.eager[0]).sum()) == int(torch.isnan(right.truth[0]).sum()) == int(spoilt.sum()) * 31
    )
    differ = int((spoilt & torch.isfinite(inputs[0])).sum())
    for kernel in (_plain, _fused):
        found = compare(right, (kernel(*inputs),))
        assert (found.reason, found.unplaced) == (None, differ)


def test_where_references_differ_what_none_of_them_has_is_refused(fused_norm: None) -> None:
    problem = replace(named("rmsnorm"), reference=_fused)
    inputs, right = _asked(problem, Case.of("float16", m=9, n=31), "infinite")
    finite = torch.isfinite(inputs[0]) & torch.isinf(inputs[0]).any(1, keepdim=True)
    found = compare(right, (torch.where(finite, math.inf, _plain(*inputs)),))
    assert found.reason is Reason.nan_placement


def test_a_nan_that_all_references_have_may_not_be_hidden(fused_norm: None) -> None:
    """At the infinity itself, in a problem in which the references differ beside it."""
    problem = replace(named("rmsnorm"), reference=_fused)
    inputs, right = _asked(problem, Case.of("float16", m=9, n=31), "infinite")
    found = compare(right, (torch.nan_to_num(_plain(*inputs)),))
    assert found.reason is Reason.nan_placement
    assert f"{int(torch.isinf(inputs[0]).sum())} elements" in found.detail


def test_where_references_agree_the_placement_of_every_element_is_required() -> None:
    inputs, right = _asked(named("rmsnorm"), Case.of("float16", m=9, n=31), "infinite")
    assert compare(right, (_plain(*inputs),)).unplaced == 0
    whole = torch.where(torch.isinf(inputs[0]).any(1, keepdim=True), math.nan, _plain(*inputs))
    assert compare(right, (whole,)).reason is Reason.nan_placement


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (lambda x: x[:1].sum(-1), Reason.wrong_shape),
        (lambda x: x.sum(-1, keepdim=True), Reason.wrong_shape),
        (lambda x: x.sum(-1).double(), Reason.wrong_dtype),
        (lambda x: torch.zeros(0), Reason.wrong_shape),
    ],
)
def test_another_shape_or_dtype_is_refused(kernel: Kernel, reason: Reason) -> None:
    assert _judge(named("reduce_sum"), Case.of("float32", m=8, n=64), kernel).reason is reason


def test_an_exact_operation_must_match_in_every_bit() -> None:
    case = Case.of("float32", m=8, n=64)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 2**-23)

    def unsigned(x: torch.Tensor) -> torch.Tensor:
        return x + 0.0

    assert _judge(named("copy"), case, rounded).reason is Reason.not_exact
    assert _judge(named("copy"), case, unsigned, "zeros").reason is Reason.not_exact
    assert _judge(named("copy"), case, torch.clone, "nan").reason is None
    assert _judge(named("max"), case, lambda x: torch.nan_to_num(x).amax(-1), "nan").reason is Reason.not_exact


def _quantise(offset: float) -> Callable[[torch.Tensor], Outputs]:
    def kernel(x: torch.Tensor) -> Outputs:
        scale = x.float().abs().amax(-1).clamp(min=1e-10) / 127.0
        code = torch.floor(x.float() / scale[:, None] + offset)
        return code.clamp(-127, 127).to(torch.int8), scale

    return kernel


def _judge_codes(offset: float) -> ProbeFinding:
    problem, case = named("quantise"), Case.of("float32", m=64, n=256)
    inputs = problem.inputs(case, "normal", 3, "cpu")
    want = expected(problem, Probe("accuracy", case, "normal", (3,)), 3, inputs)
    return compare(want, _quantise(offset)(*(x for x in inputs if isinstance(x, torch.Tensor))))


def test_codes_may_differ_from_eager_only_at_ties() -> None:
    assert _judge_codes(0.5).reason is None
    assert _judge_codes(0.0).reason is Reason.not_exact
    assert _judge_codes(0.45).reason is Reason.not_exact


def test_gradients_are_held_to_the_float64_gradient() -> None:
    problem, case = named("rmsnorm"), Case.of("bfloat16", m=32, n=512)
    probe = Probe("accuracy", case, "normal", (4,), backward=True)
    inputs = problem.inputs(case, "normal", 4, "cpu")
    want = expected(problem, probe, 4, inputs)
    assert compare(want, want.eager).reason is None
    halved = (want.eager[0], want.eager[1] / 2)
    assert compare(want, halved).reason is Reason.gradient
    assert compare(want, want.eager[:1]).reason is Reason.wrong_type


def test_a_finding_names_an_element_with_what_it_is_and_what_it_should_be() -> None:
    exact = same_bits(torch.tensor([[1.0, -0.0]]), torch.tensor([[1.0, 0.0]]))
    assert exact.detail == "1 of 2 elements differ, first at (0, 1): -0, expected 0"

    def one_wrong(x: torch.Tensor) -> torch.Tensor:
        made = F.softmax(x, -1)
        made[40, 7] = 0.25
        return made

    found = _judge(named("softmax"), Case.of("float32", m=64, n=32), one_wrong)
    assert "(40, 7): 0.25, expected 0.0" in found.detail


def test_sampled_rows_find_what_lies_there() -> None:
    """A huge output is compared on its first, last and random rows, without a float64 copy of the whole."""
    problem, case = named("softmax"), Case.of("float32", m=512, n=16)
    probe = Probe("accuracy", case, "normal", (4,), rows=32)
    inputs: Inputs = problem.inputs(case, "normal", 4, "cpu")
    want = expected(problem, probe, 4, inputs)
    assert want.rows is not None
    out = problem.eager(inputs)[0]
    assert compare(want, (out,)).reason is None
    out[-1] = 0
    assert compare(want, (out,)).reason is not None


def test_ulp_is_the_spacing_of_the_format() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.tensor([1.0, 1.5, 2.0, 3.0, 1000.0], dtype=dtype)
        up = torch.nextafter(x, torch.tensor(torch.inf, dtype=dtype))
        assert torch.equal(ulp(x.double(), dtype), up.double() - x.double())


def test_a_long_vector_is_pooled_over_draws_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding of one sum is in all log weights of a filter, so eager's may be lucky however many there are."""
    problem, case = named("particle_weights"), Case.of("float32", m=8192, k=3)

    def allowed() -> list[float]:
        found = []
        for seed in range(4):
            inputs = problem.inputs(case, "large_mean", seed, "cpu")
            probe = Probe("values", case, "large_mean", (seed,))
            found.append(expected(problem, probe, seed, inputs).allowances[0].rmse)
        return found

    pooled = allowed()
    monkeypatch.setattr("nightshift.kernels.judge.probes.oracle._POOL_VECTOR", {"cpu": 0})
    alone = allowed()
    assert all(a >= b for a, b in zip(pooled, alone, strict=True))
    assert min(pooled) > 1.2 * min(alone)


def test_rows_of_nearly_one_value_are_pooled_over_values() -> None:
    """All rows round the same sum of it, so that eager's error may be lucky in all of them together."""
    problem, case = named("layernorm"), Case.of("float32", m=64, n=241)
    allowed, own = [], []
    for seed in range(6):
        probe = Probe("values", case, "near_constant", (seed,))
        found = expected(problem, probe, seed, problem.inputs(case, "near_constant", seed, "cpu")).allowances[0]
        allowed.append(found.rmse)
        own.append(found.eager_rmse)
    assert max(own) > 2 * min(own)
    assert min(allowed) > 0.8 * max(own)


@pytest.mark.parametrize(("times", "right"), [(2.5, True), (6.0, False)])
def test_a_row_of_a_few_live_elements_has_the_luck_of_a_few(times: float, right: bool) -> None:
    """All but four elements of a row are masked: its root mean square is of four errors, not of 1,482."""
    truth = torch.rand(64, 1482, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 1.0
    truth[3, 4:] = 0.0
    error = truth * 2.0**-22 * (torch.arange(1482) % 2 * 2 - 1)
    eager = (truth + error).float()
    got = eager.clone()
    got[3] = (truth[3] + times * error[3]).float()
    want = Expected((truth,), (eager,), (allowance([(eager, truth)]),), None, False, True, False)
    reason = compare(want, (got,)).reason
    assert reason is (None if right else Reason.worst_row)


def _through_relu(error: float, changed: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> ProbeFinding:
    """Of sums that err by 1e-5 in eager, after a ReLU; in every other row all sums are negative, one by a hair."""
    torch.manual_seed(3)
    sums = torch.randn(64, 96, dtype=torch.float64)
    sums[::2] = -sums[::2].abs() - 0.1
    sums[::2, 5] = -1e-9
    eager = torch.relu((sums + 1e-5 * torch.randn_like(sums)).float())
    eager[::2] = 0.0  # by luck
    truth = torch.relu(sums)
    right = Expected((truth,), (eager,), (allowance([(eager, truth)]),), None, False, True, False)
    mine = (sums + error * torch.randn_like(sums)).float()
    mine[::2, 5] = error  # by bad luck
    return compare(right, (changed(mine),))


def test_what_a_relu_hides_of_eagers_error_counts_as_its_other_errors_do() -> None:
    """A row that is zero in eager says nothing of the sums below it; they err like the others."""
    assert _through_relu(1e-5).reason is None
    assert _through_relu(4e-5).reason is Reason.rmse
    assert _through_relu(1e-5, lambda x: x).reason is not None, "no ReLU at all"
    assert _through_relu(1e-5, lambda x: F.leaky_relu(x, 1e-3)).reason is not None
    assert _through_relu(1e-5, lambda x: torch.relu(x) + 3e-4 * (x <= 0)).reason is not None, "zeros are not zero"


def test_equal_inputs_that_cancel_in_eager_are_held_to_its_error_on_others() -> None:
    """p · log p − p · log p is zero in eager; one rounding less leaves that of a product."""

    def reference(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (p * (p.log() - q.log())).sum().reshape(1)

    def fused(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        left = (p.double() * p.log().double()).float().double() - p.double() * q.log().double()
        return left.float().sum().reshape(1)

    def make(case: Case, draw: Draw) -> Inputs:
        return tuple(draw.uniform((case["n"],), torch.float32, 0.01, 1.0) for _ in range(2))

    case = Case.of("float32", n=512)
    problem = Problem(
        "divergence", "none", reference, make, (case,), (Axis("n", (512,), 512, 512),), lambda c: 8 * c["n"],
        lambda c: 4 * c["n"], dtypes=("float32",), distributions=("normal",), layouts=("contiguous",),
    )  # fmt: skip
    probe = Probe("values", case, "normal", (7,), same=True)
    inputs = made_one(problem.inputs(case, "normal", 7, "cpu"))
    right = expected(problem, probe, 7, inputs)
    assert float(right.eager[0]) == 0.0
    assert float(fused(*inputs)) != 0.0
    assert compare(right, (fused(*inputs),)).reason is None
    assert compare(right, (fused(*inputs) + 1e-3,)).reason is not None


def test_an_allowance_pools_over_draws() -> None:
    """One lucky draw of a single element must not set the bar for the next candidate."""
    truth = torch.tensor([100.0], dtype=torch.float64)
    lucky, typical = torch.tensor([100.0]), torch.tensor([100.0 + 2**-14])
    assert allowance([(lucky, truth), (typical, truth)]).rmse == pytest.approx(2**-14)


def test_repeats_agree_only_bit_for_bit() -> None:
    x = torch.tensor([1.0, math.nan])
    assert repeats_agree((x,), (x.clone(),))
    assert not repeats_agree((x,), (x * (1 + 2**-23),))
    assert not repeats_agree((x,), ())
    assert same_bits(torch.tensor([0.0]), torch.tensor([-0.0])).reason is Reason.not_exact


def test_eager_repeats_on_the_cpu() -> None:
    problem = named("softmax")
    assert eager_is_deterministic(problem, problem.inputs(Case.of("float16", m=4, n=64), "normal", 1, "cpu"))


def test_no_outputs_of_an_empty_case_are_needed() -> None:
    found = _judge(named("softmax"), Case.of("float16", m=0, n=64), lambda x: F.softmax(x, -1))
    assert found == ProbeFinding(None, "")
    assert isinstance(found, ProbeFinding)
    assert Expected.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [p.name for p in ALL if not p.exact and p.family not in ("fused_mlp", "matmul")])
def test_eagers_own_results_always_pass(name: str) -> None:
    """Forward and backward, whatever the values: the rule measures eager's error and must allow it."""
    problem = named(name)
    sizes = {a.name: max(a.low, min(a.high, 5 if a is not problem.axes[-1] else 40)) for a in problem.axes}
    sizes = {a.name: max(1, sizes[a.name] // a.multiple) * a.multiple for a in problem.axes}
    case = Case(tuple(sorted({**problem.cases[0].sizes, **sizes}.items())), problem.dtypes[-1])
    for seed, distribution in enumerate(problem.distributions):
        inputs = problem.inputs(case, distribution, seed, "cpu")
        for backward in (False, True) if problem.gradients else (False,):
            probe = Probe("accuracy", case, distribution, (seed,), backward=backward)
            want = expected(problem, probe, seed, inputs)
            found = compare(want, want.eager)
            assert found.reason is None, (distribution, backward, found)


def test_a_row_of_sixteen_that_has_one_sign_by_luck_may_cancel_like_its_fellows() -> None:
    """Of 8,190 rows some have; seen of an attention's outputs on a GPU."""
    generator = torch.Generator().manual_seed(5)
    truth = torch.randn(8190, 16, dtype=torch.float64, generator=generator) / 16
    truth[7] = truth[7].abs()
    truth[7, 3] = 1e-6
    noise = [torch.randn(truth.shape, dtype=torch.float64, generator=generator) * 1e-4 for _ in range(2)]
    eager, other = ((truth + each).to(torch.bfloat16) for each in noise)
    made = Expected((truth,), (eager,), (allowance([(eager, truth)]),), None, False, True, False)
    assert compare(made, (other,)).reason is None
    other[7, 3] += 0.02
    assert compare(made, (other,)).reason is not None


@pytest.mark.parametrize("terms", [65, 1555, 4093])
def test_a_sum_of_equal_terms_may_err_by_its_order_and_by_nothing_else(terms: int) -> None:
    """The weight's gradient of rows that are all one row: equal roundings do not cancel, and eager's tree may be
    exact. The gradient of each row, which sums over no rows, is held as ever."""
    problem, case = named("rmsnorm_backward"), Case.of("float32", "repeated", m=terms, n=256)
    inputs, right = _asked(problem, case, "normal")
    assert right.terms == (1, terms)
    dx, dw = problem.eager(inputs)
    gradient, x, _, eps = inputs
    term = (gradient[0] * x[0] * torch.rsqrt(x[0].square().mean() + eps)).float()
    size = math.isqrt(terms)

    def one_by_one(part: torch.Tensor, count: int) -> torch.Tensor:
        total = torch.zeros_like(part)
        for _ in range(count):
            total += part
        return total

    in_blocks = one_by_one(one_by_one(term, size), terms // size) + one_by_one(term, terms % size)
    assert compare(right, (dx, in_blocks)).reason is None
    assert compare(right, (dx, in_blocks - term)).reason is not None
    assert compare(right, (dx, dw.bfloat16().float())).reason is not None
    assert compare(right, (dx * (1 + 2e-6), dw)).reason is not None
    assert _asked(problem, case.with_(layout="padded"), "normal")[1].terms == (1, 1)


def _narrow(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (lambda x: _narrow(F.silu(x.float())), None),
        (lambda x: _narrow(F.silu(x.to(torch.float16))), None),
        (lambda x: _narrow(F.silu(x.to(torch.bfloat16)).float()), Reason.rmse),
        (lambda x: _narrow(F.silu(x.float()) * 1.03), Reason.rmse),
        (lambda x: _narrow(F.silu(x.float()) * 1.3), Reason.max_ulp),
        (lambda x: _narrow(F.relu(x.float())), Reason.max_ulp),
        (lambda x: _narrow(torch.where(x.float() > 3, math.nan, F.silu(x.float()))), Reason.max_ulp),
        (lambda x: F.silu(x.to(torch.bfloat16)), Reason.wrong_dtype),
    ],
)
def test_eight_bits_are_a_step_off_at_most_and_few_of_them(kernel: Kernel, reason: Reason | None) -> None:
    def silu(x: torch.Tensor) -> torch.Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float16
        return _narrow(F.silu(x.to(wide)))

    def inputs(case: Case, draw: Draw) -> Inputs:
        return (_narrow(2.0 * draw.values((case["rows"], 512), torch.float32)),)

    problem = replace(named("gelu"), reference=silu, make_inputs=inputs, oracle=lambda x: silu(x.double()))
    finding = _judge(problem, Case.of("bfloat16", rows=64, n=512), kernel)
    assert finding.reason == reason, finding.detail


def test_the_error_of_torch_s_own_narrow_product_is_allowed_as_eager_s_is() -> None:
    case = Case.of("bfloat16", m=64, n=64, k=64)
    problem = named("matmul")
    cut = replace(problem, narrow=lambda a, b: (problem.reference(a, b).float() * (1 + 2.0**-5)).bfloat16())
    inputs, right = _asked(problem, case, "normal")
    _, wider = _asked(cut, case, "normal")
    made = (problem.reference(*inputs).float() * (1 + 2.0**-5)).bfloat16()
    assert compare(right, (made,)).reason is not None
    assert compare(wider, (made,)).reason is None


def test_two_results_in_eight_bits_are_compared_with_their_signs() -> None:
    zero = torch.zeros(3).to(torch.float8_e4m3fn)
    assert repeats_agree([zero], [zero])
    assert not repeats_agree([zero], [(-torch.zeros(3)).to(torch.float8_e4m3fn)])
