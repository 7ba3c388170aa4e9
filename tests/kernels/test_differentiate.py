"""A training step is a problem of its own, and a kernel with a backward pass is raced on it too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nightshift.kernels.candidate import Candidate, Domain
from nightshift.kernels.differentiate import differentiated, input_count, training_step
from nightshift.kernels.judge import trial as trial_module
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.race.contest import Pace
from nightshift.kernels.ops.problems import ALL, named
from nightshift.kernels.problem import Case, gradients_of


@pytest.mark.parametrize("name", [p.name for p in ALL if p.gradients])
def test_a_training_steps_reference_gives_the_gradients_of_its_problem(name: str) -> None:
    """From upstream gradients that are further inputs; the forward's case and numbers stay."""
    problem = named(name)
    step, count = training_step(problem), input_count(problem)
    sizes = {axis.name: max(axis.low, axis.multiple, 2) for axis in problem.axes}
    sizes = {axis.name: sizes[axis.name] // axis.multiple * axis.multiple for axis in problem.axes}
    case = Case(tuple(sorted({**problem.cases[0].sizes, **sizes}.items())), problem.dtypes[0])
    made = step.inputs(case, "normal", 3, "cpu")
    plain = problem.inputs(case, "normal", 3, "cpu")
    assert len(made) == count + len(problem.eager(plain))
    wanted = gradients_of(problem.reference, plain, problem.gradients, made[count:])  # type: ignore[arg-type]
    found = step.eager(made)
    assert [x.shape for x in found] == [plain[p].shape for p in problem.gradients]  # type: ignore[union-attr]
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
    assert all(x.dtype == torch.float64 for x in step.truth(made))


def test_a_problem_without_gradients_has_no_training_step() -> None:
    with pytest.raises(ValueError, match="copy: has no gradients"):
        training_step(named("copy"))


def test_the_step_of_a_function_leaves_its_arguments_alone() -> None:
    x, up = torch.randn(3, 4), torch.randn(3, 4)
    (gradient,) = differentiated(lambda a: a * a, (0,), 1)(x, up)
    assert torch.allclose(gradient, 2 * x * up)
    assert not x.requires_grad


@pytest.mark.full
def test_a_differentiable_kernel_is_raced_as_a_training_step_too(
    cpu_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "class_refusal", lambda *_: None)
    case = Case.of("float32", m=32, n=256)
    problem = replace(named("softmax"), name="softmax step", cases=(case,), libraries={})
    source = "import torch\n\n\ndef entry(x):\n    return torch.softmax(x, -1)\n"
    candidate = Candidate(
        source, "entry", "python", "own_kernel", "bitwise", differentiable=True, domain=Domain(("float32",))
    )
    scope = replace(INTERPRETER, max_bytes=1 << 12, sweep_random=1, repeats=2)
    request = Request(scope, Pace(min_rounds=9, max_rounds=9, round_s=0.005, max_slots=2), static=False)
    verdict = cpu_judge.verdict(candidate, problem, request, b"step")
    assert [c.case for c in verdict.comparisons] == [str(case), f"{case}, training step"], verdict.detail
