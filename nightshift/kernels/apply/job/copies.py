"""16-bit copies of weights: the optimiser's kernel writes them along, nn.Linear under autocast reads them.

Autocast casts every weight in every forward pass: four bytes read and two written for each, and a launch, after the
optimiser had the new value in a register. A copy is read only while it is known to be its weight: after our own
optimiser kernel wrote both, and until anybody writes the weight again. What is known is the weight's version, which
autograd counts, and every `step` of an optimiser, because torch's fused ones do not count. In eager code each layer
looks; a compiled region asks once, at the model's start, and stale copies are made anew there. What is written
through `.data` outside of an optimiser nobody counts: copies are compared bit by bit in the first steps and now and
then, and given up where they differ. So they have to be asked for: `apply(…, weight_copies=True)`.

The gradient of such a layer's weight is asked of the matrix product in float32 where it can give that, by a
kernel that was certified for it or by torch, which saves its cast as well; it is then nearer to the exact one than
torch's own, which is rounded to 16 bits on the way. Where gradients are differentiated again (`create_graph=True`),
they are torch's, of the weight itself.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nightshift.kernels.apply.job.checks import capturing
from nightshift.kernels.apply.job.forwards import problem_of, put, put_whole, replaced
from nightshift.kernels.apply.job.guards import interpreted, outside
from nightshift.kernels.apply.job.names import MANY
from nightshift.kernels.apply.job.products import times
from nightshift.kernels.apply.job.state import DTYPES, OPERATORS, STATE, ByTensor, Kernel, Report, disable, in_use

COPIED = "adamw_cast"
FIRST_LOOKS = 16
"""Steps in each of which every copy is compared with its weight."""
# what autocast casts; float64 it leaves alone
_WIDE = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class WeightCopy:
    """A weight's 16-bit copy, and the version and address of the weight that it was made of; −1: of none."""

    weight: weakref.ref[torch.Tensor]
    narrow: torch.Tensor
    version: int = -1
    address: int = 0

    @property
    def stale(self) -> bool:
        weight = self.weight()
        return weight is not None and not self.holds(weight)

    def holds(self, weight: torch.Tensor) -> bool:
        return self.version == weight._version and self.address == weight.data_ptr()

    def made(self, weight: torch.Tensor) -> None:
        """The optimiser's kernel has just written both."""
        # the address too: `.data = …` gives a weight other memory and counts no version
        self.version, self.address = weight._version, weight.data_ptr()


COPIES = ByTensor()
"""Weight → its WeightCopy."""
MODELS: list[list[WeightCopy]] = []
"""The copies of each model that they were asked for."""


def copier() -> Kernel | None:
    """The kernel in use that writes copies: all in one launch, else one by one."""
    return in_use(MANY) or in_use(COPIED)


def copy_weights(model: nn.Module, report: Report, smallest: int) -> None:
    """Copies for the weights of nn.Linear modules of `smallest` elements or more, where the kernel takes them."""
    kernel = copier()
    # asked twice: the model's forward holds the number of its first copies
    if kernel is None or problem_of(model) == COPIED:
        return
    # the model's forward has to be ours to make copies fresh before any layer reads one
    if replaced(model) or problem_of(model) or isinstance(model, nn.Linear):
        report.skipped.append(("16-bit copies of weights", "the model's own forward was replaced"))
        return
    mine: dict[int, WeightCopy] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or not _copyable(module, weight, kernel, smallest):
            continue
        if COPIES.get(weight) is None:
            narrow = weight.detach().to(DTYPES[kernel.record["dtype"]])
            torch._dynamo.mark_static_address(narrow, guard=False)  # CUDA graphs read it where it lies
            COPIES[weight] = WeightCopy(weakref.ref(weight), narrow)
        copy = mine[id(weight)] = COPIES.get(weight)
        put(module, (COPIED,), _linear(weight, copy))
        report.applied.append((name, kernel.problem, kernel.certificate))
    if not mine:
        report.skipped.append(("16-bit copies of weights", "no nn.Linear has a large float32 weight"))
        return
    fence()  # before any tracing
    STATE.wide_products = _wide_products(next(model.parameters()).device)
    MODELS.append(list(mine.values()))
    put_whole(model, (COPIED,), _gated(type(model).forward, len(MODELS) - 1))
    # hooks are of all optimisers of the process: once for all models
    if len(MODELS) == 1:
        STATE.copied_steps = 0
        STATE.hooks += [register_optimizer_step_pre_hook(_before), register_optimizer_step_post_hook(_after)]


def _copyable(module: nn.Module, weight: nn.Parameter, kernel: Kernel, smallest: int) -> bool:
    """Whether a module is a linear layer as torch has it, with a weight that the kernel writes."""
    if type(module) is not nn.Linear or replaced(module) or problem_of(module):
        return False
    plain = type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.requires_grad
    here = weight.device.type == "cuda" or interpreted()
    large = weight.numel() >= smallest and not outside(kernel.record, {"n": weight.numel()})
    return plain and here and large and weight.is_contiguous()


def _wide_products(device: torch.device) -> bool:
    """Whether a product of 16-bit matrices can be had in float32, from eager and from compiled code."""
    if device.type != "cuda":
        return False
    try:
        from torch._inductor.kernel import mm

        known = "out_dtype" in inspect.signature(mm.tuned_mm).parameters
        row = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
        return known and torch.mm(row, row, out_dtype=torch.float32).dtype == torch.float32
    except Exception:  # noqa: BLE001  an older torch has neither
        return False


class Copied(torch.autograd.Function):
    """A linear layer that reads the copy. `weight` is saved as well, so that autograd sees whether it changed."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, narrow: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.narrow, ctx.biased = narrow, bias is not None
        return nn.functional.linear(x, narrow, bias)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, given = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            # it is to be differentiated again: a copy leads to no weight, so of the weight itself, as torch does it
            narrow, dw = weight.to(ctx.narrow.dtype), (rows.t() @ given).to(weight.dtype)
            dx = rows @ narrow
        else:
            if STATE.wide_products:
                dw = times("linear_weight_gradient_wide", rows, given)
            else:
                dw = times("linear_weight_gradient", rows, given).to(weight.dtype)
            dx = times("matmul", rows, ctx.narrow)
        return dx.reshape(x.shape), dw, None, rows.sum(0) if ctx.biased else None


def _linear(parameter: nn.Parameter, copy: WeightCopy) -> Callable[..., Any]:
    narrow, kind = copy.narrow, copy.narrow.dtype

    def forward(self: nn.Linear, x: torch.Tensor) -> Any:
        weight, bias = self.weight, self.bias
        asked = (
            copier() is not None
            and self.training
            and torch.is_grad_enabled()
            and weight is parameter
            and weight.requires_grad
            and weight.device == narrow.device
            and x.dtype in _WIDE
            and torch.is_autocast_enabled(narrow.device.type)
            and torch.get_autocast_dtype(narrow.device.type) == kind
        )
        if asked and (STATE.copying if torch.compiler.is_compiling() else copy.holds(weight)):
            return Copied.apply(x.to(kind), weight, narrow, None if bias is None else bias.to(kind))  # type: ignore[no-untyped-call]
        return nn.functional.linear(x, weight, bias)

    return forward


def _gated(original: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The model's forward: what is compiled inside of it may read copies, because they are fresh when it begins."""

    def forward(self: nn.Module, *given: Any, **named: Any) -> Any:
        if copier() is None or not self.training or not torch.is_grad_enabled():
            return original(self, *given, **named)
        if not torch.compiler.is_compiling():
            fresh(number)
        else:
            place = next((n for n, x in enumerate(given) if isinstance(x, torch.Tensor)), None)
            if place is None:
                return original(self, *given, **named)
            fenced = fence()(given[place], number)
            given = (*given[:place], fenced, *given[place + 1 :])
        # layers that are compiled by themselves, outside of this forward, have nobody who made their copies fresh
        STATE.copying = True
        try:
            return original(self, *given, **named)
        finally:
            STATE.copying = False

    return forward


@torch.no_grad()
def fresh(number: int) -> None:
    """Makes a model's stale copies anew (all, while a CUDA graph is recorded). They are not taken for known
    afterwards: whoever wrote the weight now may write it again unseen."""
    # a graph replays what was recorded: a copy that was fresh then is stale at the next replay
    every = capturing()
    pairs = [(copy.narrow, copy.weight()) for copy in MODELS[number] if every or copy.stale]
    here = [(narrow, weight) for narrow, weight in pairs if weight is not None and weight.device == narrow.device]
    if here:
        torch._foreach_copy_([narrow for narrow, _ in here], [weight for _, weight in here])


def fence() -> Any:
    """`nightshift::fresh_copies`: the model's first input, unchanged, once its copies are fresh.

    In a compiled region every layer that reads a copy works on what comes of that input: none runs before it. A
    compiler that can keeps it out of CUDA graphs (`reduce-overhead`): recorded there, each replay would make all
    copies anew.
    """
    if "fresh_copies" not in OPERATORS:

        def run(x: torch.Tensor, number: int) -> torch.Tensor:
            fresh(number)
            # a custom operator must not give back its input
            return x.clone()

        operator = torch.library.custom_op(
            "nightshift::fresh_copies",
            run,
            mutates_args=(),
            schema="(Tensor x, int number) -> Tensor",
            tags=_outside_graphs(),
        )
        operator.register_fake(lambda x, number: torch.empty_like(x))
        operator.register_autograd(lambda ctx, g: (g, None))
        OPERATORS["fresh_copies"] = operator
    return OPERATORS["fresh_copies"]


def _outside_graphs() -> tuple[torch.Tag, ...]:
    """The tag by which a compiler parts its CUDA graphs around an operator; none where it cannot part them."""
    from torch._inductor import config

    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    return (tag,) if tag is not None and getattr(config, "graph_partition", False) else ()


def _before(optimizer: Any, *_: Any) -> None:
    """Before any optimiser's step: its weights' copies are of the past. Now and then they are looked at first."""
    STATE.copied_steps += 1
    kernel = copier()
    often = STATE.shadow_every > 0 and STATE.copied_steps % STATE.shadow_every == 0
    look = kernel is not None and (often or STATE.copied_steps <= FIRST_LOOKS) and not capturing()
    for weight, copy in _copies_of(optimizer):
        if look and kernel is not None and copy.holds(weight) and not _same_values(copy.narrow, weight):
            disable(kernel, "a weight was written where nobody counts it (through .data?)")
            look = False
        # torch's fused optimisers write weights without counting a version
        copy.version = -1


def _after(optimizer: Any, *_: Any) -> None:
    """An optimiser that wraps another may write weights after the inner one's step."""
    # torch's own writes nothing behind our kernel's step
    if type(optimizer) is not torch.optim.AdamW:
        for _weight, copy in _copies_of(optimizer):
            copy.version = -1


def _copies_of(optimizer: Any) -> Sequence[tuple[torch.Tensor, WeightCopy]]:
    listed = [(weight, COPIES.get(weight)) for group in optimizer.param_groups for weight in group["params"]]
    return [(weight, copy) for weight, copy in listed if copy is not None]


@torch.no_grad()
def _same_values(narrow: torch.Tensor, weight: torch.Tensor) -> bool:
    # a diverged job's NaN equals nothing: it is no sign of a foreign write
    made = weight.to(narrow.dtype)
    return bool(((made == narrow) | (made.isnan() & narrow.isnan())).all())
