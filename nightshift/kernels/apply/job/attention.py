"""Causal attention, in training too: `torch.nn.functional.scaled_dot_product_attention` that asks the guards.

The heads of a projection lie side by side, position by position, and so do q, k and v in one that makes all three:
the tensors that a model hands over are views of that, heads first. The kernels read them where they lie. In
training the forward pass keeps each row's logarithm of its sum of exponentials, and the gradients come of one more
operator; in a compiled region both stand in its graph. Where only one of them has a kernel, torch's own computes
the other, of what that one kept.

What is no plain causal attention (a mask, dropout, another scale, fewer heads of keys, another length) is torch's,
and counted. Where a gradient is differentiated again it is the formula's, which takes s² of memory for each head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.guards import guarded, refusal
from nightshift.kernels.apply.job.heads import plain_attention, side_by_side
from nightshift.kernels.apply.job.operators import operator_of, run_once
from nightshift.kernels.apply.job.places import autocast, overseen, transformed
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import ATTENDED, STATE, Report, fell_back, in_use

ATTENTION = "scaled_dot_product_attention"
GRADIENT = f"{ATTENDED}_backward"
HEADS_FIRST = "flash_attention"
"""Of contiguous (b, h, s, d), and where nothing is differentiated."""
_NARROWED = (torch.float32, torch.float16, torch.bfloat16)


def _computed(problem: str, inputs: Sequence[torch.Tensor]) -> Any:
    seen = torch.compiler.is_compiling() or overseen()
    return operator_of(problem)(*inputs) if seen else run_once(problem, inputs)


class Attended(torch.autograd.Function):
    """Attention of (b, s, h, d); `torch.compile` sees the operators in it."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out, logs = _computed(ATTENDED, (q, k, v))
        ctx.save_for_backward(q, k, v, out, logs)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        q, k, v, out, logs = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is to be differentiated again
            return _differentiable(g, q, k, v)
        kernel = in_use(GRADIENT)
        given = [g, q, k, v, out, logs]
        if kernel is not None:  # what a job keeps elsewhere until then may come back otherwise than it lay
            given = [x if side_by_side(kernel.record, x) else x.contiguous() for x in given]
        return tuple(_computed(GRADIENT, given))


def _differentiable(g: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients by the formula, for autograd to follow."""
    with torch.enable_grad():
        given = [x.view_as(x) for x in inputs]  # one tensor may be given twice
        out, _ = plain_attention(*(x.transpose(1, 2) for x in given))
    wanted = [x for x in given if x.requires_grad]
    made = iter(torch.autograd.grad(out.transpose(1, 2), wanted, g, create_graph=True))
    return tuple(next(made) if x.requires_grad else None for x in given)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _any_backend() -> bool:
    """Whether torch may choose who computes attention: not where a job asks for the plain formula."""
    torchs: Any = torch.backends.cuda
    return bool(torchs.flash_sdp_enabled() or torchs.mem_efficient_sdp_enabled() or torchs.cudnn_sdp_enabled())


def _unlike(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, dropout: float, causal: bool, scale: float | None
) -> str:
    """What a call asks for that no kernel of ours does; empty where it is causal attention of equal heads."""
    if not _any_backend():
        return "backend"
    if mask is not None:
        return "mask"
    if dropout != 0.0:
        return "dropout"
    if not causal:
        return "not causal"
    if q.dim() != 4 or not q.shape == k.shape == v.shape:
        return "heads" if q.dim() == k.dim() == 4 and q.shape[1] != k.shape[1] else "shape"
    if scale is not None and not math.isclose(scale, q.shape[-1] ** -0.5, rel_tol=1e-6):
        return "scale"
    return ""


def attention_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.nn.functional.scaled_dot_product_attention that asks the guards."""

    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        given = (query, key, value)
        # no tracer's stand-ins, nested tensors or DTensors
        if all(type(x) in (torch.Tensor, nn.Parameter) and not x.is_nested for x in given):
            why = _unlike(*given, attn_mask, dropout_p, is_causal, scale)
            out = None if why else _attended_by_kernel(*given)
            if why:
                fell_back(_name(), why)
            if out is not None:
                return out
        return original(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip

    return scaled_dot_product_attention


def _name() -> str:
    return ATTENDED if ATTENDED in STATE.kernels or GRADIENT in STATE.kernels else HEADS_FIRST


def _attended_by_kernel(*given: torch.Tensor) -> Any:
    """(b, h, s, d), of q, k and v as given; None where a guard refuses, which is counted."""
    device = given[0].device.type
    if autocast(given[0]) and all(x.dtype in _NARROWED for x in given):  # as it casts for torch's
        given = tuple(x.to(torch.get_autocast_dtype(device)) for x in given)
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    if in_use(HEADS_FIRST) is not None and not trained and all(x.is_contiguous() for x in given):
        return guarded(HEADS_FIRST, given, ())
    held = [name for name in ((ATTENDED, GRADIENT) if trained else (ATTENDED,)) if in_use(name) is not None]
    if not held:
        if in_use(HEADS_FIRST) is not None:
            fell_back(HEADS_FIRST, "gradient" if trained else "stride")
        return None
    turned = [x.transpose(1, 2) for x in given]
    why = _refused(turned, held)
    if why:
        fell_back(ATTENDED, why)
        return None
    if trained:
        return Attended.apply(*turned).transpose(1, 2)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return _computed(ATTENDED, turned)[0].transpose(1, 2)


def _refused(turned: Sequence[torch.Tensor], held: Sequence[str]) -> str:
    if transformed():
        return "transform"
    sizes = SPECS[ATTENDED].sizes(*turned)
    for name in held:
        kernel = in_use(name)
        why = "" if kernel is None else refusal(kernel.record, sizes, turned, lies=side_by_side)
        if why:
            return why
    if torch.compiler.is_compiling():
        return ""
    return "" if all(x.data_ptr() % 16 == 0 for x in turned) else "alignment"


def name_attention(report: Report) -> bool:
    """Tells of the kernels and makes their operators; whether there is one."""
    found = [name for name in (HEADS_FIRST, ATTENDED, GRADIENT) if name in STATE.kernels]
    for name in (*found, ATTENDED, GRADIENT) if found else ():
        operator_of(name)
    report.applied += [(f"torch.nn.functional.{ATTENTION}", n, STATE.kernels[n].certificate) for n in found]
    return bool(found)
