"""Custom operators of the problems: one that a tracer takes as a whole, and one that a compiler sees through."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu

from nightshift.kernels.apply.job.checks import due, shadowed
from nightshift.kernels.apply.job.forwards import overseen
from nightshift.kernels.apply.job.heads import side_by_side
from nightshift.kernels.apply.job.names import ATTENDED, CAST, NORM, PAIRS, PASSED, PRODUCTS
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import DTYPES, OPERATORS, STATE, count_fallback, fell_back, in_use, slot
from nightshift.kernels.ops.attention.problem import attention_reference
from nightshift.kernels.ops.cross_entropy.problem import cross_entropy_backward_reference
from nightshift.kernels.ops.gated.problem import swiglu_backward_reference
from nightshift.kernels.ops.gelu.problem import gelu_backward_reference
from nightshift.kernels.ops.layernorm.problem import layernorm_backward_reference
from nightshift.kernels.ops.rmsnorm.problem import rmsnorm_backward_reference
from nightshift.kernels.ops.softmax.problem import softmax_backward_reference


def operator_of(problem: str) -> Any:
    """`nightshift::PROBLEM`: opaque to tracers, with a fake and a gradient. Made once in a process."""
    if problem not in OPERATORS:
        spec = SPECS[problem]
        operator = torch.library.custom_op(
            f"nightshift::{problem}",
            lambda *inputs: run_once(problem, inputs),
            # custom_op wants names where a Spec has positions; only optimisers' steps write in place
            mutates_args=[("parameter", "", "first", "second", "narrow")[place] for place in spec.mutates],
            schema=spec.schema,
        )
        operator.register_fake(spec.fake)
        if problem in GRADIENTS:
            operator.register_autograd(_backward_of(problem), setup_context=_setup_of(problem))
        OPERATORS[problem] = operator
    return OPERATORS[problem]


def open_operator_of(problem: str) -> Any:
    """`nightshift::PROBLEM_open_…`: a compiler replaces it by its kernels' launches, as of a `triton_op`.

    torch's own decorator would read the schema from annotations and the fake from the launches; ours are given. The
    name ends in a hash of the certificates, the gradient's too: compilers keep what they made of a graph on disk
    under the names in it, and what was made of another kernel must not be found there.
    """
    used = [STATE.kernels.get(name) for name in (problem, f"{problem}_backward")]
    said = " ".join("" if kernel is None or kernel.disabled else kernel.certificate for kernel in used)
    key = f"{problem}_open_{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    if key not in OPERATORS:
        from torch._subclasses.functional_tensor import FunctionalTensorMode

        spec = SPECS[problem]
        operator = torch.library.custom_op(
            f"nightshift::{key}", lambda *inputs: run_once(problem, inputs), mutates_args=(), schema=spec.schema
        )
        operator.register_fake(spec.fake)

        def opened(mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
            kernel = in_use(problem)
            with mode:
                if kernel is None or kernel.traceable is None:
                    return spec.reference(*args)
                return kernel.traceable(*args)

        # as torch's triton_op does it: what runs below this mode is what a compiler traces
        operator.register_torch_dispatch(FunctionalTensorMode, opened)
        if problem in GRADIENTS:
            operator.register_autograd(_backward_of(problem), setup_context=_setup_of(problem))
        OPERATORS[key] = operator
    STATE.opened[problem] = key
    return OPERATORS[key]


def open_all() -> None:
    """Makes all operators that this process may meet; called wherever the kernels change, before any tracing.

    Closed ones of every problem: a graph that an earlier process left in a compiler's cache may name them.
    """
    STATE.opened.clear()
    for problem in SPECS if STATE.kernels else ():
        operator_of(problem)
    for problem, kernel in STATE.kernels.items():
        if kernel.problem in (*PRODUCTS, *PAIRS) or problem.startswith(ATTENDED):
            continue  # a pass puts them in, closed; attention's may be written in Gluon, and set Triton's allocator
        if kernel.traceable is not None and not SPECS[problem].mutates:  # an optimiser's step is in no region
            open_operator_of(problem)


def _setup_of(problem: str) -> Callable[..., None]:
    """Keeps the output only where its gradient is reckoned from it: a job may write to any other in place."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _setup(ctx, inputs, output if problem == "softmax" else None)

    return setup


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(output, *(x for x in inputs if isinstance(x, torch.Tensor)))
    ctx.numbers = [x for x in inputs if not isinstance(x, torch.Tensor)]


def _backward_of(problem: str) -> Callable[..., Any]:
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        output, *tensors = ctx.saved_tensors
        return GRADIENTS[problem](g, output, *tensors, *ctx.numbers)

    return backward


def run_once(problem: str, inputs: Sequence[Any]) -> Any:
    """One call: the kernel's result, torch's where it was demoted, held against torch's now and then."""
    spec, name = SPECS[problem], problem
    if problem in (*PRODUCTS, *PAIRS):
        name = slot(problem, spec.sizes(*inputs), str(inputs[0].dtype).removeprefix("torch."))
    kernel = in_use(name)
    if kernel is None:
        return spec.reference(*inputs)
    if why := _otherwise(problem, kernel.record, inputs):
        if why != _NOT_FOLDED:
            fell_back(problem, why)
        return spec.reference(*inputs)
    kernel.calls += 1
    out = kernel.entry(*inputs)
    if spec.mutates:
        return None  # its place checks it, on copies: see `optimizer`
    if due(kernel):
        try:
            return shadowed(kernel, spec, inputs, out)
        except torch.OutOfMemoryError:  # a check needs float64 copies; the job must not die of one
            count_fallback("shadow: no memory")
    return out


_NOT_FOLDED = "cast"
"""No guard's refusal: the region was traced for it, and computes as it would without us."""


def _otherwise(problem: str, record: Mapping[str, Any], inputs: Sequence[Any]) -> str:
    """How inputs differ from what the guards let through when this was traced; empty where they do not."""
    # a compiler may lay an operand out otherwise than its graph said
    if problem in PASSED and not all(x.is_contiguous() for x in inputs):
        return "stride"
    if problem.startswith(ATTENDED) and not all(side_by_side(record, x) for x in inputs):
        return "stride"
    narrow = inputs[0] if problem == NORM else inputs[-2] if problem.startswith(CAST) else None
    if narrow is not None and narrow.dtype != DTYPES[record["dtype"]]:
        return _NOT_FOLDED  # the pass did not fold the cast before it into it
    return "" if aligned(record, inputs) else "alignment"


def aligned(record: Mapping[str, Any], inputs: Sequence[Any]) -> bool:
    """Whether tensors begin where wide loads may: a certificate that leaves the layout "offset" out asks for it."""
    layouts = record.get("layouts") or ["offset"]
    return "offset" in layouts or all(x.data_ptr() % 16 == 0 for x in inputs if isinstance(x, torch.Tensor))


class Eager(torch.autograd.Function):
    """The same without the dispatcher, which costs more than a small kernel outside compiled regions."""

    @staticmethod
    def forward(ctx: Any, problem: str, *inputs: Any) -> Any:
        out = run_once(problem, inputs)
        ctx.problem = problem
        _setup_of(problem)(ctx, inputs, out)
        return out

    @staticmethod
    def backward(ctx: Any, *g: torch.Tensor) -> Any:
        return (None, *_backward_of(ctx.problem)(ctx, *g))


def invoke(problem: str, *inputs: Any) -> Any:
    """The operator where it has to be seen as one: in a compiled region, by a tracer's stand-ins, by a mode such as
    selective checkpointing, which keeps operators' results; else the short way."""
    plain = all(type(x) in (torch.Tensor, nn.Parameter) for x in inputs if isinstance(x, torch.Tensor))
    if torch.compiler.is_compiling() or not plain or overseen():
        return _chosen(problem)(*inputs)
    if problem not in GRADIENTS:
        return run_once(problem, inputs)
    return Eager.apply(problem, *inputs)  # type: ignore[no-untyped-call]


def _chosen(problem: str) -> Any:
    """The operator for a tracer. Closed stay those into which a pass folds casts, because it has to find them, and
    gradients of what is closed itself: an open operator's name has to stand in the graph that a compiler gets.

    It looks at the gradient's kernel as well, so that a compiled region is compiled anew once that is disabled.
    """
    forward = problem.removesuffix("_backward")
    gradient = STATE.kernels.get(f"{forward}_backward")
    kernels = [STATE.kernels.get(name) for name in dict.fromkeys((forward, problem))]
    if gradient is not None:
        kernels.append(gradient)
    plain = not forward.startswith(CAST) and forward != "embedding_gradient"
    seen = STATE.open and not STATE.watching and plain and problem in STATE.opened
    if seen and all(k is not None and not k.disabled and k.traceable is not None for k in kernels):
        return OPERATORS[STATE.opened[problem]]
    return operator_of(problem)


# Gradients: a certified kernel's where there is one and nothing is to be differentiated again, else torch's formula


def _by_kernel(problem: str) -> bool:
    return in_use(problem) is not None and not torch.is_grad_enabled()


def _rms_gradient(g: torch.Tensor, out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float) -> Any:
    if _by_kernel("rmsnorm_backward"):
        return (*invoke("rmsnorm_backward", g.contiguous(), x, w, eps), None)
    return (*rmsnorm_backward_reference(g, x, w, eps), None)


def _layer_gradient(
    g: torch.Tensor, out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float
) -> tuple[Any, ...]:
    mean = x.float().mean(-1)
    scale = torch.rsqrt((x.float() - mean[:, None]).square().mean(-1) + eps)
    return (*layernorm_backward_reference(g, x, w, mean, scale), None)


def _softmax_gradient(g: torch.Tensor, out: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    return (softmax_backward_reference(g, out),)


def _loss_gradient_of(problem: str) -> Callable[..., tuple[Any, ...]]:
    def gradient(g: torch.Tensor, out: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        if _by_kernel(f"{problem}_backward"):
            return invoke(f"{problem}_backward", g.contiguous(), x, target), None
        return cross_entropy_backward_reference(g, x, target), None

    return gradient


def _gelu_gradient(g: torch.Tensor, out: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    if _by_kernel("gelu_backward"):
        return (invoke("gelu_backward", g.contiguous(), x),)
    return (gelu_backward_reference(g, x),)


def _swiglu_gradient(g: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[Any, ...]:
    if _by_kernel("swiglu_backward"):
        return tuple(invoke("swiglu_backward", g.contiguous(), gate, up))
    return swiglu_backward_reference(g, gate, up)


def _geglu_gradient(g: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[Any, ...]:
    shaped = gelu(gate, approximate="tanh")
    return torch.ops.aten.gelu_backward(g * up, gate, approximate="tanh"), g * shaped


def _attention_gradient(
    g: torch.Tensor, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[Any, ...]:
    """Computed anew by torch: the kernel keeps nothing for a backward pass. Its place avoids that."""
    with torch.enable_grad():
        given = [x.detach().requires_grad_(True) for x in (q, k, v)]
        again = attention_reference(*given)
    return torch.autograd.grad(again, given, g)


GRADIENTS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "rmsnorm": _rms_gradient,
    "layernorm": _layer_gradient,
    "softmax": _softmax_gradient,
    "cross_entropy": _loss_gradient_of("cross_entropy"),
    "cross_entropy_cast": _loss_gradient_of("cross_entropy_cast"),
    "gelu": _gelu_gradient,
    "swiglu": _swiglu_gradient,
    "geglu": _geglu_gradient,
    "flash_attention": _attention_gradient,
}
"""(upstream gradient, output, *tensors, *numbers) → a gradient for each input, None for numbers and indices."""
