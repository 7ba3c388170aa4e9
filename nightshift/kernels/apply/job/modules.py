"""Modules that compute a certified operation: found by their numbers, given a forward that asks the guards.

Norms, embeddings (for their gradient) and feed-forward blocks, whatever they are called.

A gated block, down(silu(gate(x)) · up(x)): the three linear layers stay what they are (their hooks, 16-bit copies,
autocast); the kernel takes what lies between them, one pass instead of eager torch's two. Where nothing is
differentiated a certified `fused_mlp` takes the block whole. The tanh form of GELU makes a GEGLU block. Plain,
down(act(up(x))): where nothing is differentiated, up and what bends its output are one kernel.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nightshift.kernels.apply.job.forwards import (
    Settings,
    as_set,
    autocast,
    problems_of,
    put,
    replaced,
    settings,
    shaped,
    transformed,
    unseen,
    watched,
)
from nightshift.kernels.apply.job.guards import as_rows, guarded, refusal
from nightshift.kernels.apply.job.norms import marked, normed
from nightshift.kernels.apply.job.operators import invoke, operator_of
from nightshift.kernels.apply.job.problems import BENT, SPECS
from nightshift.kernels.apply.job.state import DTYPES, NORM, OPERATORS, STATE, Report, fell_back, in_use

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
    for problem, names in _orders(_only_linear(module)):
        with unseen(module):
            parts = _beside(module, names)
            before = [settings(part) for part in parts]
            if _computes(module, problem, names):
                # what changed while it was asked (a count of its calls) is no setting
                after = [settings(part) for part in parts]
                kept = [tuple(each for each in a if each in b) for a, b in zip(before, after, strict=True)]
                return problem, names, list(zip(map(type, parts), kept, strict=True))
    return None


def _only_linear(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of its linear layers' weights, where these layers have all its parameters; else none."""
    linear = {name: layer for name, layer in module.named_children() if type(layer) is nn.Linear}
    own = {id(p) for layer in linear.values() for p in layer.parameters()}
    whole = all(id(p) in own for p in module.parameters()) and not list(module.buffers())
    return {name: tuple(layer.weight.shape) for name, layer in linear.items()} if whole else {}


def _orders(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(problem, names of gate, up and down, or of up and down), as far as the weights' shapes allow it."""
    for names in itertools.permutations(shapes) if len(shapes) in (2, 3) else ():
        *first, down = (shapes[name] for name in names)
        if {*first, down[::-1]} == {first[0]}:
            yield from ((problem, names) for problem in (GATED if len(first) == 2 else BENT))


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
        # of two and of three dimensions: a block may treat a batch of sequences otherwise
        x = drawn(*((2, 3) if number else (3,)), _FEW[0]) * scale

        def linear(name: str, rows: torch.Tensor, values: dict[str, torch.Tensor] = values) -> torch.Tensor:
            return F.linear(rows, values[f"{name}.weight"], values.get(f"{name}.bias"))

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


# of torch's layer norm, of Llama, of the first RMSNorms, of BERT, and float32's own, which torch's RMSNorm takes
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 2.0**-23)


def cut_up(model: nn.Module, report: Report) -> set[int]:
    """Modules, by id, whose parameters FullyShardedDataParallel has cut up: each rank has others, and would find
    other places."""
    # not imported: a job without FSDP need not load it, and one with it has
    wrapper: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    found = {id(part) for module in model.modules() if isinstance(module, wrapper) for part in module.modules()}
    if found:
        why = "FullyShardedDataParallel has cut up their parameters: call apply before it wraps them"
        report.skipped.append((f"{len(found)} modules", why))
    return found


def swap_module(name: str, module: nn.Module, report: Report) -> None:
    """Gives one module a forward that asks the guards first; the module's class and parameters stay."""
    # compiled already: it takes no other forward
    if isinstance(module, torch.jit.ScriptModule):
        return
    # a second call of `apply`, or a copied model: named again, so that the report is whole
    if known := problems_of(module):
        for each in known:
            held = STATE.kernels.get(each)
            report.applied.append((name, each, held.certificate if held is not None else ""))
        return
    if next(module.children(), None) is not None:
        swap_block(name, module, report)
        return
    if isinstance(module, nn.Embedding):
        made: tuple[str, Callable[..., Any], Settings] | None = _embedding(module)
    else:
        made = _norm(module)
    if made is None:
        return
    problem, forward, kept = made
    gradients = (f"{problem}_backward", NORM) if problem == "rmsnorm" else ()
    used = next((name for name in (problem, *gradients) if name in STATE.kernels), None)
    if used is None:
        return
    problem = used
    operator_of(problem)
    if NORM in STATE.kernels:
        marked()
    if replaced(module):
        report.skipped.append((name, f"{problem}: its forward was replaced"))
        return
    put(module, (problem,), forward, kept)
    report.applied.append((name, problem, STATE.kernels[problem].certificate))


def _norm(module: nn.Module) -> tuple[str, Callable[..., Any], Settings] | None:
    """A module whose only parameters are one or two vectors, if it normalises over the last dimension: (problem,
    forward, by which settings)."""
    parameters = dict(module.named_parameters())
    shapes = {tuple(p.shape) for p in parameters.values()}
    if (
        len(parameters) not in (1, 2)
        or len(shapes) != 1
        or any(len(s) != 1 for s in shapes)
        or list(module.buffers())
    ):
        return None
    ((n,),) = shapes
    problem = "rmsnorm" if len(parameters) == 1 else "layernorm"
    own = getattr(module, "eps", None) or getattr(module, "variance_epsilon", None)
    epsilons = ([float(own)] if isinstance(own, float) else []) + list(EPSILONS)
    with unseen(module):
        kept = settings(module)
        # which of the two is the bias no name says for sure
        for order, eps in itertools.product(itertools.permutations(parameters), epsilons):
            if _same(module, problem, order, int(n), eps):
                kept = tuple(each for each in kept if each in settings(module))  # it may count its calls
                return problem, _norm_forward(type(module).forward, problem, order, eps), kept
    return None


def _same(module: nn.Module, problem: str, names: Sequence[str], n: int, eps: float) -> bool:
    """Whether the module is that normalisation, in evaluation and in training: it may drop values in one."""
    kept = module.training
    try:
        # dropout shows in training alone, a running mean in evaluation alone
        for mode in (kept, not kept):
            module.training = mode
            if not _same_now(module, problem, names, n, eps):
                return False
    finally:
        module.training = kept
    return True


def _same_now(module: nn.Module, problem: str, names: Sequence[str], n: int, eps: float) -> bool:
    """Whether the module is that normalisation: on draws of two sizes, with weights that are not trivial, and over
    the last of three dimensions as of two. Its kernel's dtype has to come back as that dtype."""
    kernel = STATE.kernels.get(problem)
    narrow = torch.float64 if kernel is None else DTYPES[kernel.record["dtype"]]
    for number, (shape, scale, kind) in enumerate((
        ((3, n), 1.0, torch.float64), ((3, n), 1e-3, torch.float64), ((2, 3, n), 1.0, torch.float64),
        ((3, n), 1.0, narrow),
    )):  # fmt: skip
        generator = torch.Generator().manual_seed(number + 1)
        x = ((torch.randn(*shape, generator=generator, dtype=torch.float64) + 0.25) * scale).to(kind)
        drawn = {name: torch.randn(n, generator=generator, dtype=torch.float64).to(kind) for name in names}
        try:
            mine = torch.func.functional_call(module, drawn, (x,))
        except Exception:  # noqa: BLE001  any module may be asked
            return False
        wanted = SPECS[problem].reference(x, *(drawn[name] for name in names), eps)
        if not isinstance(mine, torch.Tensor) or mine.shape != wanted.shape:
            return False
        if number == 3:
            return mine.dtype == kind
        level = float(wanted.abs().max())
        if not torch.allclose(mine.double(), wanted, rtol=3e-6, atol=3e-6 * level):
            return False
    return True


def _norm_forward(
    original: Callable[..., Any], problem: str, names: tuple[str, ...], eps: float
) -> Callable[..., Any]:
    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        weights = [getattr(self, name) for name in names]
        fits = x.dim() >= 2 and all(isinstance(w, torch.Tensor) and w.shape == x.shape[-1:] for w in weights)
        if fits and (lying := as_rows(problem, x)) is not None:
            (rows,), out = lying, None
            # torch's forward with our gradient: there is no forward kernel, or the compiler fuses the formula for
            # less than a launch
            if problem == "rmsnorm" and (in_use(problem) is None or _in_a_graph()):
                out = normed(lambda given: original(self, given), rows, weights[0], eps)
            if out is None:
                out = guarded(problem, (rows, *weights), (eps,))
            if out is not None:
                return shaped(out, *x.shape)
        return original(self, x)

    return forward


def _in_a_graph() -> bool:
    """Whether a tracer looks that may find the norm's gradient added to the residual's."""
    return torch.compiler.is_compiling() and in_use(NORM) is not None


def _embedding(module: nn.Embedding) -> tuple[str, Callable[..., Any], Settings] | None:
    original = type(module).forward
    own = original is nn.Embedding.forward  # one that inherits may scale what it looks up, or look up other rows
    if not own or module.padding_idx is not None or module.max_norm is not None:
        return None
    # gradients of another rule or kind than the one the kernel was judged by
    if module.scale_grad_by_freq or module.sparse:
        return None
    embed()

    def forward(self: nn.Embedding, index: torch.Tensor) -> Any:
        kernel = in_use("embedding_gradient")
        if kernel is not None and self.weight.requires_grad and torch.is_grad_enabled() and not transformed():
            sizes = {"t": index.numel(), "d": self.weight.shape[1], "v": self.weight.shape[0]}
            why = refusal(kernel.record, sizes, (self.weight,))
            if not why:
                out = embed()(self.weight, index.reshape(-1))
                return shaped(out, *index.shape, self.weight.shape[1])
            fell_back("embedding_gradient", why)
        return original(self, index)

    return "embedding_gradient", forward, settings(module)


def embed() -> Any:
    """An embedding whose gradient is the certified kernel's."""
    if "embed" in OPERATORS:
        return OPERATORS["embed"]

    def run(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return F.embedding(index, table)

    operator = torch.library.custom_op(
        "nightshift::embed", run, mutates_args=(), schema="(Tensor table, Tensor index) -> Tensor"
    )
    operator.register_fake(lambda table, index: table.new_empty((index.shape[0], table.shape[1])))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]

    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is to be differentiated again
            return torch.ops.aten.embedding_dense_backward(g, index, ctx.rows, -1, False), None
        return invoke("embedding_gradient", g.contiguous(), index, ctx.rows), None

    operator.register_autograd(backward, setup_context=setup)
    OPERATORS["embed"] = operator
    return operator
