"""RMSNorm in training by torch's own formula, with a certified gradient; and the pass that gives it the residual's.

The forward pass stays open to the compiler, which fuses it with its neighbours. The way back costs three kernels:
the gradient with the residual's added, the last sum over rows of the weight's gradient, and the cast for the next
matrix product. Where the norm's gradient was cast from 16 bits and is added to another one, `rmsnorm_cast_backward`
does all that. Only a compiled graph shows it; what does not fit is written out there as torch's formula again, for
the compiler to fuse as ever. In eager code the gradient is `rmsnorm_backward`'s, where that is certified.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nightshift.kernels.apply.job.folds import VIEWS, casts_after, narrow_source, operator_name, viewed
from nightshift.kernels.apply.job.guards import refusal, widened
from nightshift.kernels.apply.job.operators import invoke, operator_of
from nightshift.kernels.apply.job.places import plain, transformed, unsavable
from nightshift.kernels.apply.job.state import NORM, OPERATORS, STATE, fell_back, in_use
from nightshift.kernels.ops.rmsnorm.problem import rmsnorm_backward_reference

MARK = "rmsnorm_gradient"
"""The operator that a traced backward pass calls, for the pass to find: torch's formula, whoever runs it."""


def marked() -> Any:
    """`nightshift::rmsnorm_gradient`: (g, x, weight, eps, open) → gradients of x and weight. open: the compiler may
    launch the kernel that the pass puts here; it stands in the graph, for compilers' caches."""
    if MARK not in OPERATORS:
        made = torch.library.custom_op(
            f"nightshift::{MARK}",
            lambda g, x, w, eps, open: rmsnorm_backward_reference(g, x, w, eps),
            mutates_args=(),
            schema="(Tensor g, Tensor x, Tensor weight, float eps, bool open) -> (Tensor, Tensor)",
        )
        made.register_fake(lambda g, x, w, eps, open: (x.new_empty(x.shape), w.new_empty(w.shape)))
        OPERATORS[MARK] = made
    return OPERATORS[MARK]


class Normed(torch.autograd.Function):
    """RMSNorm of rows, (m, n). `original`: the module's own forward pass; None: the formula, where a tracer looks.
    cast: the gradient is marked for the pass; open: see `marked`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        cast: bool,
        open: bool,
        original: Callable[..., Any] | None,
    ) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.cast, ctx.open = eps, cast, open
        if original is not None:
            return original(x)
        return (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is to be differentiated again
            dx, dw = rmsnorm_backward_reference(g, x, weight, ctx.eps)
        elif ctx.cast:
            dx, dw = marked()(g.contiguous(), x, weight, ctx.eps, ctx.open)
        elif g.dtype == x.dtype and in_use("rmsnorm_backward") is not None:
            dx, dw = invoke("rmsnorm_backward", g.contiguous(), x, weight, ctx.eps)
        else:
            dx, dw = rmsnorm_backward_reference(g, x, weight, ctx.eps)
        return dx, dw, None, None, None, None


def normed(original: Callable[..., Any], rows: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
    """The norm by torch with a certified gradient; None where there is none, or nothing is differentiated."""
    if not torch.is_grad_enabled() or not (rows.requires_grad or weight.requires_grad) or transformed():
        return None
    compiling = torch.compiler.is_compiling()
    if widened(rows) or not plain(rows, weight) or unsavable(rows, weight):
        return None
    opened = STATE.open and not STATE.watching
    for problem in (NORM, "rmsnorm_backward") if compiling else ("rmsnorm_backward",):
        kernel = in_use(problem)
        if kernel is None:
            continue
        cast = problem == NORM
        sizes = {"m": rows.shape[0], "n": rows.shape[1]}
        why = refusal(kernel.record, sizes, (rows, weight), torch.float32 if cast else None)
        if not why:
            last = None if compiling else original
            return Normed.apply(rows, weight, eps, cast, opened, last)  # type: ignore[no-untyped-call]
        fell_back(problem, why)
    return None


class FoldNorms:
    """A pass for torch._inductor.config.joint_custom_pre_pass: marked gradients become the kernel's, or torch's
    formula. kind: the 16-bit dtype that the kernel was certified for."""

    def __init__(self, kind: torch.dtype, earlier: Any = None) -> None:
        self.kind, self.earlier = kind, earlier

    def uuid(self) -> Any:
        """For the compiler's cache."""
        inner = getattr(self.earlier, "uuid", lambda: None)() if self.earlier is not None else ""
        kernel = in_use(NORM)
        named = (str(self.kind), "" if kernel is None else kernel.certificate)
        return None if inner is None else ("nightshift fold norms 1", named, inner)

    def __call__(self, graph: Any) -> None:
        if self.earlier is not None:
            self.earlier(graph)
        order = {node: number for number, node in enumerate(graph.nodes)}
        for node in list(graph.nodes):
            if operator_name(node) != MARK or self._fold(graph, node, order):
                continue
            parts = _inlined(graph, node, rmsnorm_backward_reference, node.args[:4])
            for part in list(node.users):
                part.replace_all_uses_with(parts[part.args[1]])
        graph.eliminate_dead_code()

    def _fold(self, graph: Any, node: Any, order: dict[Any, int]) -> bool:
        """norm gradient of a cast, plus the residual's gradient, cast → one kernel. False where it is not that."""
        g, x, weight, eps, opened = node.args
        kernel = in_use(NORM)
        source = narrow_source(g, self.kind)
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        total, other = _sum_with(parts.get(0))
        if kernel is None or source is None or total is None or len(parts) != len(node.users):
            return False
        summed = parts.get(1)
        if summed is not None and any(order.get(user, -1) < order[total] for user in summed.users):
            return False  # the kernel stands where the sum is: what it makes is wanted before
        shape = list(x.meta["val"].shape)
        with graph.inserting_before(total):
            given = (viewed(graph, source, shape), x, weight, viewed(graph, other, shape), eps)
            entry = kernel.traceable if opened and kernel.traceable is not None else operator_of(NORM)
            wide, narrow, gradient = _inlined(graph, total, entry, given)
            whole = viewed(graph, wide, list(total.meta["val"].shape))
        for cast, _ in list(casts_after(total, self.kind)):
            with graph.inserting_before(cast):
                cast.replace_all_uses_with(viewed(graph, narrow, list(cast.meta["val"].shape)))
        total.replace_all_uses_with(whole)
        if summed is not None:
            summed.replace_all_uses_with(gradient)
        graph.eliminate_dead_code()
        return True


def _sum_with(part: Any) -> tuple[Any, Any]:
    """(the sum that an output alone goes into, through views, what it is added to); None, None where none."""
    while part is not None:
        if len(part.users) != 1:
            return None, None
        (user,) = part.users
        if operator_name(user) == "add":
            break
        part = user if operator_name(user) in VIEWS else None
    if part is None or user.kwargs or len(user.args) != 2:
        return None, None
    others = [item for item in user.args if item is not part and isinstance(item, torch.fx.Node)]
    if len(others) != 1:
        return None, None
    mine, value = user.meta["val"], others[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or value.shape != mine.shape or not value.is_contiguous():
        return None, None
    return (user, others[0]) if value.dtype == mine.dtype == torch.float32 else (None, None)


def _inlined(graph: Any, before: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """What a function of tensors and numbers computes, operator by operator, before a node; the nodes of its
    outputs. Kernels are launched by the compiler then."""
    from torch._guards import detect_fake_mode
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    places = [n for n, item in enumerate(arguments) if isinstance(item, torch.fx.Node)]

    def of(*tensors: torch.Tensor) -> Any:
        every = dict(zip(places, tensors, strict=True))
        return function(*(every.get(n, item) for n, item in enumerate(arguments)))

    values = [arguments[n].meta["val"] for n in places]
    with detect_fake_mode(values) or contextlib.nullcontext():
        functional = torch.func.functionalize(of, remove="mutations")
        inner = make_fx(functional, select_decomp_table())(*values).graph
    known = dict(zip(inner.find_nodes(op="placeholder"), [arguments[n] for n in places], strict=True))
    with graph.inserting_before(before):
        for step in inner.nodes:
            if step.op == "call_function":
                known[step] = graph.node_copy(step, known.__getitem__)
    (output,) = inner.find_nodes(op="output")
    return [known[item] for item in output.args[0]]
