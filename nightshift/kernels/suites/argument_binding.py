"""How a function's arguments are a problem's inputs: guessed from shapes, made certain by numbers.

A KernelBench task or a module of a model says nowhere that it is an RMSNorm. So a few ways to hand its arguments to
each problem's reference are tried on the arguments' own shapes, and one is taken only if the function and the
reference agree on float64 draws of two sizes, with weights that are not trivial. What fits no problem
stays as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nightshift.kernels.ops.problems import BY_NAME
from nightshift.kernels.problem import Case, as_outputs

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 2.0**-23)
_SCALES = (1.0, 1e-3)
"""Draws of unit size, and small ones: there another epsilon shows."""
_LIKE = 3e-6
Arguments = Sequence[Any]


@dataclass(frozen=True)
class Binding:
    """A problem and how its entry is called: `call` is Python text over `a` (the arguments) and `entry`.

    sizes: the problem's parameters for these arguments; places: which arguments are the problem's tensors.
    """

    problem: str
    call: str
    sizes: dict[str, int]
    places: tuple[int, ...]

    def case(self, dtype: str) -> Case:
        return Case.of(dtype, "contiguous", **self.sizes)


def bind(function: Callable[..., Any], arguments: Arguments, problems: Sequence[str] = ()) -> Binding | None:
    """The binding of a function of tensors, or None. `arguments`: one example of each, with its real shapes."""
    for binding in _guesses(arguments):
        if problems and binding.problem not in problems:
            continue
        if _agrees(function, arguments, binding):
            return binding
    return None


def call(binding: Binding, entry: Callable[..., Any], arguments: Arguments) -> Any:
    """The problem's entry on a function's arguments, with the outputs in the function's shape."""
    return eval(binding.call, {"a": arguments, "entry": entry, "math": math})  # our own text, made below


def _guesses(arguments: Arguments) -> Iterator[Binding]:
    tensors = [i for i, x in enumerate(arguments) if isinstance(x, torch.Tensor)]
    floats = [i for i in tensors if arguments[i].is_floating_point()]
    wholes = [i for i in tensors if not arguments[i].is_floating_point()]
    shape = {i: tuple(arguments[i].shape) for i in tensors}
    lines = [i for i in floats if len(shape[i]) == 1]
    blocks = [i for i in floats if len(shape[i]) >= 2]
    if len(blocks) == 1 and not wholes:
        (x,) = blocks
        n = shape[x][-1]
        rows = {"m": math.prod(shape[x][:-1]), "n": n}
        flat = f"a[{x}].reshape(-1, {n})"
        if not lines:
            yield Binding("softmax", f"entry({flat}).reshape(a[{x}].shape)", rows, (x,))
            for name, one in itertools.product(("reduce_sum", "max"), ("", ", 1")):  # with the dimension kept, too
                yield Binding(name, f"entry({flat}).reshape(*a[{x}].shape[:-1]{one})", rows, (x,))
            yield Binding("gelu", f"entry({flat}).reshape(a[{x}].shape)", rows, (x,))
            yield Binding("copy", f"entry({flat}).reshape(a[{x}].shape)", rows, (x,))
            if len(shape[x]) == 2:
                yield Binding("quantise", f"entry(a[{x}])", rows, (x,))
            if n % 2 == 0:
                half, cut = n // 2, {"m": rows["m"], "n": n // 2}
                first, second = (
                    f"a[{x}][..., {s}].contiguous().reshape(-1, {half})" for s in (f":{half}", f"{half}:")
                )
                for name, (gate, up) in itertools.product(("swiglu", "geglu"), ((first, second), (second, first))):
                    text = f"entry({gate}, {up}).reshape(*a[{x}].shape[:-1], {half})"
                    yield Binding(name, text, cut, (x,))
        for weight in lines:
            if shape[weight] == (n,):
                for eps in EPSILONS:
                    text = f"entry({flat}, a[{weight}], {eps!r}).reshape(a[{x}].shape)"
                    yield Binding("rmsnorm", text, rows, (x, weight))
        for weight, bias in itertools.permutations(lines, 2):
            if shape[weight] == shape[bias] == (n,):
                for eps in EPSILONS:
                    text = f"entry({flat}, a[{weight}], a[{bias}], {eps!r}).reshape(a[{x}].shape)"
                    yield Binding("layernorm", text, rows, (x, weight, bias))
    yield from _pairs(arguments, shape, blocks, lines, wholes)
    yield from _attention(shape, blocks)


def _pairs(
    arguments: Arguments, shape: dict[int, tuple[int, ...]], blocks: list[int], lines: list[int], wholes: list[int]
) -> Iterator[Binding]:
    for x, y in itertools.permutations(blocks, 2):
        if len(blocks) != 2 or wholes:
            break
        n = shape[x][-1]
        rows = {"m": math.prod(shape[x][:-1]), "n": n}
        if shape[x] == shape[y] and not lines:
            for name in ("swiglu", "geglu"):
                text = f"entry(a[{x}].reshape(-1, {n}), a[{y}].reshape(-1, {n})).reshape(a[{x}].shape)"
                yield Binding(name, text, rows, (x, y))
        if shape[x] == shape[y] and len(lines) == 1 and shape[lines[0]] == (n,):
            both = f"a[{x}].reshape(-1, {n}), a[{y}].reshape(-1, {n}), a[{lines[0]}]"
            for eps in EPSILONS:
                text = f"tuple(o.reshape(a[{x}].shape) for o in entry({both}, {eps!r}))"
                yield Binding("rmsnorm_residual", text, rows, (x, y, lines[0]))
        if len(shape[y]) == 2 and len(lines) == 1 and shape[y] == (shape[lines[0]][0], n):
            sizes = {"m": rows["m"], "n": shape[y][0], "k": n}
            call = (
                f"entry(a[{x}].reshape(-1, {n}), a[{y}], a[{lines[0]}]).reshape(*a[{x}].shape[:-1], {shape[y][0]})"
            )
            for name in ("linear_bias", "linear_gelu", "linear_gelu_tanh", "linear_relu"):
                yield Binding(name, call, sizes, (x, y, lines[0]))
        if len(shape[y]) == 2 and not lines:
            m, k = math.prod(shape[x][:-1]), n
            flat = f"a[{x}].reshape(-1, {k})"
            if shape[y][1] == k:
                text = f"entry({flat}, a[{y}].t()).reshape(*a[{x}].shape[:-1], {shape[y][0]})"
                yield Binding("matmul", text, {"m": m, "n": shape[y][0], "k": k}, (x, y))
            if shape[y][0] == k:
                text = f"entry({flat}, a[{y}]).reshape(*a[{x}].shape[:-1], {shape[y][1]})"
                yield Binding("matmul", text, {"m": m, "n": shape[y][1], "k": k}, (x, y))
    if len(blocks) == 1 and len(wholes) == 1 and not lines:
        x, index = blocks[0], wholes[0]
        if len(shape[x]) == 2 and shape[index] == shape[x][:1]:
            sizes = {"m": shape[x][0], "v": shape[x][1]}
            yield Binding("cross_entropy", f"entry(a[{x}], a[{index}])", sizes, (x, index))
    if len(wholes) == 1 and len(lines) == 1 and len(shape[wholes[0]]) == 2 and not blocks:
        code, scale = wholes[0], lines[0]
        if shape[scale] == shape[code][:1] and arguments[code].dtype == torch.int8:
            sizes = {"m": shape[code][0], "n": shape[code][1]}
            yield Binding("dequantise", f"entry(a[{code}], a[{scale}])", sizes, (code, scale))


def _attention(shape: dict[int, tuple[int, ...]], blocks: list[int]) -> Iterator[Binding]:
    """Attention, rotary and feed-forward blocks: three or four tensors."""
    if len(blocks) == 3:
        for q, k, v in itertools.permutations(blocks):
            if len(shape[q]) == 4 and shape[q] == shape[k] == shape[v]:
                sizes = dict(zip("bhsd", shape[q], strict=True))
                yield Binding("flash_attention", f"entry(a[{q}], a[{k}], a[{v}])", sizes, (q, k, v))
            if len(shape[q]) == 4 and shape[k] == shape[v] == (shape[q][2], shape[q][3] // 2):
                sizes = dict(zip("bhsd", shape[q], strict=True))
                yield Binding("rotary_interleaved", f"entry(a[{q}], a[{k}], a[{v}])", sizes, (q, k, v))
    if len(blocks) == 4:
        for x, gate, up, down in itertools.permutations(blocks):
            if [len(shape[i]) for i in (gate, up, down)] == [2, 2, 2] and shape[gate] == shape[up]:
                f, d = shape[gate]
                if shape[x][-1] == d and shape[down] == (d, f):
                    text = f"entry(a[{x}].reshape(-1, {d}), a[{gate}], a[{up}], a[{down}]).reshape(a[{x}].shape)"
                    sizes = {"m": math.prod(shape[x][:-1]), "d": d, "f": f}
                    yield Binding("fused_mlp", text, sizes, (x, gate, up, down))
            if len(shape[x]) == len(shape[gate]) == 4 and shape[up] == shape[down] == shape[x][2:]:
                b, h, s, d = shape[x]
                if (shape[gate][0], shape[gate][2], shape[gate][3]) == (b, s, d):
                    sizes = {"b": b, "h": h, "g": shape[gate][1], "s": s, "d": d}
                    text = f"entry(a[{x}], a[{gate}], a[{up}], a[{down}])"
                    yield Binding("rotary_half", text, sizes, (x, gate, up, down))


@torch.no_grad()
def _agrees(function: Callable[..., Any], arguments: Arguments, binding: Binding) -> bool:
    """Whether function and reference are the same in float64 (or in the reference's own way, where it is exact)."""
    problem = BY_NAME[binding.problem]
    for number, scale in enumerate(_SCALES):
        generator = torch.Generator().manual_seed(number + 1)
        rows = getattr(arguments[binding.places[0]], "shape", None)  # a residual beside x would hide an epsilon
        drawn = [_drawn(x, generator, scale if getattr(x, "shape", ()) == rows else 1.0) for x in arguments]
        try:
            given = as_outputs(function(*drawn))
            wanted = as_outputs(call(binding, problem.reference, drawn))
        except Exception:  # noqa: BLE001  a wrong guess may raise anything
            return False
        if len(given) != len(wanted):
            return False
        for mine, theirs in zip(given, wanted, strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                return False
            a, b = mine.double(), theirs.double()
            level = float(b.abs().max()) if b.numel() else 0.0  # a function may itself calculate in float32
            if not torch.allclose(a, b, rtol=_LIKE, atol=_LIKE * level, equal_nan=True):
                return False
    return True


def _drawn(value: Any, generator: torch.Generator, scale: float) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_floating_point():
        return value.detach().cpu()
    made = torch.randn(value.shape, generator=generator, dtype=torch.float64) * scale
    return made + 0.25 * scale
