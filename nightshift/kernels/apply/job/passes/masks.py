"""A pass over compiled graphs: attention with a constant causal mask becomes causal, and reads no mask.

Libraries of models write the causal mask out wherever they are traced, because they cannot ask a traced value what
it holds: `transformers` builds (b, 1, s, s) from positions in a compiled region, and none in eager code. A kernel
that is given a mask reads it for each head, and computes the half that is thrown away.

A mask that no input of the graph has a part in is a constant: it is computed here and compared, element by element.
What depends on an input (padding, packed sequences that the job hands over), is random, or of sizes that are no
numbers stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nightshift.kernels.apply.job.passes.folds import Pass, operator_name, seen_through
from nightshift.kernels.apply.job.state import STATE

_ATTENTION = "_scaled_dot_product_"
_MASKS = ("attn_bias", "attn_mask")
"""What torch's own attention operators call it."""
_MASKED = -65504.0
"""The most that is added to a score to take it out: float16's least number, which torch up to 2.11 makes of a
boolean mask for cuDNN. In float32 e to its power is 0: a score would have to be 65,000 above one that is kept."""
_LARGEST = 1 << 30
"""Elements of a mask that is looked at: 2¹⁵ positions in each direction."""


class InputError(Exception):
    """A value that is not the same in each call of the graph."""


class CausalMasks(Pass):
    """A pass for torch._inductor.config.joint_custom_pre_pass: attention with a constant causal mask becomes causal
    attention of the same backend, and so does its gradient."""

    HAS_KERNELS = False

    def named(self) -> tuple[Any, ...]:
        return ("nightshift causal masks 1",)

    def rewrite(self, graph: Any) -> None:
        values: dict[Any, Any] = {}
        causal: dict[Any, bool] = {}
        for node in list(graph.nodes):
            name = operator_name(node) if node.op == "call_function" else ""
            if not name.startswith(_ATTENTION) or name.endswith("_backward"):
                continue
            mask = given_for(node)
            if not isinstance(mask, torch.fx.Node) or given_for(node, ("is_causal",)):
                continue
            together = with_gradients(node)
            if together is None:
                continue
            if mask not in causal:
                causal[mask] = is_causal(mask, node, values)
            if causal[mask]:
                STATE.rewritten["causal masks"] += 1
                for one in together:
                    _without_mask(one)


def is_causal(mask: Any, attention: Any, values: dict[Any, Any]) -> bool:
    """Whether a node is, in every call of its graph, the mask that has each position see itself and those before.

    values: of nodes that were computed, kept for the next mask.
    """
    query, value = attention.args[0].meta["val"], mask.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.requires_grad or value.dim() < 2:
        return False
    if not all(isinstance(size, int) for size in (*value.shape, *query.shape)) or value.numel() > _LARGEST:
        return False
    # of other lengths "causal" may count from either end
    if value.shape[-2] != value.shape[-1] or value.shape[-2] != query.shape[-2]:
        return False
    try:
        with _disable_current_modes(), torch.no_grad():
            return _lower_triangular(_constant(mask, values))
    except InputError:
        return False


def _lower_triangular(mask: torch.Tensor) -> bool:
    # what only repeats one mask for heads and sequences is compared once
    mask = mask[tuple(slice(None if stride else 1) for stride in mask.stride()[:-2])]
    seen = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    return bool((mask == seen if mask.dtype == torch.bool else torch.where(seen, mask == 0, mask <= _MASKED)).all())


def _constant(node: Any, values: dict[Any, Any]) -> Any:
    """The value of a node that no input has a part in. Raises InputError for any other."""
    waiting = [node]
    while waiting:
        one = waiting[-1]
        needs = [other for other in one.all_input_nodes if other not in values]
        if needs:
            waiting += needs
            continue
        waiting.pop()
        if one not in values:
            values[one] = _evaluated(one, values)
    return values[node]


def _evaluated(node: Any, values: Mapping[Any, Any]) -> Any:
    if node.op == "get_attr":
        found: Any = node.graph.owning_module
        for name in node.target.split("."):
            found = getattr(found, name)
        return found
    if node.op != "call_function":
        raise InputError(node.name)
    if node.target is not operator.getitem and not _repeatable(node.target):
        raise InputError(node.name)
    args, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda other: values[other])
    return node.target(*args, **named)


def _repeatable(target: Any) -> bool:
    """Whether an operator gives the same of the same, and writes to nothing."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    uninitialised = target._schema.name.rpartition("::")[2].startswith(("empty", "new_empty"))
    return not uninitialised and torch.Tag.nondeterministic_seeded not in target.tags


def with_gradients(node: Any) -> list[Any] | None:
    """An attention operator and those of its gradient; None where something else reads what they share."""
    gradient = f"{operator_name(node)}_backward"
    found = [node]
    for part in node.users:
        if part.target is not operator.getitem:
            return None
        if part.args[1] == 0:
            continue  # the output itself: anybody's
        for user in _readers(part):
            if operator_name(user) != gradient:
                return None
            if user not in found:
                found.append(user)
    return found


def _readers(node: Any) -> list[Any]:
    """What reads a value, through views of it."""
    found = []
    for user in node.users:
        if user.op == "output":
            continue  # kept for a backward pass, which stands in this graph as well
        found += _readers(user) if seen_through(user) is not user or operator_name(user) == "detach" else [user]
    return found


def _places(node: Any, names: tuple[str, ...]) -> list[tuple[int, Any]]:
    return [(n, one) for n, one in enumerate(node.target._schema.arguments) if one.name in names]


def given_for(node: Any, names: tuple[str, ...] = _MASKS) -> Any:
    """What an operator was given for the argument of one of these names; of none: its mask."""
    for place, one in _places(node, names):
        return node.args[place] if place < len(node.args) else node.kwargs.get(one.name, one.default_value)
    return None


def _without_mask(node: Any) -> None:
    for names, value in ((_MASKS, None), (("is_causal",), True)):
        for place, one in _places(node, names):
            if place < len(node.args):
                node.update_arg(place, value)
            else:
                node.update_kwarg(one.name, value)
