"""The shadow check: now and then what a kernel computed on the job's own data is held against torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from nightshift.kernels.apply.job.demotion import ask_demotion
from nightshift.kernels.apply.job.problems import Spec
from nightshift.kernels.apply.job.state import STATE, Kernel, disable


def capturing() -> bool:
    """Whether a CUDA graph is being recorded: nothing may be read back then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def due(kernel: Kernel) -> bool:
    """Whether this call, already counted, is to be checked."""
    if not STATE.shadow_every or capturing():
        return False
    # a compiled region that launches kernels itself counts no calls: there one whole step is checked
    return STATE.watching or kernel.calls % STATE.shadow_every == 0


def shadowed(kernel: Kernel, spec: Spec, inputs: Sequence[Any], out: Any) -> Any:
    """What the job gets: the kernel's output where it stands, else torch's.

    Both are held against float64: RMSE at most 3 times torch's own.
    """
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
    eager = spec.reference(*inputs)
    return out if agrees(kernel, out, eager, spec.reference(*wide)) else eager


def agrees(kernel: Kernel, out: Any, eager: Any, truth: Any) -> bool:
    """Counts one check. Where it fails the kernel is disabled, and the registry is asked to demote it."""
    kernel.shadow_checks += 1
    outs, eagers, truths = (x if isinstance(x, tuple | list) else (x,) for x in (out, eager, truth))
    for mine, theirs, exact in zip(outs, eagers, truths, strict=True):
        error, allowed, level = _errors(mine, theirs, exact)
        # a NaN compares false with everything: written the other way round it would pass
        if not error <= 3.0 * allowed + 2.0 * torch.finfo(mine.dtype).eps * level:
            kernel.shadow_mismatches += 1
            disable(kernel, f"shadow check: error {error:.3g}, torch's own {allowed:.3g}")
            # other jobs may use the same kernel
            ask_demotion(kernel)
            return False
    return True


def _errors(mine: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> tuple[float, float, float]:
    """RMSE of a kernel's output, of torch's own, and the exact values' level, over what is finite in all three.

    Where neither of the other two is finite the kernel's may not be either, and where both are it has to be: else
    its error is infinite. So a job that diverged, whose values are NaN for torch too, is no kernel's fault.
    """
    if not exact.numel():
        return 0.0, 0.0, 0.0
    # as the kernel's dtype holds it: a float64 beyond float16's range is infinite there, rightly
    here, there, true = (x.isfinite() for x in (mine, theirs, exact.to(mine.dtype)))
    if bool(((here & ~there & ~true) | (~here & there & true)).any()):
        return math.inf, 0.0, 0.0
    every = here & there & true
    wide = exact.double()
    gaps = (mine.double() - wide, theirs.double() - wide, wide)
    error, allowed, level = (float(torch.where(every, x, 0.0).square().mean().sqrt()) for x in gaps)
    return error, allowed, level
