"""Modules that compute a certified operation: found by their numbers, given a forward that asks the guards.

Norms, embeddings (for their gradient) and feed-forward blocks, whatever they are called.

A gated block, down(silu(gate(x)) · up(x)): the three linear layers stay what they are (their hooks, 16-bit copies,
autocast); the kernel takes what lies between them, one pass instead of eager torch's two. Where nothing is
differentiated a certified `fused_mlp` takes the block whole. The tanh form of GELU makes a GEGLU block. Plain,
down(act(up(x))): where nothing is differentiated, up and what bends its output are one kernel.

RMSNorm in training is torch's own formula with a certified gradient. The forward pass stays open to the compiler,
which fuses it with its neighbours. The way back costs three kernels: the gradient with the residual's added, the
last sum over rows of the weight's gradient, and the cast for the next matrix product. Where the norm's gradient
was cast from 16 bits and is added to another one, `rmsnorm_cast_backward` does all that. Only a compiled graph
shows it; what does not fit is written out there as torch's formula again, for the compiler to fuse as ever. In
eager code the gradient is `rmsnorm_backward`'s, where that is certified.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
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
    plain,
    problems_of,
    put,
    replaced,
    settings,
    shaped,
    transformed,
    unsavable,
    unseen,
    watched,
)
from nightshift.kernels.apply.job.guards import as_rows, guarded, refusal, widened
from nightshift.kernels.apply.job.names import NORM
from nightshift.kernels.apply.job.operators import invoke, operator_of
from nightshift.kernels.apply.job.passes.folds import VIEWS, Pass, casts_after, narrow_source, operator_name, viewed
from nightshift.kernels.apply.job.problems import BENT, SPECS
from nightshift.kernels.apply.job.state import DTYPES, OPERATORS, STATE, Report, fell_back, in_use
from nightshift.kernels.ops.rmsnorm.problem import rmsnorm_backward_reference

MARK = "rmsnorm_gradient"
"""The operator that a traced backward pass calls, for the pass to find: torch's formula, whoever runs it."""


def marked() -> Any:
    """`nightshift::rmsnorm_gradient`: (g, x, weight, eps, open) → gradients of x and weight. open: the compiler may
    launch the kernel that the pass puts here; it stands in the graph, for compilers' caches."""
    # torch knows operators by name for the whole process: a second one of a name is an error
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
        # written out, and not `original`, for the compiler to fuse with what stands before and behind
        return (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is to be differentiated again
            dx, dw = rmsnorm_backward_reference(g, x, weight, ctx.eps)
        elif ctx.cast:
            dx, dw = marked()(g.contiguous(), x, weight, ctx.eps, ctx.open)
        # kernels are certified for gradients of the inputs' dtype
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


class FoldNorms(Pass):
    """A pass for torch._inductor.config.joint_custom_pre_pass: marked gradients become the kernel's, or torch's
    formula. kind: the 16-bit dtype that the kernel was certified for."""

    def __init__(self, kind: torch.dtype, earlier: Any = None) -> None:
        super().__init__(earlier)
        self.kind = kind

    def named(self) -> tuple[Any, ...]:
        kernel = in_use(NORM)
        return "nightshift fold norms 1", str(self.kind), "" if kernel is None else kernel.certificate

    def rewrite(self, graph: Any) -> None:
        order = {node: number for number, node in enumerate(graph.nodes)}
        for node in list(graph.nodes):
            if operator_name(node) != MARK or self._fold(graph, node, order):
                continue
            parts = _inlined(graph, node, rmsnorm_backward_reference, node.args[:4])
            for part in list(node.users):
                part.replace_all_uses_with(parts[part.args[1]])

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
    part, total = _sum_behind(part)
    if total is None or total.kwargs or len(total.args) != 2:
        return None, None
    others = [item for item in total.args if item is not part and isinstance(item, torch.fx.Node)]
    value = others[0].meta.get("val") if len(others) == 1 else None
    mine = total.meta["val"]
    if not isinstance(value, torch.Tensor) or value.shape != mine.shape or not value.is_contiguous():
        return None, None
    return (total, others[0]) if value.dtype == mine.dtype == torch.float32 else (None, None)


def _sum_behind(part: Any) -> tuple[Any, Any]:
    """(what goes into it, a sum that an output alone goes into); None, None where there is none."""
    # another user would want the gradient without the residual's, which the kernel never writes
    while part is not None and len(part.users) == 1:
        (user,) = part.users
        if operator_name(user) == "add":
            return part, user
        part = user if operator_name(user) in VIEWS else None
    return None, None


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
        # the compiler's later passes take a graph without writes in place
        functional = torch.func.functionalize(of, remove="mutations")
        inner = make_fx(functional, select_decomp_table())(*values).graph
    known = dict(zip(inner.find_nodes(op="placeholder"), [arguments[n] for n in places], strict=True))
    with graph.inserting_before(before):
        for step in inner.nodes:
            if step.op == "call_function":
                known[step] = graph.node_copy(step, known.__getitem__)
    (output,) = inner.find_nodes(op="output")
    return [known[item] for item in output.args[0]]


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
