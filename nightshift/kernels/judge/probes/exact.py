"""Exact or not at all: whether a question has one right answer, found out by the judge for each question.

A tolerance passes one element that is off by one unit in the last place. Where an operation's inputs can be chosen
so that nothing is rounded (`kernels.problem.RULES`), no tolerance is needed: any honest kernel, whatever its order
of summation, gives the same bits. That a rule was meant to be exact is no evidence. An answer is admitted as exact
only where three references give the same bits: eager, the float64 oracle, whose value must lie on the output's
grid (a near miss that happens to round alike would refuse honest kernels), and the oracle in float32 with every
sum taken in another order. Otherwise the answer is judged by its error, as all others are, and the verdict says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from nightshift.kernels.judge.probes.correctness import same_bits
from nightshift.kernels.judge.probes.errors import ulp
from nightshift.kernels.problem import NARROWER, Inputs, Outputs, Problem, Rule, as_outputs

# Farthest from the output's grid that the oracle's value may lie: what exp(-128) or an epsilon leaves is far below,
# and a value that lies nowhere in particular is nearer in one of 500 elements only.
GRID_ULP = 2.0**-10
# A mantissa bound is that of a sum of so many terms at least: what an emulation of float32 by three TF32 products
# leaves out (2^-22 of each) stays below it.
LEAST_TERMS = 64

_aten = torch.ops.aten


def _product(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A matrix product whose sum is taken from its last term, in two uneven parts."""

    def reordered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        cut = a.shape[-1] // 3
        a, b = a.flip(-1), b.flip(-2)
        return multiply(a[..., cut:], b[..., cut:, :]) + multiply(a[..., :cut], b[..., :cut, :])

    return reordered


def _addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **factors: Any) -> torch.Tensor:
    if factors:
        return torch.addmm(bias, a, b, **factors)
    return _product(torch.mm)(a, b) + bias


def _reduction(reduce: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reordered(x: torch.Tensor, dims: Any = None, *rest: Any, **named: Any) -> torch.Tensor:
        every = list(range(x.dim())) if not dims else [dims] if isinstance(dims, int) else list(dims)
        return reduce(x.flip(every), every, *rest, **named) if x.dim() else reduce(x, **named)

    return reordered


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: Any, *rest: Any) -> torch.Tensor:
    """The odd weights' part and the even weights' part, added."""
    odd = torch.arange(weight.numel(), device=weight.device).reshape(weight.shape) % 2 == 1
    convolved = _aten.convolution.default
    first, second = (torch.where(odd == one, weight, 0.0) for one in (True, False))
    total: torch.Tensor = convolved(x, first, None, *rest) + convolved(x, second, None, *rest)
    return total if bias is None else total + bias.reshape(-1, *[1] * (total.dim() - 2))


def _index_add(x: torch.Tensor, axis: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return x.index_add(axis, index.flip(0), source.flip(axis))


ORDERS: Mapping[Any, Callable[..., Any]] = {
    _aten.mm.default: _product(torch.mm),
    _aten.bmm.default: _product(torch.bmm),
    _aten.addmm.default: _addmm,
    _aten.sum.default: _reduction(torch.sum),
    _aten.sum.dim_IntList: _reduction(torch.sum),
    _aten.mean.default: _reduction(torch.mean),
    _aten.mean.dim: _reduction(torch.mean),
    _aten.convolution.default: _convolution,
    _aten.index_add.default: _index_add,
}
"""torch's operations that sum, and each with another order of summation."""
_WRITTEN_OUT = frozenset(
    (
        _aten._softmax.default,
        _aten._log_softmax.default,
        _aten.logsumexp.default,
        _aten.native_layer_norm.default,
        _aten.native_group_norm.default,
        _aten._fused_rms_norm.default,
        _aten._fused_rms_norm_backward.default,
        _aten.native_layer_norm_backward.default,
        _aten._softmax_backward_data.default,
        _aten.nll_loss_forward.default,
    )
)
"""Operations that hold sums, and that torch can write out as some of those above."""


class WrittenOut(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fused operations are written out as plain ones while this is in force, and `orders` replace operations."""

    def __init__(self, orders: Mapping[Any, Callable[..., Any]] = MappingProxyType({})) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._orders = orders

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in self._orders:
            return self._orders[func](*args, **named)
        if func in _WRITTEN_OUT and func in decomposition_table:
            with self:
                return decomposition_table[func](*args, **named)
        return func(*args, **named)


def reordered(problem: Problem, inputs: Inputs, other: Callable[..., Any] | None) -> Outputs:
    """The reference in float32 (or wider), its sums in another order; `other`: its own way to do that."""
    wide = tuple(
        x.to(torch.promote_types(x.dtype, torch.float32))
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in inputs
    )
    if other is not None:
        return as_outputs(other(*wide))
    with sdpa_kernel(SDPBackend.MATH), WrittenOut(ORDERS):
        return as_outputs((problem.oracle or problem.reference)(*wide))


def doubt(problem: Problem, rule: Rule, inputs: Inputs, eager: Outputs, truth: Outputs) -> str:
    """Why these inputs have no single right answer; empty where they have: eager's."""
    for i, (e, t, r) in enumerate(zip(eager, truth, reordered(problem, inputs, rule.reordered), strict=True)):
        if rule.outputs and i not in rule.outputs:
            continue
        if e.is_floating_point() and not bool(torch.isfinite(e).all()):
            return f"output {i}: eager's is not finite"
        rounded = (t.round() if t.is_floating_point() and not e.is_floating_point() else t).to(e.dtype)
        unit = ulp(rounded.double(), e.dtype) if e.is_floating_point() else 1.0
        if bool(((t.double() - rounded.double()).abs() > GRID_ULP * unit).any()):
            return f"output {i}: the exact value is no {str(e.dtype).removeprefix('torch.')}"
        for name, made in (("in float64", rounded), ("with another order of summation", r.to(e.dtype))):
            if (found := same_bits(made, e, signed_zero=False)).reason is not None:
                return f"output {i}: the reference {name} differs from eager: {found.detail}"
    return ""


def mantissa_bound(terms: int, exact: bool) -> float:
    """The largest relative error of a sum of so many positive products in float32, whatever its order: k · 2^-24
    for k terms (Higham 2002, lemma 3.1). A candidate that declares itself not exact gets that of the longest sums,
    which TF32 does not meet either."""
    counted = max(terms + 2, LEAST_TERMS if exact else NARROWER)
    return counted * 2.0**-24 / (1.0 - counted * 2.0**-24)
