"""The operations that a job's file has a place for: the problem's own formula of each, its fake, its sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import gelu, relu

from nightshift.kernels.apply.job.heads import attended, attention_gradients, like_attended
from nightshift.kernels.apply.job.names import ATTENDED, MANY, NORM
from nightshift.kernels.ops.adamw.problem import adamw_cast_reference, adamw_reference
from nightshift.kernels.ops.attention.problem import attention_reference
from nightshift.kernels.ops.cross_entropy.problem import (
    cross_entropy_backward_reference,
    cross_entropy_cast_reference,
    cross_entropy_reference,
)
from nightshift.kernels.ops.embedding_gradient.problem import embedding_gradient_reference
from nightshift.kernels.ops.fused_mlp.problem import fused_mlp_reference
from nightshift.kernels.ops.gated.problem import geglu_reference, swiglu_backward_reference, swiglu_reference
from nightshift.kernels.ops.gelu.problem import gelu_backward_reference, gelu_reference
from nightshift.kernels.ops.layernorm.problem import layernorm_reference
from nightshift.kernels.ops.products.linear_problem import (
    linear_bias_reference,
    linear_gelu_reference,
    linear_gelu_tanh_reference,
    linear_relu_reference,
)
from nightshift.kernels.ops.products.problem import (
    linear_reference,
    linear_weight_gradient_reference,
    linear_weight_gradient_wide_reference,
    matmul_reference,
)
from nightshift.kernels.ops.rmsnorm.problem import (
    rmsnorm_backward_reference,
    rmsnorm_cast_backward_reference,
    rmsnorm_reference,
)
from nightshift.kernels.ops.rotary.problem import (
    rotary_half_backward_reference,
    rotary_half_by_position_backward_reference,
    rotary_half_by_position_reference,
    rotary_half_reference,
    rotary_interleaved_backward_reference,
    rotary_interleaved_by_position_backward_reference,
    rotary_interleaved_by_position_reference,
    rotary_interleaved_reference,
)
from nightshift.kernels.ops.softmax.problem import softmax_reference


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


BENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear_gelu": gelu,
    "linear_gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "linear_relu": relu,
}
"""Linear layers with a pointwise function behind them."""


def _of_halves(reference: Callable[..., Any], names: str) -> Spec:
    """q and k by the same tables; (b, h, s, d), or (b, s, h, d) by position."""

    def sizes(q: torch.Tensor, k: torch.Tensor, *tables: torch.Tensor) -> dict[str, int]:
        return {**dict(zip(names, q.shape, strict=True)), "g": k.shape[names.index("h")]}

    return Spec(
        "(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
        reference,
        lambda q, k, cos, sin: (q.new_empty(q.shape), k.new_empty(k.shape)),
        sizes,
    )


def _of_pairs(reference: Callable[..., Any], names: str) -> Spec:
    """(b, h, s, d), or (b, s, h, d) by position."""
    return Spec(
        "(Tensor x, Tensor cos, Tensor sin) -> Tensor",
        reference,
        _new,
        lambda x, cos, sin: dict(zip(names, x.shape, strict=True)),
    )


def _of_layer(reference: Callable[..., Any]) -> Spec:
    """A linear layer with its bias."""
    return Spec(
        "(Tensor x, Tensor weight, Tensor bias) -> Tensor",
        reference,
        lambda x, weight, bias: x.new_empty((x.shape[0], weight.shape[0])),
        lambda x, weight, bias: {"m": x.shape[0], "k": x.shape[1], "n": weight.shape[0]},
    )


def _in_place(formula: Callable[..., tuple[torch.Tensor, ...]], places: tuple[int, ...]) -> Callable[..., None]:
    """What a formula returns, written into the inputs at these positions."""

    def written(*inputs: Any) -> None:
        for place, new in zip(places, formula(*inputs), strict=True):
            inputs[place].copy_(new)

    return written


adamw_step = _in_place(adamw_reference, (0, 2, 3))
adamw_cast_step = _in_place(adamw_cast_reference, (0, 2, 3, 4))


def adamw_many_step(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    narrow: torch.Tensor,
    table: torch.Tensor,
    *numbers: Any,
) -> None:
    """The same for each chunk of a table: where it begins in the five tensors (−1: no copy), and its elements."""
    # not by the problem's formula: that makes new tensors of the whole model
    for *begins, count in table.tolist():
        every = zip((parameter, gradient, first, second, narrow), begins, strict=True)
        p, g, mean, square, copy = (x.view(-1)[at : at + count] for x, at in every)
        if begins[4] >= 0:
            adamw_cast_step(p, g, mean, square, copy, *numbers)
        else:
            adamw_step(p, g, mean, square, *numbers)


def _new(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _matrix(x: torch.Tensor, *rest: Any) -> dict[str, int]:
    return {"m": x.shape[0], "n": x.shape[1]}


def _logits(x: torch.Tensor, *rest: Any) -> dict[str, int]:
    return {"m": x.shape[0], "v": x.shape[1]}


SPECS: dict[str, Spec] = {
    "rmsnorm": Spec(
        "(Tensor x, Tensor weight, float eps) -> Tensor",
        rmsnorm_reference,
        _new,
        _matrix,
    ),
    "rmsnorm_backward": Spec(
        "(Tensor g, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
        rmsnorm_backward_reference,
        lambda g, x, w, eps: (x.new_empty(x.shape), w.new_empty(w.shape)),
        lambda g, *rest: _matrix(*rest),
    ),
    NORM: Spec(
        "(Tensor g, Tensor x, Tensor weight, Tensor residual, float eps) -> (Tensor, Tensor, Tensor)",
        rmsnorm_cast_backward_reference,
        lambda g, x, w, residual, eps: (x.new_empty(x.shape), g.new_empty(x.shape), w.new_empty(w.shape)),
        lambda g, *rest: _matrix(*rest),
    ),
    "layernorm": Spec(
        "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
        layernorm_reference,
        _new,
        _matrix,
    ),
    "softmax": Spec("(Tensor x) -> Tensor", softmax_reference, _new, _matrix),
    "cross_entropy": Spec(
        "(Tensor logits, Tensor target) -> Tensor",
        cross_entropy_reference,
        lambda x, target: x.new_empty(x.shape[:1]),
        _logits,
    ),
    "cross_entropy_backward": Spec(
        "(Tensor g, Tensor logits, Tensor target) -> Tensor",
        cross_entropy_backward_reference,
        lambda g, x, target: x.new_empty(x.shape),
        lambda g, *rest: _logits(*rest),
    ),
    "cross_entropy_cast": Spec(
        "(Tensor logits, Tensor target) -> Tensor",
        cross_entropy_cast_reference,
        lambda x, target: x.new_empty(x.shape[:1], dtype=torch.promote_types(x.dtype, torch.float32)),
        _logits,
    ),
    "cross_entropy_cast_backward": Spec(
        "(Tensor g, Tensor logits, Tensor target) -> Tensor",
        cross_entropy_backward_reference,
        lambda g, x, target: x.new_empty(x.shape),
        lambda g, *rest: _logits(*rest),
    ),
    "gelu": Spec("(Tensor x) -> Tensor", gelu_reference, _new, _matrix),
    "gelu_backward": Spec(
        "(Tensor g, Tensor x) -> Tensor",
        gelu_backward_reference,
        lambda g, x: x.new_empty(x.shape),
        lambda g, x: _matrix(x),
    ),
    "swiglu": Spec("(Tensor gate, Tensor up) -> Tensor", swiglu_reference, _new, _matrix),
    "swiglu_backward": Spec(
        "(Tensor g, Tensor gate, Tensor up) -> (Tensor, Tensor)",
        swiglu_backward_reference,
        lambda g, gate, up: (gate.new_empty(gate.shape), up.new_empty(up.shape)),
        _matrix,
    ),
    "geglu": Spec("(Tensor gate, Tensor up) -> Tensor", geglu_reference, _new, _matrix),
    "fused_mlp": Spec(
        "(Tensor x, Tensor gate, Tensor up, Tensor down) -> Tensor",
        fused_mlp_reference,
        _new,
        lambda x, gate, *rest: {"m": x.shape[0], "d": x.shape[1], "f": gate.shape[0]},
    ),
    "linear_gelu": _of_layer(linear_gelu_reference),
    "linear_gelu_tanh": _of_layer(linear_gelu_tanh_reference),
    "linear_relu": _of_layer(linear_relu_reference),
    "matmul": Spec(
        "(Tensor a, Tensor b) -> Tensor",
        matmul_reference,
        lambda a, b: a.new_empty((a.shape[0], b.shape[1])),
        lambda a, b: {"m": a.shape[0], "k": a.shape[1], "n": b.shape[1]},
    ),
    "linear": Spec(
        "(Tensor x, Tensor weight) -> Tensor",
        linear_reference,
        lambda x, weight: x.new_empty((x.shape[0], weight.shape[0])),
        lambda x, weight: {"m": x.shape[0], "k": x.shape[1], "n": weight.shape[0]},
    ),
    "linear_bias": _of_layer(linear_bias_reference),
    "linear_weight_gradient": Spec(
        "(Tensor g, Tensor x) -> Tensor",
        linear_weight_gradient_reference,
        lambda g, x: x.new_empty((g.shape[1], x.shape[1])),
        lambda g, x: {"m": g.shape[0], "n": g.shape[1], "k": x.shape[1]},
    ),
    "linear_weight_gradient_wide": Spec(
        "(Tensor g, Tensor x) -> Tensor",
        linear_weight_gradient_wide_reference,
        lambda g, x: g.new_empty((g.shape[1], x.shape[1]), dtype=torch.float32),
        lambda g, x: {"m": g.shape[0], "n": g.shape[1], "k": x.shape[1]},
    ),
    "rotary_half": _of_halves(rotary_half_reference, "bhsd"),
    "rotary_half_backward": _of_halves(rotary_half_backward_reference, "bhsd"),
    "rotary_half_by_position": _of_halves(rotary_half_by_position_reference, "bshd"),
    "rotary_half_by_position_backward": _of_halves(rotary_half_by_position_backward_reference, "bshd"),
    "rotary_interleaved": _of_pairs(rotary_interleaved_reference, "bhsd"),
    "rotary_interleaved_backward": _of_pairs(rotary_interleaved_backward_reference, "bhsd"),
    "rotary_interleaved_by_position": _of_pairs(rotary_interleaved_by_position_reference, "bshd"),
    "rotary_interleaved_by_position_backward": _of_pairs(rotary_interleaved_by_position_backward_reference, "bshd"),
    "embedding_gradient": Spec(
        "(Tensor gradient, Tensor index, int rows) -> Tensor",
        embedding_gradient_reference,
        lambda gradient, index, rows: gradient.new_empty((rows, gradient.shape[1])),
        lambda gradient, index, rows: {"t": gradient.shape[0], "d": gradient.shape[1], "v": rows},
    ),
    "flash_attention": Spec(
        "(Tensor q, Tensor k, Tensor v) -> Tensor",
        attention_reference,
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
        adamw_step,
        lambda *inputs: None,
        lambda parameter, *rest: {"n": parameter.numel()},
        (0, 2, 3),
    ),
    "adamw_cast": Spec(
        "(Tensor(a!) parameter, Tensor gradient, Tensor(b!) first, Tensor(c!) second, Tensor(d!) narrow, "
        "float rate, float beta1, float beta2, float eps, float decay, int step) -> ()",
        adamw_cast_step,
        lambda *inputs: None,
        lambda parameter, *rest: {"n": parameter.numel()},
        (0, 2, 3, 4),
    ),
    MANY: Spec(
        "(Tensor(a!) parameter, Tensor gradient, Tensor(b!) first, Tensor(c!) second, Tensor(d!) narrow, "
        "Tensor table, float rate, float beta1, float beta2, float eps, float decay, int step) -> ()",
        adamw_many_step,
        lambda *inputs: None,
        lambda parameter, *rest: {"n": parameter.numel()},
        (0, 2, 3, 4),
    ),
}
UNTRAINED = ("flash_attention", "fused_mlp", *BENT)
"""Whose places are only where nothing is differentiated."""
