"""A differentiable problem's training step as a problem: inputs and upstream gradients in, gradients out.

Its reference is the forward and the backward pass through autograd, as training pays for both. Baselines are the
forward problem's (eager, torch.compile, libraries), each differentiated through its own backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from nightshift.kernels.draw import Draw, mix
from nightshift.kernels.problem import Case, Inputs, Outputs, Problem, as_outputs

_DISTRIBUTIONS = ("normal", "large_mean", "heavy_tail", "ties")


def differentiated(function: Callable[..., Any], positions: tuple[int, ...], count: int) -> Callable[..., Outputs]:
    """function(*inputs) of `count` inputs → f(*inputs, *upstream gradients) giving gradients at `positions`."""

    def step(*arguments: Any) -> Outputs:
        given, upstream = list(arguments[:count]), arguments[count:]
        for position in positions:
            # a leaf of its own: the caller's tensor must not collect a graph
            given[position] = given[position].detach().requires_grad_(True)
        with torch.enable_grad():
            outputs = as_outputs(function(*given))
        wanted = [given[position] for position in positions]
        return torch.autograd.grad(outputs, wanted, [g.to(o.dtype) for g, o in zip(upstream, outputs, strict=True)])

    return step


def training_step(problem: Problem) -> Problem:
    """The problem of `problem`'s gradients, on the same cases. Its case says "n inputs" by the forward's.

    Compulsory bytes and FLOPs are the forward's, a lower bound: gradients of the inputs are as large as the inputs,
    upstream gradients as the outputs, and the backward of a product is two products.
    """
    if not problem.gradients:
        raise ValueError(f"{problem.name}: has no gradients")

    def make_inputs(case: Case, draw: Draw) -> Inputs:
        made = problem.make_inputs(case, draw)
        upstream = [
            Draw(mix(draw.seed, number, 0x75), "normal", draw.device).normal(shape, dtype)
            for number, (shape, dtype) in enumerate(output_forms(problem, made))
        ]
        return (*made, *upstream)

    count = input_count(problem)

    def of(function: Callable[..., Any]) -> Callable[..., Outputs]:
        return differentiated(function, problem.gradients, count)

    return replace(
        problem,
        name=f"{problem.name} gradients",
        reference=of(problem.reference),
        oracle=of(problem.oracle or problem.reference),
        make_inputs=make_inputs,
        gradients=(),
        libraries={name: of(function) for name, function in problem.libraries.items()},
        distributions=tuple(name for name in problem.distributions if name in _DISTRIBUTIONS),
        huge=(),  # a gradient of what all rows share is a sum over all of them: sampled rows do not give it
        row_inputs=(),
        elementwise=False,
        forward=(problem, of),
    )


def output_forms(problem: Problem, inputs: Inputs) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """(shape, dtype) of each output of a call on these inputs; nothing is computed where operators allow that."""
    # on "meta" no memory is needed; an operator without a meta kernel has to run
    try:
        meta = tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in inputs)
        outputs = as_outputs(problem.reference(*meta))
    except (NotImplementedError, RuntimeError):
        outputs = problem.eager(inputs)
    return [(tuple(x.shape), x.dtype) for x in outputs]


def input_count(problem: Problem) -> int:
    """How many inputs a problem has."""
    return len(smallest_inputs(problem))


def smallest_inputs(problem: Problem, dtype: str = "") -> Inputs:
    """Inputs of the smallest case of a problem's axes, on the CPU. dtype: of the first timed case where empty."""
    case = problem.cases[0]
    smallest: dict[str, Any] = {**case.sizes, **{axis.name: max(axis.low, axis.multiple) for axis in problem.axes}}
    return problem.inputs(Case.of(dtype or case.dtype, **smallest), "normal", 1, "cpu")
