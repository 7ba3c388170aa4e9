"""AdamW's step: large parameters by the certified kernel in place, the rest by torch, hooks and state as ever.

What is replaced is the function that torch.optim.Adam.step hands its lists to, so parameter groups, schedulers,
hooks and state_dict do not notice. The kernel wants the step's number on the host, where torch's fused optimiser
keeps it on the GPU: it is read once, then counted along, and read again only if somebody else wrote to it. A weight
that has a 16-bit copy is the business of the kernel that writes both (see `copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.optim.adam  # torch.optim itself hides its modules
from torch.utils.weak import WeakTensorKeyDictionary

from kernels.apply.job.checks import agrees, capturing
from kernels.apply.job.copies import COPIED, COPIES
from kernels.apply.job.functions import swap_function
from kernels.apply.job.guards import interpreted, outside
from kernels.apply.job.operators import run_once
from kernels.apply.job.problems import SPECS
from kernels.apply.job.state import DTYPES, STATE, Kernel, Report, fell_back, in_use

SMALLEST = 1 << 18
"""Elements: smaller parameters go to torch together, in one launch for all of them."""
_PLAIN = ("max_exp_avg_sqs", "amsgrad", "capturable", "differentiable", "maximize", "has_complex", "grad_scale")
Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Steps:
    """The step numbers on the host: step tensor → (number, version of the tensor when it was that)."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()

    def next(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Adds one to each tensor; the numbers that they hold then. Waits for the GPU only for those it lost."""
        if not tensors:
            return []
        numbers = []
        for tensor in tensors:
            number, version = self._known.get(tensor, (0, -1))
            numbers.append((number if version == tensor._version else int(tensor.item())) + 1)
        torch._foreach_add_(list(tensors), 1)
        for tensor, number in zip(tensors, numbers, strict=True):
            self._known[tensor] = (number, tensor._version)
        return numbers


_STEPS = Steps()


def swap_optimizer(report: Report) -> None:
    """Puts the guarded step in the place of torch.optim's."""
    for problem in ("adamw", COPIED):
        if problem in STATE.kernels and (problem == "adamw" or len(COPIES)):
            swap_function("torch.optim.adam.adam", _adam)
            report.applied.append(("torch.optim.AdamW", problem, STATE.kernels[problem].certificate))


def _adam(original: Callable[..., Any]) -> Callable[..., Any]:
    def adam(params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, *rest: Any, **named: Any) -> Any:
        every = (params, grads, exp_avgs, exp_avg_sqs)
        why, idle = "", in_use("adamw") is None and in_use(COPIED) is None
        if idle or torch.compiler.is_compiling() or capturing():
            return original(*every, *rest, **named)
        steps: Any = rest[1] if len(rest) == 2 else named.get("state_steps")
        listed = {**named, "max_exp_avg_sqs": rest[0] if rest else named.get("max_exp_avg_sqs")}
        numbers = [named.get(name) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]
        plain = named.get("decoupled_weight_decay") is True and not any(
            listed.get(name) is not None and listed.get(name) is not False and listed.get(name) != []
            for name in _PLAIN
        )
        if not plain or named.get("found_inf") is not None or steps is None:
            why = "another optimiser"
        elif not all(isinstance(number, float | int) for number in numbers):
            why = "hyperparameters are tensors"
        if why:
            fell_back("adamw", why)
            return original(*every, *rest, **named)
        rows: list[Row] = list(zip(*every, strict=True))
        chosen = [_problem_of(row) for row in rows]
        ours = [number for number, problem in enumerate(chosen) if problem]
        for problem in sorted({*chosen} - {""}):
            kernel, mine = STATE.kernels[problem], [n for n in ours if chosen[n] == problem]
            if _due(kernel, len(mine)):
                which = min(mine, key=lambda number: rows[number][0].numel())
                kernel.calls += len(mine)
                call = lambda: original(*every, *rest, **named)  # noqa: E731
                return _checked(kernel, call, _with_copy(problem, rows[which]), steps[which], numbers)
        left = sorted(set(range(len(rows))) - set(ours))
        if left:
            part = [[column[number] for number in left] for column in every]
            original(*part, **{**named, "max_exp_avg_sqs": [], "state_steps": [steps[n] for n in left]})
        with torch.no_grad():
            for number, step in zip(ours, _STEPS.next([steps[n] for n in ours]), strict=True):
                _stepped(chosen[number], rows[number], numbers, step)
        return None

    return adam


def _problem_of(row: Row) -> str:
    """The kernel that takes a parameter: the one that writes its copy too, where it has one; "" for torch's."""
    for problem in (COPIED, "adamw"):
        kernel = in_use(problem)
        if kernel is not None and (problem == "adamw" or row[0] in COPIES) and _fits(kernel, row):
            return problem
    return ""


def _with_copy(problem: str, row: Row) -> tuple[torch.Tensor, ...]:
    return (*row, COPIES[row[0]].narrow) if problem == COPIED else row


def _stepped(problem: str, row: Row, numbers: Sequence[Any], step: int) -> None:
    run_once(problem, (*_with_copy(problem, row), *numbers, step))
    torch.autograd.graph.increment_version((row[0], row[2], row[3]))
    if problem == COPIED and in_use(problem) is not None:
        COPIES[row[0]].made(row[0])


def _fits(kernel: Kernel, row: Row) -> bool:
    kind = torch.float32 if kernel.problem == COPIED else DTYPES[kernel.record["dtype"]]
    first = row[0]
    return (
        first.numel() >= SMALLEST
        and (first.device.type == "cuda" or interpreted())
        and all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in row)
        and all(x.dtype == kind and x.is_contiguous() and x.numel() == first.numel() for x in row)
        and not outside(kernel.record, {"n": first.numel()})
    )


def _due(kernel: Kernel, count: int) -> bool:
    """Whether one of the next `count` calls is to be checked."""
    every = STATE.shadow_every
    return every > 0 and (STATE.watching or (kernel.calls + count) // every > kernel.calls // every)


@torch.no_grad()
def _checked(
    kernel: Kernel,
    by_torch: Callable[[], Any],
    row: tuple[torch.Tensor, ...],
    step: torch.Tensor,
    numbers: Sequence[Any],
) -> None:
    """torch's step on everything, and the kernel's on a copy of one parameter: a wrong one changes nothing."""
    try:
        mine = [x.detach().clone() for x in row]
        exact = [x.detach().to(torch.double, copy=True) for x in row]
    except torch.OutOfMemoryError:
        STATE.fallbacks["shadow: no memory"] = STATE.fallbacks.get("shadow: no memory", 0) + 1
        by_torch()
        return
    by_torch()
    rest = (*numbers, int(step.item()))
    kernel.entry(*mine, *rest)
    spec = SPECS[kernel.problem]
    spec.reference(*exact, *rest)
    theirs = (*row[:4], *(row[0].to(x.dtype) for x in row[4:]))  # torch writes no copy: what it would be
    agrees(kernel, *(tuple(x[place] for place in spec.mutates) for x in (mine, theirs, exact)))
