"""A module's place for a kernel: its forward, replaced on the instance. Modules are asked without a trace of it."""

from __future__ import annotations

import contextlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.state import STATE, fell_back

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_KINDS = (bool, int, float, complex, str, type(None), torch.dtype, FunctionType, BuiltinFunctionType)
# what torch itself keeps on a module changes in training, and is no setting
_TORCHS = frozenset((*vars(nn.Module()), "training", "forward", "_compiled_call_impl"))
Settings = tuple[tuple[str, Any], ...]


def settings(module: nn.Module) -> Settings:
    """The numbers, names and functions that a module was given: what it computes by, besides its parameters."""
    return tuple(
        (name, value)
        for name, value in vars(module).items()
        if name not in _TORCHS and all(isinstance(x, _KINDS) for x in (value if type(value) is tuple else (value,)))
    )


def as_set(module: nn.Module, expected: Settings) -> bool:
    """Whether it still has these settings: who changes a norm's epsilon, or a dropout's probability, means it."""
    return all(getattr(module, name, None) == value for name, value in expected)


def put(module: nn.Module, problems: Sequence[str], forward: Callable[..., Any], expected: Settings = ()) -> None:
    """Gives the instance a forward of one tensor; called in any other way, or with other settings than those that
    are `expected`, or another forward of its class than now, the module's own class computes.

    It is named as the class's: a pickled method is looked up by its name, and a model that is loaded again without
    this file has torch's.
    """
    original = type(module).forward
    # a call may name its one argument; two empty names stand for a forward that takes none
    first = ([*inspect.signature(original).parameters, "", ""])[1]

    def guarded_forward(self: nn.Module, *given: Any, **named: Any) -> Any:
        if len(given) + len(named) == 1:
            x = given[0] if given else named.get(first)
            if isinstance(x, torch.Tensor) and plain(x):
                # a class may be patched, or a setting changed, after `apply`
                if type(self).forward is original and as_set(self, expected):
                    return forward(self, x)
                fell_back(problems[0], "changed")
        return type(self).forward(self, *given, **named)

    put_whole(module, problems, guarded_forward)


def put_whole(module: nn.Module, problems: Sequence[str], forward: Callable[..., Any]) -> None:
    """The same with a forward that takes whatever the class's takes."""
    # pickle looks a bound method up by its name on the instance
    forward.__name__ = "forward"
    forward.nightshift, forward.owner = tuple(problems), STATE  # type: ignore[attr-defined]
    module.forward = MethodType(forward, module)


def problems_of(module: nn.Module) -> tuple[str, ...]:
    """What this file replaced a module's forward for, also of a copy of it; empty where it did not."""
    function = getattr(module.__dict__.get("forward"), "__func__", None)
    return tuple(getattr(function, "nightshift", ())) if getattr(function, "owner", None) is STATE else ()


def problem_of(module: nn.Module) -> str:
    """The first of these, or empty."""
    return next(iter(problems_of(module)), "")


def replaced(module: nn.Module) -> bool:
    """Whether somebody else replaced its forward. What a pickled module of ours comes back with is its class's."""
    mine = module.__dict__.get("forward")
    # unpickled: the name was looked up on the class, so torch computes there and nothing is replaced
    if getattr(mine, "__func__", None) is type(module).forward:
        del module.__dict__["forward"]
        return False
    return mine is not None and not problem_of(module)


def take_back(module: nn.Module) -> bool:
    """Whether there was something to take back."""
    found = bool(problem_of(module))
    if found:
        del module.__dict__["forward"]
    return found


def plain(*tensors: torch.Tensor) -> bool:
    """Whether kernels may be asked about tensors: not about sparse and nested ones, DTensors and other subclasses,
    which have rules of their own. A tracer's stand-ins are plain tensors here."""
    return all(
        (type(x) in (torch.Tensor, nn.Parameter) or type(x).__module__.startswith("torch._subclasses."))
        and not x.is_nested
        and x.layout is torch.strided
        for x in tensors
    )


def unsavable(*tensors: torch.Tensor) -> bool:
    """Whether autograd would refuse to keep one for a gradient: it was made in inference mode, which is over. A
    module's own formula may need none of it."""
    return not torch.compiler.is_compiling() and torch.is_grad_enabled() and any(x.is_inference() for x in tensors)


def overseen() -> bool:
    """Whether a mode, such as make_fx's or selective checkpointing's, looks at all that is computed. It sees what
    an operator gives, not what a kernel writes."""
    return bool(torch._C._len_torch_dispatch_stack())


def autocast(x: torch.Tensor) -> bool:
    """Whether autocast is at work where a tensor lies; on other devices, such as meta, it cannot even be asked."""
    return x.device.type in ("cuda", "cpu") and torch.is_autocast_enabled(x.device.type)


def shaped(out: torch.Tensor, *sizes: int) -> torch.Tensor:
    """A kernel's own output in another shape. No view of it, as torch's products give none: writing to a view in
    place is noticed by autograd and by FSDP, and nobody else holds this one."""
    if tuple(out.shape) == sizes:
        return out
    made: torch.Tensor = torch.ops.aten._unsafe_view(out, sizes)
    return made


@contextlib.contextmanager
def unseen(module: nn.Module) -> Iterator[None]:
    """While a module is asked what it computes, its hooks do not hear of it, no random numbers are used up, and
    what it sets on itself, such as a count of its calls, is as before in the end."""
    kept = [(each, dict(each.__dict__)) for each in module.modules()]
    # a job that sets a seed draws the same numbers with and without `apply`
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            for each, held in kept:
                each.__dict__.update({name: OrderedDict() for name in _HOOKS if name in held})
            yield
        finally:
            for each, held in kept:
                for name in each.__dict__.keys() - held.keys():
                    del each.__dict__[name]
                each.__dict__.update(held)


def watched(module: nn.Module, but: tuple[str, ...] = ()) -> bool:
    """Whether a hook hears of what lies within a module, children of the names `but` left out."""
    return any(
        getattr(part, hooks)
        for name, child in module.named_children()
        if name not in but
        for part in child.modules()
        for hooks in _HOOKS
    )


def transformed() -> bool:
    """Whether torch.func, forward-mode differentiation, torch.jit.trace or torch.export looks: what they hand over
    looks like plain tensors, the third would write a kernel's output down as a constant, and the last an operator
    that is only known where this file is.

    is_exporting() is no answer in a compiled region: up to torch 2.11 Dynamo has it say yes in every one (its
    `tracing_state_functions`). The flag behind it says what is so; torch 2.6 has none."""
    if torch.compiler.is_compiling():
        return bool(getattr(torch.compiler, "_is_exporting_flag", False))
    if torch._C._get_tracing_state() is not None:
        return True
    return bool(torch._C._are_functorch_transforms_active()) or torch.autograd.forward_ad._current_level >= 0
