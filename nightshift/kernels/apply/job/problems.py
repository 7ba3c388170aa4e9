"""The operations that a job's file has a place for: torch's own formula of each, its fake, its sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.apply.job.heads import attended, attention_gradients, like_attended
from nightshift.kernels.apply.job.state import ATTENDED, MANY, NORM, STATE


@dataclass(frozen=True)
class Spec:
    """How a problem stands as an operator. `sizes`: the problem's parameters of its arguments.

    mutates: positions of tensors that are changed in place; such an operator returns nothing.
    """

    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]
    sizes: Callable[..., dict[str, int]]
    mutates: tuple[int, ...] = ()


def original_of(name: str) -> Callable[..., Any]:
    """torch.nn.functional's own, also while it is swapped."""
    found: Callable[..., Any] = STATE.functions.get(f"torch.nn.functional.{name}") or getattr(F, name)
    return found


def rms_backward_reference(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    wide, gw = x.float(), g.float() * w.float()
    r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normal = wide * r
    dx = r * (gw - normal * (gw * normal).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g.float() * normal).sum(0).to(w.dtype)


def norm_cast_reference(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMSNorm's gradient plus the residual's, the same in the dtype of `g`, and the weight's gradient."""
    wide = g.to(torch.promote_types(x.dtype, torch.float32))
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normal, gw = x * r, wide * w
    total = residual + r * (gw - normal * (gw * normal).mean(-1, keepdim=True))
    return total, total.to(g.dtype), (wide * normal).sum(0)


def loss_backward_reference(g: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(x.float(), -1)
    hit = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    return ((p - hit.to(p.dtype)) * g.float()[:, None]).to(x.dtype)


def _cast_loss_reference(x: torch.Tensor, target: torch.Tensor) -> Any:
    return original_of("cross_entropy")(x.to(torch.promote_types(x.dtype, torch.float32)), target, reduction="none")


def _exact_gelu(x: torch.Tensor) -> Any:
    return original_of("gelu")(x)


def _silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def _gelu_product(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return original_of("gelu")(gate, approximate="tanh") * up


def _biased(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return original_of("linear")(x, weight, bias)


def _wide_gradient(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """gᵀ · x of 16-bit matrices in float32."""
    if g.element_size() > 2:
        return g.t() @ x
    if g.is_cuda:
        return torch.mm(g.t(), x, out_dtype=torch.float32)
    return g.float().t() @ x.float()


def _mlp_reference(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Any:
    linear = original_of("linear")
    return linear(_silu_product(linear(x, gate), linear(x, up)), down)


BENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear_gelu": _exact_gelu,
    "linear_gelu_tanh": lambda x: original_of("gelu")(x, approximate="tanh"),
    "linear_relu": F.relu,
}
"""Linear layers with a pointwise function behind them."""


def swiglu_backward_reference(g: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Any:
    return torch.ops.aten.silu_backward(g * up, gate), g * F.silu(gate)


def half_turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of halves (Su et al., arXiv 2104.09864), as in Llama."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def half_returned(g: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Its gradient: what came to an element from its partner goes back."""
    low, high = (g * sin).chunk(2, dim=-1)
    return g * cos + torch.cat((high, -low), dim=-1)


def _pairs_turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def _of_halves(turn: Callable[..., torch.Tensor], by_position: bool) -> Spec:
    """q and k by the same tables; (b, h, s, d), or (b, s, h, d) by position."""

    def reference(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        tables = (cos[:, None], sin[:, None]) if by_position else (cos, sin)
        return turn(q, *tables), turn(k, *tables)

    def sizes(q: torch.Tensor, k: torch.Tensor, *tables: torch.Tensor) -> dict[str, int]:
        names = "bshd" if by_position else "bhsd"
        return {**dict(zip(names, q.shape, strict=True)), "g": k.shape[names.index("h")]}

    return Spec(
        "(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
        reference,
        lambda q, k, cos, sin: (q.new_empty(q.shape), k.new_empty(k.shape)),
        sizes,
    )


def _of_pairs(sign: int, by_position: bool) -> Spec:
    """(b, h, s, d), or (b, s, h, d) by position."""

    def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        tables = (cos[:, None], sin[:, None]) if by_position else (cos, sin)
        return _pairs_turned(x, tables[0], sign * tables[1])

    return Spec(
        "(Tensor x, Tensor cos, Tensor sin) -> Tensor",
        reference,
        _new,
        lambda x, cos, sin: dict(zip("bshd" if by_position else "bhsd", x.shape, strict=True)),
    )


def _table_gradient(gradient: torch.Tensor, index: torch.Tensor, rows: int) -> Any:
    return torch.ops.aten.embedding_dense_backward(gradient, index, rows, -1, False)


def adamw_reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> None:
    """One step of AdamW in place (Loshchilov and Hutter, arXiv 1711.05101), in torch's order of operations."""
    shrunk = parameter * (1 - rate * decay)
    mean = first + (gradient - first) * (1 - beta1)
    square = second * beta2 + gradient * gradient * (1 - beta2)
    root = square.sqrt() / (1 - beta2**step) ** 0.5 + eps
    parameter.copy_(shrunk - (rate / (1 - beta1**step)) * (mean / root))
    first.copy_(mean)
    second.copy_(square)


def adamw_cast_reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    narrow: torch.Tensor,
    *numbers: Any,
) -> None:
    """The same, and the new parameter in `narrow`."""
    adamw_reference(parameter, gradient, first, second, *numbers)
    narrow.copy_(parameter)


def adamw_many_reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    narrow: torch.Tensor,
    table: torch.Tensor,
    *numbers: Any,
) -> None:
    """The same for each chunk of a table: where it begins in the five tensors (−1: no copy), and its elements."""
    for *begins, count in table.tolist():
        every = zip((parameter, gradient, first, second, narrow), begins, strict=True)
        p, g, mean, square, copy = (x.view(-1)[at : at + count] for x, at in every)
        if begins[4] >= 0:
            adamw_cast_reference(p, g, mean, square, copy, *numbers)
        else:
            adamw_reference(p, g, mean, square, *numbers)


def _new(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _matrix(x: torch.Tensor, *rest: Any) -> dict[str, int]:
    return {"m": x.shape[0], "n": x.shape[1]}


def _logits(x: torch.Tensor, *rest: Any) -> dict[str, int]:
    return {"m": x.shape[0], "v": x.shape[1]}


SPECS: dict[str, Spec] = {
    "rmsnorm": Spec(
        "(Tensor x, Tensor weight, float eps) -> Tensor",
        lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, eps),
        _new,
        _matrix,
    ),
    "rmsnorm_backward": Spec(
        "(Tensor g, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
        rms_backward_reference,
        lambda g, x, w, eps: (x.new_empty(x.shape), w.new_empty(w.shape)),
        lambda g, *rest: _matrix(*rest),
    ),
    NORM: Spec(
        "(Tensor g, Tensor x, Tensor weight, Tensor residual, float eps) -> (Tensor, Tensor, Tensor)",
        norm_cast_reference,
        lambda g, x, w, residual, eps: (x.new_empty(x.shape), g.new_empty(x.shape), w.new_empty(w.shape)),
        lambda g, *rest: _matrix(*rest),
    ),
    "layernorm": Spec(
        "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
        lambda x, w, b, eps: F.layer_norm(x, (x.shape[-1],), w, b, eps),
        _new,
        _matrix,
    ),
    "softmax": Spec("(Tensor x) -> Tensor", lambda x: torch.softmax(x, -1), _new, _matrix),
    "cross_entropy": Spec(
        "(Tensor logits, Tensor target) -> Tensor",
        lambda x, target: original_of("cross_entropy")(x, target, reduction="none"),
        lambda x, target: x.new_empty(x.shape[:1]),
        _logits,
    ),
    "cross_entropy_backward": Spec(
        "(Tensor g, Tensor logits, Tensor target) -> Tensor",
        loss_backward_reference,
        lambda g, x, target: x.new_empty(x.shape),
        lambda g, *rest: _logits(*rest),
    ),
    "cross_entropy_cast": Spec(
        "(Tensor logits, Tensor target) -> Tensor",
        _cast_loss_reference,
        lambda x, target: x.new_empty(x.shape[:1], dtype=torch.promote_types(x.dtype, torch.float32)),
        _logits,
    ),
    "cross_entropy_cast_backward": Spec(
        "(Tensor g, Tensor logits, Tensor target) -> Tensor",
        loss_backward_reference,
        lambda g, x, target: x.new_empty(x.shape),
        lambda g, *rest: _logits(*rest),
    ),
    "gelu": Spec("(Tensor x) -> Tensor", _exact_gelu, _new, _matrix),
    "gelu_backward": Spec(
        "(Tensor g, Tensor x) -> Tensor",
        torch.ops.aten.gelu_backward,
        lambda g, x: x.new_empty(x.shape),
        lambda g, x: _matrix(x),
    ),
    "swiglu": Spec("(Tensor gate, Tensor up) -> Tensor", _silu_product, _new, _matrix),
    "swiglu_backward": Spec(
        "(Tensor g, Tensor gate, Tensor up) -> (Tensor, Tensor)",
        swiglu_backward_reference,
        lambda g, gate, up: (gate.new_empty(gate.shape), up.new_empty(up.shape)),
        _matrix,
    ),
    "geglu": Spec("(Tensor gate, Tensor up) -> Tensor", _gelu_product, _new, _matrix),
    "fused_mlp": Spec(
        "(Tensor x, Tensor gate, Tensor up, Tensor down) -> Tensor",
        _mlp_reference,
        _new,
        lambda x, gate, *rest: {"m": x.shape[0], "d": x.shape[1], "f": gate.shape[0]},
    ),
    **{
        name: Spec(
            "(Tensor x, Tensor weight, Tensor bias) -> Tensor",
            lambda x, weight, bias, act=act: act(original_of("linear")(x, weight, bias)),
            lambda x, weight, bias: x.new_empty((x.shape[0], weight.shape[0])),
            lambda x, weight, bias: {"m": x.shape[0], "k": x.shape[1], "n": weight.shape[0]},
        )
        for name, act in BENT.items()
    },
    "matmul": Spec(
        "(Tensor a, Tensor b) -> Tensor",
        lambda a, b: a @ b,
        lambda a, b: a.new_empty((a.shape[0], b.shape[1])),
        lambda a, b: {"m": a.shape[0], "k": a.shape[1], "n": b.shape[1]},
    ),
    "linear": Spec(
        "(Tensor x, Tensor weight) -> Tensor",
        lambda x, weight: x @ weight.t(),
        lambda x, weight: x.new_empty((x.shape[0], weight.shape[0])),
        lambda x, weight: {"m": x.shape[0], "k": x.shape[1], "n": weight.shape[0]},
    ),
    "linear_bias": Spec(
        "(Tensor x, Tensor weight, Tensor bias) -> Tensor",
        _biased,
        lambda x, weight, bias: x.new_empty((x.shape[0], weight.shape[0])),
        lambda x, weight, bias: {"m": x.shape[0], "k": x.shape[1], "n": weight.shape[0]},
    ),
    "linear_weight_gradient": Spec(
        "(Tensor g, Tensor x) -> Tensor",
        lambda g, x: g.t() @ x,
        lambda g, x: x.new_empty((g.shape[1], x.shape[1])),
        lambda g, x: {"m": g.shape[0], "n": g.shape[1], "k": x.shape[1]},
    ),
    "linear_weight_gradient_wide": Spec(
        "(Tensor g, Tensor x) -> Tensor",
        _wide_gradient,
        lambda g, x: g.new_empty((g.shape[1], x.shape[1]), dtype=torch.float32),
        lambda g, x: {"m": g.shape[0], "n": g.shape[1], "k": x.shape[1]},
    ),
    **{
        f"{name}{back}": _of_halves(turn, by_position)
        for name, by_position in (("rotary_half", False), ("rotary_half_by_position", True))
        for back, turn in (("", half_turned), ("_backward", half_returned))
    },
    **{
        f"rotary_interleaved{how}{back}": _of_pairs(sign, by_position)
        for how, by_position in (("", False), ("_by_position", True))
        for back, sign in (("", 1), ("_backward", -1))
    },
    "embedding_gradient": Spec(
        "(Tensor gradient, Tensor index, int rows) -> Tensor",
        _table_gradient,
        lambda gradient, index, rows: gradient.new_empty((rows, gradient.shape[1])),
        lambda gradient, index, rows: {"t": gradient.shape[0], "d": gradient.shape[1], "v": rows},
    ),
    "flash_attention": Spec(
        "(Tensor q, Tensor k, Tensor v) -> Tensor",
        lambda q, k, v: original_of("scaled_dot_product_attention")(q, k, v, is_causal=True),
        lambda q, k, v: q.new_empty(q.shape),
        lambda q, k, v: dict(zip("bhsd", q.shape, strict=True)),
    ),
    ATTENDED: Spec(
        "(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)",
        attended,
        like_attended,
        lambda q, *rest: dict(zip("bshd", q.shape, strict=True)),
    ),
    f"{ATTENDED}_backward": Spec(
        "(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logs) -> (Tensor, Tensor, Tensor)",
        attention_gradients,
        lambda g, q, k, v, out, logs: tuple(x.new_empty(x.shape) for x in (q, k, v)),
        lambda g, *rest: dict(zip("bshd", g.shape, strict=True)),
    ),
    "adamw": Spec(
        "(Tensor(a!) parameter, Tensor gradient, Tensor(b!) first, Tensor(c!) second, float rate, float beta1, "
        "float beta2, float eps, float decay, int step) -> ()",
        adamw_reference,
        lambda *inputs: None,
        lambda parameter, *rest: {"n": parameter.numel()},
        (0, 2, 3),
    ),
    "adamw_cast": Spec(
        "(Tensor(a!) parameter, Tensor gradient, Tensor(b!) first, Tensor(c!) second, Tensor(d!) narrow, "
        "float rate, float beta1, float beta2, float eps, float decay, int step) -> ()",
        adamw_cast_reference,
        lambda *inputs: None,
        lambda parameter, *rest: {"n": parameter.numel()},
        (0, 2, 3, 4),
    ),
    MANY: Spec(
        "(Tensor(a!) parameter, Tensor gradient, Tensor(b!) first, Tensor(c!) second, Tensor(d!) narrow, "
        "Tensor table, float rate, float beta1, float beta2, float eps, float decay, int step) -> ()",
        adamw_many_reference,
        lambda *inputs: None,
        lambda parameter, *rest: {"n": parameter.numel()},
        (0, 2, 3, 4),
    ),
}
UNTRAINED = ("flash_attention", "fused_mlp", *BENT)
"""Whose places are only where nothing is differentiated."""
