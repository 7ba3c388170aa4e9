"""Feed-forward blocks: found by their numbers, whatever they are called.

Gated, down(silu(gate(x)) · up(x)): the three linear layers stay what they are (their hooks, 16-bit copies,
autocast); the kernel takes what lies between them, one pass instead of eager torch's two. Where nothing is
differentiated a certified `fused_mlp` takes the block whole. The tanh form of GELU makes a GEGLU block.

Plain, down(act(up(x))): where nothing is differentiated, up and what bends its output are one kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nightshift.kernels.apply.job.guards import as_rows, guarded
from nightshift.kernels.apply.job.operators import operator_of
from nightshift.kernels.apply.job.places import (
    Settings,
    as_set,
    autocast,
    put,
    replaced,
    settings,
    shaped,
    unseen,
    watched,
)
from nightshift.kernels.apply.job.problems import BENT, SPECS
from nightshift.kernels.apply.job.state import STATE, Report, fell_back

WHOLE = "fused_mlp"
GATED = ("swiglu", "geglu")
_FEW = (5, 7)
"""Widths (d, f) that a block is asked at: linear layers take weights of any size, and real ones take seconds."""


def swap_block(name: str, module: nn.Module, report: Report) -> None:
    """Gives a gated block a forward that asks the guards between its layers."""
    found = _layers(module) if {*GATED, WHOLE, *BENT} & STATE.kernels.keys() else None
    if found is None:
        return
    problem, names, kept = found
    used = [p for p in (problem, *((WHOLE,) if problem == "swiglu" else ())) if p in STATE.kernels]
    if not used:
        return
    if replaced(module):
        report.skipped.append((name, f"{used[0]}: its forward was replaced"))
        return
    for each in used:
        operator_of(each)
        report.applied.append((name, each, STATE.kernels[each].certificate))
    forward = _gated_forward(problem, names) if problem in GATED else _bent_forward(problem, names)
    original, trained = type(module).forward, module.training

    def unless_seen(self: nn.Module, x: torch.Tensor) -> Any:
        # what a block computes in training was not seen where it was found in evaluation: it may drop values; and
        # what a hook within it hears of is computed there; so is what was put between the layers since
        if not _as_found(self, names, kept):
            fell_back(used[0], "changed")
            return original(self, x)
        own = (self.training and not trained) or watched(self, names)
        return original(self, x) if own else forward(self, x)

    put(module, used, unless_seen)


def _beside(module: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """A block and all in it but its linear layers."""
    return [part for name, part in module.named_modules() if name.partition(".")[0] not in names]


def _as_found(module: nn.Module, names: Sequence[str], kept: Sequence[tuple[type[nn.Module], Settings]]) -> bool:
    """Whether a block and what stands between its linear layers are still of these kinds, with these settings."""
    parts = _beside(module, names)
    return len(parts) == len(kept) and all(
        isinstance(part, kind) and type(part).forward is kind.forward and as_set(part, known)
        for part, (kind, known) in zip(parts, kept, strict=True)
    )  # fully_shard makes a class of its own of each, which inherits all


def _layers(module: nn.Module) -> tuple[str, tuple[str, ...], list[tuple[type[nn.Module], Settings]]] | None:
    """(problem, names of gate, up and down, or of up and down, kind and settings of all else) of a module whose
    only parameters are three or two such linear layers'."""
    layers: dict[str, Any] = dict(module.named_children())
    linear = [name for name, layer in layers.items() if type(layer) is nn.Linear]
    own = {id(p) for name in linear for p in layers[name].parameters()}
    if len(linear) not in (2, 3) or any(id(p) not in own for p in module.parameters()) or list(module.buffers()):
        return None
    for *first, down in itertools.permutations(linear):
        f, d = layers[first[0]].weight.shape
        fits = all(tuple(layers[name].weight.shape) == (f, d) for name in first)
        fits = fits and tuple(layers[down].weight.shape) == (d, f)
        for problem in (GATED if len(first) == 2 else BENT) if fits else ():
            with unseen(module):
                parts = _beside(module, (*first, down))
                before = [settings(part) for part in parts]
                if _computes(module, problem, (*first, down)):
                    after = [settings(part) for part in parts]
                    kept = [tuple(each for each in a if each in b) for a, b in zip(before, after, strict=True)]
                    kinds = [type(part) for part in parts]
                    return problem, (*first, down), list(zip(kinds, kept, strict=True))
    return None


def _computes(module: nn.Module, problem: str, names: Sequence[str]) -> bool:
    """Whether the module is that block: on small draws of two scales. One whose dropout is at work is not."""
    layers: dict[str, Any] = dict(module.named_children())
    *first, down = names
    shapes = {**dict.fromkeys(first, (_FEW[1], _FEW[0])), down: _FEW}
    for number, scale in enumerate((1.0, 1e-2)):
        generator = torch.Generator().manual_seed(number + 1)

        def drawn(*shape: int, generator: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        values: dict[str, torch.Tensor] = {}
        for name in names:
            values[f"{name}.weight"] = drawn(*shapes[name])
            if layers[name].bias is not None:
                values[f"{name}.bias"] = drawn(shapes[name][0])
        x = drawn(*((2, 3) if number else (3,)), _FEW[0]) * scale

        def linear(name: str, given: torch.Tensor, values: dict[str, torch.Tensor] = values) -> torch.Tensor:
            return F.linear(given, values[f"{name}.weight"], values.get(f"{name}.bias"))

        inner = SPECS[problem].reference if problem in GATED else BENT[problem]
        wanted = linear(down, inner(*(linear(name, x) for name in first)))
        try:
            mine = torch.func.functional_call(module, values, (x,))
        except Exception:  # noqa: BLE001  any module may be asked
            return False
        if not isinstance(mine, torch.Tensor) or mine.shape != wanted.shape:
            return False
        if not torch.allclose(mine.double(), wanted, rtol=3e-6, atol=3e-6 * float(wanted.abs().max())):
            return False
    return True


def _bent_forward(problem: str, names: tuple[str, ...]) -> Callable[..., Any]:
    act = BENT[problem]

    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        up, down = (getattr(self, name) for name in names)
        out = None
        if problem in STATE.kernels and up.bias is not None and _free(x, up):
            rows = as_rows(problem, x)
            out = None if rows is None else guarded(problem, (*rows, up.weight, up.bias), ())
        return down(act(up(x)) if out is None else shaped(out, *x.shape[:-1], out.shape[-1]))

    return forward


def _gated_forward(problem: str, names: tuple[str, ...]) -> Callable[..., Any]:
    reference = SPECS[problem].reference

    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        gate, up, down = (getattr(self, name) for name in names)
        whole = _whole(x, gate, up, down) if problem == "swiglu" else None
        if whole is not None:
            return whole
        a, b = gate(x), up(x)
        out = None
        if a.dim() >= 2 and a.dtype == b.dtype and a.shape == b.shape:
            rows = as_rows(problem, a, b)
            out = None if rows is None else guarded(problem, rows, ())
        return down(reference(a, b) if out is None else shaped(out, *a.shape))

    return forward


def _whole(x: torch.Tensor, *layers: Any) -> Any:
    """The block by one operator, where no layer has a bias."""
    if WHOLE not in STATE.kernels or not _free(x, *layers) or any(layer.bias is not None for layer in layers):
        return None
    rows = as_rows(WHOLE, x)
    out = None if rows is None else guarded(WHOLE, (*rows, *(layer.weight for layer in layers)), ())
    return None if out is None else shaped(out, *x.shape)


def _free(x: torch.Tensor, *layers: Any) -> bool:
    """Whether nothing is differentiated, hooked, replaced or cast, and x fits the first layer."""
    if not all(type(layer) is nn.Linear for layer in layers):
        return False  # one that was put there since, such as LoRA's, may show the weight of the layer that it wraps
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    if not torch.compiler.is_compiling():
        hooked = hooked or any(replaced(layer) for layer in layers)
    fits = x.dim() >= 2 and x.shape[-1] == layers[0].weight.shape[1]
    return fits and not torch.is_grad_enabled() and not hooked and not autocast(x)
