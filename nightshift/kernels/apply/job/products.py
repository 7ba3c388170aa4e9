"""Products of matrices: a linear layer's three in eager code, and whatever a compiled region multiplies.

In a compiled region a pass over what the compiler is left with swaps each `aten.mm`, and each `aten.addmm` of a
bias, whose sizes, dtype and strides are a certified kernel's. That is after the compiler's own passes: what these
draw a product into (a sum behind it) stays theirs, and the rest would be calls of a library either way, so that an
operator costs no fusion.

In eager code `torch.nn.functional.linear` asks the guards, and its gradients do. Under autocast the operands are
cast as autocast casts them. Each product that no kernel computes is torch's, and so is a bias's gradient. A bias is
added before the result is rounded, as torch's own product does it: that is a kernel of its own (`linear_bias`),
since a certified product plus a bias would be rounded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.forwards import autocast, overseen, plain, shaped, transformed
from nightshift.kernels.apply.job.guards import refusal
from nightshift.kernels.apply.job.names import PRODUCTS
from nightshift.kernels.apply.job.operators import operator_of, run_once
from nightshift.kernels.apply.job.passes.folds import Pass
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import STATE, Kernel, Report, fell_back, in_use, slot

_CASTABLE = (torch.float32, torch.float16, torch.bfloat16)


def kernel_for(problem: str, *tensors: torch.Tensor) -> tuple[Kernel | None, str]:
    """(the kernel that may compute a product, ""); (None, the guard that refuses): "" where there is no kernel."""
    sizes, kind = SPECS[problem].sizes(*tensors), str(tensors[0].dtype).removeprefix("torch.")
    kernel = in_use(slot(problem, sizes, kind))
    why = "" if kernel is None else refusal(kernel.record, sizes, tensors)
    return (None if why else kernel), why


def times(problem: str, *tensors: torch.Tensor) -> Any:
    """One product of plain matrices: the kernel's where one may, else torch's."""
    seen = torch.compiler.is_compiling() or overseen()
    if not seen and all(type(x) in (torch.Tensor, nn.Parameter) for x in tensors):
        kernel, why = kernel_for(problem, *tensors)
        if kernel is not None:
            return run_once(problem, tensors)
        if why:
            fell_back(problem, why)
    return SPECS[problem].reference(*tensors)


def _layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    return times("linear", x, weight) if bias is None else times("linear_bias", x, weight, bias)


class Multiplied(torch.autograd.Function):
    """x · weightᵀ (+ bias) of rows, (m, k), and its gradients. Where these are differentiated again they are
    torch's, and so is the bias's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        ctx.save_for_backward(x, weight)
        return _layer(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        db = g.sum(0) if of_bias else None
        if torch.is_grad_enabled():
            return g @ weight if of_x else None, g.t() @ x if of_weight else None, db
        # gradients of sums and means come expanded: their strides are 0
        g = g.contiguous()
        dx = times("matmul", g, weight) if of_x else None
        return dx, times("linear_weight_gradient", g, x) if of_weight else None, db


def linear_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.nn.functional.linear that asks the guards."""

    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        # a set's look-up first: most layers of a job are of other widths, and Python's time is the host's
        if not torch.compiler.is_compiling() and weight.shape in STATE.widths:
            out = _multiplied(input, weight, bias)
            if out is not None:
                return out
        return original(input, weight, bias)

    return linear


def _multiplied(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """The layer's result where a kernel has a part in it; None where it has none, or a guard refuses."""
    given = (x, weight) if bias is None else (x, weight, bias)
    kind = _product_dtype(*given) if _is_layer(*given) else None
    rows, (n, k) = x.numel() // max(1, x.shape[-1]), weight.shape
    if kind is None or not rows:
        return None
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    name, forward = str(kind).removeprefix("torch."), "linear" if bias is None else "linear_bias"
    slots = [slot(forward, {"n": n, "k": k}, name)]
    if trained:
        slots.append(slot("matmul", {"n": k, "k": n}, name))
        slots.append(slot("linear_weight_gradient", {"n": n, "k": k}, name))
    if not any(in_use(each) for each in slots):
        return None
    if not all(t.is_contiguous() for t in given):
        fell_back(forward, "stride")
        return None
    lines, weight, bias = x.to(kind).reshape(rows, k), weight.to(kind), None if bias is None else bias.to(kind)
    out = Multiplied.apply(lines, weight, bias) if trained else _layer(lines, weight, bias)  # type: ignore[no-untyped-call]
    return shaped(out, *x.shape[:-1], n)


def _is_layer(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> bool:
    """Whether these are a linear layer's tensors, plain ones, on one device."""
    given = (x, weight, *bias)
    if not all(type(t) in (torch.Tensor, nn.Parameter) for t in given) or not plain(*given) or transformed():
        return False
    fits = x.dim() >= 2 and x.shape[-1] == weight.shape[1]
    return fits and all(b.shape == weight.shape[:1] for b in bias) and all(t.device == x.device for t in given)


def _product_dtype(*given: torch.Tensor) -> torch.dtype | None:
    """What torch would multiply them in; None where it would refuse."""
    x, weight, *_ = given
    if autocast(x):  # it casts these three dtypes alone: float64 stays, and meets 16 bits
        castable = all(t.dtype in _CASTABLE for t in given)
        return torch.get_autocast_dtype(x.device.type) if castable else None
    return weight.dtype if all(t.dtype == weight.dtype for t in given) else None


class MultiplyByKernels(Pass):
    """A pass for torch._inductor.config.post_grad_custom_post_pass."""

    def named(self) -> tuple[Any, ...]:
        used = sorted(k.certificate for k in STATE.kernels.values() if k.problem in PRODUCTS and not k.disabled)
        return "nightshift multiply 2", tuple(used)

    def rewrite(self, graph: Any) -> None:
        mm, addmm = torch.ops.aten.mm, torch.ops.aten.addmm
        # an older torch has no product into another dtype; no node has None for its target
        targets = {"mm": mm.default, "addmm": addmm.default, "mm.dtype": getattr(mm, "dtype", None)}
        for name, target in targets.items():
            for node in graph.find_nodes(op="call_function", target=target):
                values = [n.meta.get("val") for n in node.args if isinstance(n, torch.fx.Node)]
                if not node.kwargs and _are_operands(values, node.args[len(values) :]):
                    self._swap(graph, node, values, _WAYS[name])

    def _swap(self, graph: Any, node: Any, values: list[Any], ways: Sequence[_Way]) -> None:
        for problem, operands in ways:
            given = tuple(values[at].t() if turn else values[at] for at, turn in operands)
            if not all(x.is_contiguous() for x in given) or kernel_for(problem, *given)[0] is None:
                continue
            with graph.inserting_before(node):
                nodes = [_turned(graph, node.args[at]) if turn else node.args[at] for at, turn in operands]
                made = graph.call_function(operator_of(problem)._opoverload, tuple(nodes))
            _put(graph, node, made, given)
            return


_Way = tuple[str, tuple[tuple[int, bool], ...]]
_WAYS: dict[str, tuple[_Way, ...]] = {
    "mm": (
        ("matmul", ((0, False), (1, False))),
        ("linear", ((0, False), (1, True))),
        ("linear_weight_gradient", ((0, True), (1, False))),
    ),
    "addmm": (("linear_bias", ((1, False), (2, True), (0, False))),),
    "mm.dtype": (("linear_weight_gradient_wide", ((0, True), (1, False))),),
}
"""Operator → problems that it may be: which of its operands each input is, and whether transposed."""


def _are_operands(values: list[Any], rest: Sequence[Any]) -> bool:
    """Whether these are two matrices, and before them a bias of one value for each column; behind them, where it
    stands there, float32 as the dtype that 16-bit ones are multiplied into."""
    if len(values) not in (2, 3) or not all(map(_known, values[-2:])) or tuple(rest) not in ((), (torch.float32,)):
        return False
    biased = all(_known(bias, 1) and bias.shape == values[-1].shape[1:] for bias in values[:-2])
    return biased and (not rest or values[0].element_size() <= 2)


def _put(graph: Any, node: Any, made: Any, given: tuple[torch.Tensor, ...]) -> None:
    # the second says to the compiler that operands must lie as they do here
    made.meta = {**node.meta, "eager_input_vals": (given, {})}
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _known(value: Any, rank: int = 2) -> bool:
    """Whether this is a matrix (of rank 1: a row) whose sizes and strides are numbers: of dynamic shapes nothing is
    certified."""
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == rank
        and all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    )


def _turned(graph: Any, node: Any) -> Any:
    """The transposed matrix: what was transposed before, where it was."""
    if (
        node.op == "call_function"
        and node.target is torch.ops.aten.permute.default
        and list(node.args[1]) == [1, 0]
    ):
        return node.args[0]
    made = graph.call_function(torch.ops.aten.permute.default, (node, [1, 0]))
    made.meta["val"] = node.meta["val"].t()
    return made


def multiply_by_kernels(report: Report) -> None:
    """Puts the pass behind torch's own over what they leave, once, and tells of the products' kernels."""
    held = [(name, kernel) for name, kernel in STATE.kernels.items() if kernel.problem in PRODUCTS]
    report.applied += [("products of matrices", name, kernel.certificate) for name, kernel in held]
    for _, kernel in held:
        widths = [kernel.record["sizes"][axis] for axis in ("kn" if kernel.problem == "matmul" else "nk")]
        STATE.widths.add(torch.Size(widths))
    if not held or STATE.multiply is not None:
        return
    from torch._inductor import config, custom_graph_pass

    made = MultiplyByKernels(config.post_grad_custom_post_pass)
    told_more: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", ())  # torch 2.11 has none
    # such a pass is told whether it is inference; ours, in front of it, could not hand that on
    if any(isinstance(one, told_more) for one in made.before()):
        report.skipped.append(("products in compiled regions", "a pass of the job's own stands in their place"))
        return
    STATE.multiply = config.post_grad_custom_post_pass = made


def multiply_by_torch() -> None:
    STATE.widths.clear()
    if STATE.multiply is not None:
        from torch._inductor import config

        STATE.multiply, config.post_grad_custom_post_pass = None, STATE.multiply.earlier


def compile_anew() -> None:
    """Between two steps: has regions compiled anew, if a pass put a kernel into them that is disabled since. Until
    then its operator is torch's product; what a CUDA graph replays is not."""
    if STATE.outdated:
        # the graph calls our operator, which is torch's product now: right, but a call into Python for nothing
        torch._dynamo.reset()
    STATE.outdated = False
