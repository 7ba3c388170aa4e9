"""What a call's outputs are held against: the float64 oracle, eager's own result, and what eager's errors permit.

Computed from the judge's own copies of a call's inputs, in the judge's process, where no candidate can look.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from nightshift.kernels.draw import Draw, mix
from nightshift.kernels.judge.probes.correctness import (
    EIGHT_BITS,
    MIXED_ROW,
    ErrorAllowance,
    Expected,
    repeats_agree,
    steps_apart,
)
from nightshift.kernels.judge.probes.errors import errors_of, positive, rows_of
from nightshift.kernels.judge.probes.exact import WrittenOut, doubt
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.layouts import laid_out, lay_out, made_one, repeats
from nightshift.kernels.problem import Inputs, Outputs, Problem, as_outputs, gradients_of

POOL_ELEMENTS = 4096
# All of a vector's elements may share one error, that of a sum or a maximum over it, so that eager's is luck
# however long it is; up to what a device draws again in no time.
_POOL_VECTOR = {"cpu": 1 << 16, "cuda": 1 << 22}
POOL_DRAWS, _POOL_BYTES = 8, 1 << 30
ONE_VALUE = "near_constant"


def allowance(draws: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> ErrorAllowance:
    """From (eager, truth) pairs of one output over one or more draws of the same case."""
    measured = [errors_of(eager, truth, ()) for eager, truth in draws]
    worst = [torch.stack([e.rows, e.rows / positive(e.row_scales)]).amax(1) for e in measured if len(e.rows)]
    row, row_relative = torch.stack(worst).amax(0).tolist() if worst else (0.0, 0.0)
    return ErrorAllowance(
        rmse=max(max(e.rmse, e.floor) for e in measured),
        row=row,
        row_relative=row_relative,
        ulp=max(e.worst_ulp for e in measured),
        eager_rmse=measured[0].rmse,
        mixed=_mixed_together([truth for _, truth in draws]),
    )


def expected(problem: Problem, probe: Probe, seed: int, inputs: Inputs) -> Expected:
    """Oracle, eager result and allowance for one call of a probe; `inputs` are the call's, in their layout.

    A question with one right answer is exact where the references bear that out. For a small output eager's errors
    are pooled over further draws. With `probe.rows`, everything is computed on
    sampled rows only, the first, the last and those around element 2³¹ among them.
    """
    if probe.upstream == "infinite":
        return _reached(problem, probe, seed, inputs)
    rows = None
    if probe.rows:
        inputs, rows = _sample(problem, probe, seed, inputs)
    truth, eager = _pair(problem, probe, seed, inputs)
    found = Expected(truth, eager, (), rows, False, problem.signed_zero, probe.backward, placed=probe.placed)
    if problem.exact and not probe.backward:
        return replace(found, exact=True)
    if probe.bound:
        return replace(found, bound=probe.bound)
    rule = problem.rule(probe.distribution)
    if rule is not None:
        found = replace(found, bits=rule.outputs, doubt=doubt(problem, rule, inputs, eager, truth))
        if found.doubt:
            found = replace(found, bits=())
        elif not rule.outputs:
            return replace(found, exact=True, signed_zero=False)  # a sum of 0 has either sign by its order
    draws = [(eager, truth), *_further_draws(problem, probe, seed, inputs, truth)]
    if problem.narrow is not None and not probe.backward:
        draws.append((as_outputs(problem.narrow(*inputs)), truth))
    wide = (x.double() if x.dtype in EIGHT_BITS else x for x in (*truth, *eager))  # isfinite takes none
    finite = all(bool(torch.isfinite(x).all()) for x in wide)
    return replace(
        found,
        allowances=tuple(_allowance_of([(e[i], t[i]) for e, t in draws], probe.same) for i in range(len(eager))),
        elementwise=problem.elementwise and not probe.backward,
        terms=tuple(_equal_terms(inputs, out, probe.upstream == "expanded") for out in eager),
        written_out=() if finite else _truth(problem, probe, seed, inputs, WrittenOut()),
    )


def _further_draws(
    problem: Problem, probe: Probe, seed: int, inputs: Inputs, truth: Outputs
) -> Iterator[tuple[Outputs, Outputs]]:
    """(eager, truth) of the same case with other values, where eager's error is luck: an output that small, or
    values that are all near one, so that every row rounds the same sum of it."""
    device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), torch.device("cpu"))
    vector = _POOL_VECTOR[device.type]
    few = (vector, vector if probe.distribution == ONE_VALUE else POOL_ELEMENTS)
    huge = probe.rows and problem.compulsory_bytes(probe.case) > _POOL_BYTES  # each draws all inputs
    if huge or not any(t.numel() <= few[t.dim() > 1] for t in truth):
        return
    for i in range(1, POOL_DRAWS):
        other = mix(seed, i, 0x9001)
        made = problem.inputs(probe.case, probe.distribution, other, device)
        # every other one: where inputs are one tensor, eager may cancel to the last bit by its order alone
        again = laid_out(made_one(made) if probe.same and i % 2 else made, probe.case.layout)
        if probe.rows:
            again, _ = _sample(problem, probe, other, again)
        truth_again, eager_again = _pair(problem, probe, other, again)
        yield eager_again, truth_again


def _equal_terms(inputs: Inputs, out: torch.Tensor, expanded: bool) -> int:
    """How many equal terms an output sums: as many as rows of an input are one row (by its stride of 0, or under an
    expanded upstream gradient), where the output has no such rows itself."""
    found = 1
    for x in inputs:
        if isinstance(x, torch.Tensor) and x.dim() > 1 and (axis := repeats(x.shape)) >= 0:
            size, kept = x.shape[axis], axis < out.dim() and out.shape[axis] == x.shape[axis]
            if (x.stride(axis) == 0 or expanded) and not kept:
                found = max(found, size)
    return found


def _allowance_of(draws: Sequence[tuple[torch.Tensor, torch.Tensor]], same: bool = False) -> ErrorAllowance:
    """Of one output, from (eager, truth) pairs. same: of equal inputs, which may cancel. Of rounded integers
    against an unrounded oracle it is eager's largest distance, and a hair for another rounding."""
    if draws[0][0].dtype in EIGHT_BITS:  # the share of elements that are not the nearest one
        share = max(
            float((steps_apart(e, t.to(e.dtype)) > 0).double().mean()) if e.numel() else 0.0 for e, t in draws
        )
        return ErrorAllowance(share, share, share, share, share)
    if draws[0][0].is_floating_point():
        found = allowance(draws)
        return replace(found, mixed=found.mixed or same)
    worst = max(float((e.double() - t.double()).abs().max()) if e.numel() else 0.0 for e, t in draws)
    return ErrorAllowance(worst + 2.0**-10, worst, worst, worst, worst)


def gradient_seeds(outputs: Sequence[torch.Tensor], seed: int, upstream: str) -> Outputs:
    """The outputs' gradients of a backward probe: normal values from the probe's seed, laid out as `upstream` says.

    "expanded" is one row for all, of stride 0, as the gradient of a sum over rows is handed down; with "some_zero"
    half of the rows are zero, as those of ignored tokens are; "scaled" ones are as large as mixed precision makes
    them (torch.amp.GradScaler begins at 2¹⁶), in float16 so that a product of two or three is still finite; of
    "infinite" ones up to three are +inf, −inf and NaN, at hidden places.
    """
    made = []
    for i, out in enumerate(outputs):
        draw = Draw(mix(seed, i, 0x67), "normal", out.device)
        if upstream == "expanded":
            made.append(draw.normal((1, *out.shape[1:]), out.dtype).expand(out.shape))
        elif upstream == "some_zero":
            kept = draw.normal((*out.shape[:1], *(1 for _ in out.shape[1:])), torch.float32) > 0
            if len(out) > 1:  # in some probe of few rows all might be of one kind
                zero = draw.integer(0, len(out))
                kept[zero], kept[zero - 1] = False, True
            made.append(torch.where(kept, draw.normal(out.shape, out.dtype), 0.0))
        elif upstream == "scaled":
            made.append(draw.normal(out.shape, out.dtype, 2.0 ** (10 if out.dtype is torch.float16 else 16)))
        elif upstream == "infinite":
            made.append(draw.normal(out.shape, out.dtype))
            for value in (math.nan, -math.inf, math.inf) if out.numel() else ():  # the last surely stands
                made[-1].view(-1)[draw.integer(0, out.numel())] = value
        else:
            made.append(lay_out(draw.normal(out.shape, out.dtype), upstream))
    return tuple(made)


def _reached(problem: Problem, probe: Probe, seed: int, inputs: Inputs) -> Expected:
    """Where gradients must not be finite: where eager's are not, and what is not finite above does reach. Gradients
    are linear in what comes from above, so that is where the float64 gradient of those places alone is not zero.
    How far 0 · inf spreads beyond is a matter of tiles, so it is not compared, nor whether inf or NaN comes out."""
    grads = gradient_seeds(problem.eager(inputs), seed, probe.upstream)
    positions = probe.gradients(problem)
    eager = gradients_of(problem.reference, inputs, positions, grads)
    alone = []
    for grad in grads:
        weights = 1.0 + torch.arange(grad.numel(), device=grad.device).reshape(grad.shape) / max(1, grad.numel())
        alone.append(torch.where(torch.isfinite(grad), 0.0, weights.double()))
    doubles = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
    through = gradients_of(problem.oracle or problem.reference, doubles, positions, tuple(alone))
    spoilt = tuple(
        (t.abs() > 1e-9 * t.abs().max()) & ~torch.isfinite(e)
        if t.numel()
        else torch.zeros_like(e, dtype=torch.bool)
        for t, e in zip(through, eager, strict=True)
    )
    return Expected(eager, eager, (), None, False, problem.signed_zero, True, spoilt=spoilt)


def _pair(problem: Problem, probe: Probe, seed: int, inputs: Inputs) -> tuple[Outputs, Outputs]:
    """(truth, eager): outputs, or gradients for a backward probe."""
    truth = _truth(problem, probe, seed, inputs)
    if not probe.backward:
        return truth, problem.eager(inputs)
    grads = gradient_seeds(problem.eager(inputs), seed, probe.upstream)
    return truth, gradients_of(problem.reference, inputs, probe.gradients(problem), grads, probe.only)


def _truth(
    problem: Problem,
    probe: Probe,
    seed: int,
    inputs: Inputs,
    mode: contextlib.AbstractContextManager[Any] = contextlib.nullcontext(),  # noqa: B008  holds nothing
) -> Outputs:
    """The float64 oracle's outputs or gradients, while `mode` is in force."""
    if not probe.backward:
        with mode:
            return problem.truth(inputs)
    grads = gradient_seeds(problem.eager(inputs), seed, probe.upstream)
    doubles = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
    wide, positions = tuple(g.double() for g in grads), probe.gradients(problem)
    with mode:
        return gradients_of(problem.oracle or problem.reference, doubles, positions, wide, probe.only)


def _sample(problem: Problem, probe: Probe, seed: int, inputs: Inputs) -> tuple[Inputs, torch.Tensor]:
    leading = inputs[problem.row_inputs[0]]
    if not isinstance(leading, torch.Tensor):
        raise TypeError(f"{problem.name}: row_inputs name a number, not a tensor")
    count = leading.shape[0]
    width = max(1, leading.numel() // max(1, count))
    edges = [0, count - 1, *(row + d for row in ((1 << 31) // width, (1 << 32) // width) for d in (-1, 0, 1))]
    picks = [mix(seed, i, 0x20) % count for i in range(probe.rows)]
    rows = torch.tensor(sorted({r for r in (*edges, *picks) if 0 <= r < count}), device=leading.device)
    taken = tuple(
        x.index_select(0, rows) if i in problem.row_inputs and isinstance(x, torch.Tensor) else x
        for i, x in enumerate(inputs)
    )
    return taken, rows


def _mixed_together(truths: Sequence[torch.Tensor]) -> bool:
    """Whether short rows hold values of both signs between them."""
    short = [t for t in truths if rows_of(t).shape[1] < MIXED_ROW]
    return bool(short) and all(
        torch.stack([torch.stack([(t < 0).any(), (t > 0).any()]) for t in short]).any(0).tolist()
    )


def eager_is_deterministic(problem: Problem, inputs: Inputs, upstream: Outputs = (), runs: int = 3) -> bool:
    """Whether eager itself repeats bit for bit: a candidate may not be worse than this, whatever it declares.

    With `upstream` gradients, whether its gradients do.
    """

    def run() -> Outputs:
        if upstream:
            return gradients_of(problem.reference, inputs, problem.gradients, upstream)
        return problem.eager(inputs)

    first = run()
    return all(repeats_agree(first, run()) for _ in range(runs - 1))
