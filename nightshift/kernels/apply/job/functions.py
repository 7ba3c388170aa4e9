"""Functions of torch.nn.functional that a model calls: replaced while the kernels are applied, and given back.

Causal attention in training too. The heads of a projection lie side by side, position by position, and so do q, k
and v in one that makes all three: the tensors that a model hands over are views of that, heads first. The kernels
read them where they lie. In training the forward pass keeps each row's logarithm of its sum of exponentials, and
the gradients come of one more operator; in a compiled region both stand in its graph. Where only one of them has a
kernel, torch's own computes the other, of what that one kept.

What is no plain causal attention (a mask, dropout, another scale, fewer heads of keys, another length) is torch's,
and counted. Where a gradient is differentiated again it is the formula's, which takes s² of memory for each head.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.forwards import autocast, overseen, plain, problem_of, shaped, transformed
from nightshift.kernels.apply.job.guards import as_rows, guarded, refusal, widened
from nightshift.kernels.apply.job.heads import plain_attention, side_by_side
from nightshift.kernels.apply.job.modules import FoldNorms
from nightshift.kernels.apply.job.names import ATTENDED, CAST, HALVES, NORM, PAIRS, PRODUCTS
from nightshift.kernels.apply.job.operators import invoke, operator_of, run_once
from nightshift.kernels.apply.job.passes.folds import FoldCasts, Pass
from nightshift.kernels.apply.job.passes.gates import GatesAgain
from nightshift.kernels.apply.job.passes.groups import GroupedHeads
from nightshift.kernels.apply.job.passes.logits import LogitsByRows
from nightshift.kernels.apply.job.passes.masks import CausalMasks
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.products import linear_of
from nightshift.kernels.apply.job.rotary import TurnByKernels
from nightshift.kernels.apply.job.state import DTYPES, STATE, Report, fell_back, in_use

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


# the backends' flags are global state that a tracer cannot follow
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
    if autocast(given[0]) and all(x.dtype in _NARROWED for x in given):  # as it casts for torch's
        given = tuple(x.to(torch.get_autocast_dtype(given[0].device.type)) for x in given)
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    first = in_use(HEADS_FIRST) is not None
    if first and not trained and all(x.is_contiguous() for x in given):
        return guarded(HEADS_FIRST, given, ())
    held = [name for name in ((ATTENDED, GRADIENT) if trained else (ATTENDED,)) if in_use(name) is not None]
    return _attended_by_position(given, held, trained) if held else _no_kernel(first, trained)


def _no_kernel(first: bool, trained: bool) -> None:
    if first:
        fell_back(HEADS_FIRST, "gradient" if trained else "stride")


def _attended_by_position(given: Sequence[torch.Tensor], held: Sequence[str], trained: bool) -> Any:
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


SCRIPT = "torch.jit.script"


def swap_functions(report: Report) -> None:
    """Puts the guarded functions in the place of torch's; those of `STATE.functions` are torch's own."""
    if any(kernel.problem in PRODUCTS for kernel in STATE.kernels.values()):
        # nn.Linear looks the function up in the module at every call, so that one place serves all layers
        swap_function("torch.nn.functional.linear", linear_of)
    for problem, name, wrapper in (
        ("cross_entropy", "cross_entropy", _cross_entropy),
        (CAST, "cross_entropy", _cross_entropy),
        ("gelu", "gelu", _gelu),
        ("softmax", "softmax", _softmax),
    ):
        if problem not in STATE.kernels:
            continue
        operator_of(problem)
        swap_function(f"torch.nn.functional.{name}", wrapper)
        report.applied.append((f"torch.nn.functional.{name}", problem, STATE.kernels[problem].certificate))
    if name_attention(report):
        swap_function(f"torch.nn.functional.{ATTENTION}", attention_of)


def swap_function(name: str, wrapper: Callable[..., Any]) -> None:
    """`name` with its module; once."""
    if name not in STATE.functions:
        original = STATE.functions[name] = getattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2])
        _set(name, wrapper(original))


def give_functions_back() -> int:
    """torch's own functions, where they were; how many a kernel had a part in."""
    count = len(STATE.functions.keys() - {SCRIPT})
    for name, original in STATE.functions.items():
        _set(name, original)
    STATE.functions.clear()
    return count


def _set(name: str, function: Callable[..., Any]) -> Any:
    """Puts a function in its place; what was there."""
    module, _, last = name.rpartition(".")
    before = getattr(sys.modules[module], last)
    setattr(sys.modules[module], last, function)
    return before


def script_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.jit.script, which reads the source of what it is given: it gets to see torch's own."""

    def script(obj: Any, optimize: None = None, _frames_up: int = 0, *given: Any, **named: Any) -> Any:
        with _by_torch(obj):
            return original(obj, optimize, _frames_up + 1, *given, **named)

    return script


@contextlib.contextmanager
def _by_torch(obj: Any) -> Iterator[None]:
    """While modules have their class's forward, and functions are torch's."""
    parts = [part for part in obj.modules() if problem_of(part)] if isinstance(obj, torch.nn.Module) else []
    forwards = [part.__dict__.pop("forward") for part in parts]
    swapped = {name: _set(name, function) for name, function in STATE.functions.items()}
    try:
        yield
    finally:
        for name, function in swapped.items():
            _set(name, function)
        for part, forward in zip(parts, forwards, strict=True):
            part.forward = forward


def _tensors(*given: Any) -> bool:
    """Not a tracer's stand-ins, which only say what is done with them, and no tensors with rules of their own."""
    return all(isinstance(x, torch.Tensor) for x in given) and plain(*given)


def _as_rows(problem: str, x: Any) -> torch.Tensor | None:
    """A tensor as rows, None where there are none."""
    rows = as_rows(problem, x) if _tensors(x) and x.dim() >= 2 and x.numel() else None
    return None if rows is None else rows[0]


def _cross_entropy(original: Callable[..., Any]) -> Callable[..., Any]:
    def cross_entropy(
        input: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        straight = (
            _tensors(input, target)
            and weight is None
            and size_average is None
            and reduce is None
            and label_smoothing == 0.0
        )
        straight = straight and input.dim() == 2 and target.shape == input.shape[:1] and target.dtype == torch.int64
        if straight and ignore_index == -100 and reduction in ("mean", "sum", "none"):
            if widened(input):
                input = input.float()
            # a target of −100 is left out of torch's mean, the kernel gets class 0 instead; as for one that is no
            # class: there torch stops with an assertion, here the loss is NaN, and nothing is read beyond
            kept, known = target != ignore_index, (target >= 0) & (target < input.shape[1])
            filled = torch.where(known, target, 0)
            losses = guarded("cross_entropy", (input, filled), ())
            if losses is None and torch.compiler.is_compiling() and not transformed():
                losses = _cast_loss(input, filled)
            if losses is not None:
                losses = torch.where(kept, torch.where(known, losses, math.nan), 0.0)
                if reduction == "none":
                    return losses
                # as torch: the mean over the targets that count; with none NaN
                return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()
        return original(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing=label_smoothing
        )

    return cross_entropy


def _cast_loss(input: torch.Tensor, target: torch.Tensor) -> Any:
    """The loss of logits that a compiled region casts to float32; `FoldCasts` then takes the cast away."""
    kernel = in_use(CAST)
    if kernel is None or input.dtype != torch.float32:
        return None
    sizes = {"m": input.shape[0], "v": input.shape[1]}
    return None if refusal(kernel.record, sizes, (target,)) else invoke(CAST, input, target)


def fold_casts() -> None:
    """Puts the passes before torch's own over joint graphs, once."""
    kinds = {n: DTYPES[k.record["dtype"]] for n, k in STATE.kernels.items() if n.startswith((CAST, NORM))}
    turning = any(k.problem in (*HALVES, *PAIRS) for k in STATE.kernels.values())
    # a second `apply` would put the pass behind itself
    if STATE.fold is not None:
        return
    from torch._inductor import config, custom_graph_pass

    custom_graph_pass.CustomGraphPass.register(Pass)  # else the compiler keeps nothing on disk
    norm = kinds.pop(NORM, None)
    made: Any = GatesAgain(LogitsByRows(GroupedHeads(CausalMasks(config.joint_custom_pre_pass))))
    if kinds:
        kinds.setdefault(f"{CAST}_backward", kinds.get(CAST, torch.bfloat16))
        made = FoldCasts({CAST: 0, f"{CAST}_backward": 1}, kinds, made)
    if norm is not None:
        made = FoldNorms(norm, made)
    if turning:
        made = TurnByKernels(made)
    STATE.fold = config.joint_custom_pre_pass = made


def unfold_casts() -> None:
    if STATE.fold is not None:
        from torch._inductor import config

        earlier = STATE.fold
        while isinstance(earlier, Pass):
            earlier = earlier.earlier
        STATE.fold, config.joint_custom_pre_pass = None, earlier


def _gelu(original: Callable[..., Any]) -> Callable[..., Any]:
    def gelu(input: torch.Tensor, approximate: str = "none") -> Any:
        rows = _as_rows("gelu", input) if approximate == "none" else None
        if rows is not None:
            out = guarded("gelu", (rows,), ())
            if out is not None:
                return shaped(out, *input.shape)
        return original(input, approximate=approximate)

    return gelu


def _softmax(original: Callable[..., Any]) -> Callable[..., Any]:
    def softmax(input: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        rows = None
        # torch warns and guesses where no dimension is named: its guess is its own
        if dtype is None and dim is not None and dim in (-1, input.dim() - 1):
            rows = _as_rows("softmax", input)
        if rows is not None:
            out = guarded("softmax", (rows,), ())
            if out is not None:
                return shaped(out, *input.shape)
        return original(input, dim, _stacklevel, dtype)

    return softmax
