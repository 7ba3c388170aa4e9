"""The rounding of one sum over a whole output is in all its elements: allowed as one row's error, no further."""

from __future__ import annotations

import pytest
import torch

from nightshift.kernels.judge.probes.correctness import Expected, compare
from nightshift.kernels.judge.probes.errors import errors_of
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.oracle import allowance, expected
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

PARTICLES = named("particle_weights")


def _composed(
    position: torch.Tensor, log_weight: torch.Tensor, landmark: torch.Tensor, distance: torch.Tensor, sigma: float
) -> torch.Tensor:
    apart = torch.hypot(position[:, :1] - landmark[:, 0], position[:, 1:] - landmark[:, 1])
    updated = log_weight - 0.5 * (((apart - distance) / sigma) ** 2).sum(1)
    return torch.log_softmax(updated, 0)


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_torchs_own_log_softmax_is_accepted_however_long_the_vector(seed: int) -> None:
    """Its running sums lose small terms, so all its log weights are too large by as much; eager's sum in pairs."""
    case = Case.of("float32", m=116800, k=2)
    inputs = PARTICLES.inputs(case, "normal", seed, "cpu")
    want = expected(PARTICLES, Probe("sweep", case, "normal", (seed,)), seed, inputs)
    assert compare(want, (_composed(*inputs),)).reason is None  # type: ignore[arg-type]


def _off(dtype: str, made: str, times: float) -> Reason | None:
    """What is said of a copy of the truth with errors so many times eager's, shared or each element's own."""
    problem, case = named("rmsnorm"), Case.of(dtype, m=300, n=256)
    inputs = problem.inputs(case, "normal", 5, "cpu")
    want = expected(problem, Probe("accuracy", case, "normal", (5,)), 5, inputs)
    size = times * max(errors_of(want.eager[0], want.truth[0], ()).rmse, errors_of(*want.truth * 2, ()).floor)
    noise = torch.randn(want.truth[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = want.truth[0]
    error = {"offset": torch.ones_like(truth), "scale": truth / truth.square().mean().sqrt(), "noise": noise}[made]
    return compare(want, ((truth + size * error).to(case.torch_dtype),)).reason


@pytest.mark.parametrize("made", ["offset", "scale"])
def test_a_shared_error_is_allowed_as_one_rows_and_refused_beyond(made: str) -> None:
    assert _off("float32", made, 3.0) is None
    assert _off("float32", made, 12.0) is Reason.rmse


def test_errors_of_the_elements_own_are_held_to_the_strict_factor() -> None:
    assert _off("float32", "noise", 1.0) is None
    assert _off("float32", "noise", 4.0) is Reason.rmse


def test_in_sixteen_bits_a_shared_error_is_granted_nothing() -> None:
    """A float32 sum's rounding is far below the last place of its output."""
    for dtype, made in (("bfloat16", "offset"), ("float16", "scale")):
        assert _off(dtype, made, 6.0) in (Reason.rmse, Reason.worst_row)


def test_a_shared_error_is_found_whatever_the_truths_mean() -> None:
    truth = torch.linspace(1e6, 1e6 + 1, 4096, dtype=torch.float64)
    found = errors_of((truth + 0.125).float(), truth, ())
    assert found.shared == pytest.approx(found.rmse, rel=0.2)
    assert found.residual < found.rmse


@pytest.mark.parametrize(("sign", "reason"), [(-1.0, None), (1.0, Reason.max_ulp)])
def test_few_sums_of_one_sign_may_cancel_where_other_draws_have_both(sign: float, reason: Reason | None) -> None:
    """Eager was lucky on a sum near zero: 130 ULP are nothing for a sum of ones, and wrong for a norm."""
    truth = torch.tensor([9.0, 0.01], dtype=torch.float64)
    other = torch.tensor([4.0, sign * 7.0], dtype=torch.float64)
    allowed = allowance([(truth.float(), truth), (other.float() + 4e-7, other)])
    want = Expected((truth,), (truth.float(),), (allowed,), None, False, True, False)
    assert compare(want, (truth.float() + torch.tensor([0.0, 130 * 2.0**-30]),)).reason is reason
