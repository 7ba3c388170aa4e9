"""Functions of torch.nn.functional that a model calls: replaced while the kernels are applied, and given back."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nightshift.kernels.apply.job.attention import ATTENTION, attention_of, name_attention
from nightshift.kernels.apply.job.folds import FoldCasts
from nightshift.kernels.apply.job.guards import as_rows, guarded, refusal, widened
from nightshift.kernels.apply.job.norms import FoldNorms
from nightshift.kernels.apply.job.operators import invoke, operator_of
from nightshift.kernels.apply.job.places import plain, problem_of, shaped, transformed
from nightshift.kernels.apply.job.products import linear_of
from nightshift.kernels.apply.job.rotary import TurnHalves, TurnPairs
from nightshift.kernels.apply.job.state import CAST, DTYPES, HALVES, NORM, PAIRS, PRODUCTS, STATE, Report, in_use

SCRIPT = "torch.jit.script"


def swap_functions(report: Report) -> None:
    """Puts the guarded functions in the place of torch's; those of `STATE.functions` are torch's own."""
    if any(kernel.problem in PRODUCTS for kernel in STATE.kernels.values()):
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
    turning, pairing = (any(k.problem in names for k in STATE.kernels.values()) for names in (HALVES, PAIRS))
    if not (kinds or turning or pairing) or STATE.fold is not None:
        return
    from torch._inductor import config

    made, norm = config.joint_custom_pre_pass, kinds.pop(NORM, None)
    if kinds:
        kinds.setdefault(f"{CAST}_backward", kinds.get(CAST, torch.bfloat16))
        made = FoldCasts({CAST: 0, f"{CAST}_backward": 1}, kinds, made)
    if norm is not None:
        made = FoldNorms(norm, made)
    if turning:
        made = TurnHalves(made)
    if pairing:
        made = TurnPairs(made)
    STATE.fold = config.joint_custom_pre_pass = made


def unfold_casts() -> None:
    if STATE.fold is not None:
        from torch._inductor import config

        earlier = STATE.fold
        while isinstance(earlier, FoldCasts | FoldNorms | TurnHalves | TurnPairs):
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
        if dtype is None and dim is not None and dim in (-1, input.dim() - 1):
            rows = _as_rows("softmax", input)
        if rows is not None:
            out = guarded("softmax", (rows,), ())
            if out is not None:
                return shaped(out, *input.shape)
        return original(input, dim, _stacklevel, dtype)

    return softmax
