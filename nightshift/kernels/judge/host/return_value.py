"""Runs inside the candidate's host: the form of what an entry returns, and what it leaves on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nightshift.kernels.judge.verdict import Reason

_PADDING_BYTES = 16 << 20
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Unfit(Exception):
    """The entry's result has the wrong form."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def as_tensors(result: Any) -> tuple[torch.Tensor, ...]:
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    for number, output in enumerate(outputs):
        if type(output) is not torch.Tensor:
            raise Unfit(Reason.wrong_type, f"output {number} is a {type(output).__name__}, not a torch.Tensor")
    return outputs


def usable(outputs: Sequence[torch.Tensor], inputs: Sequence[Any]) -> None:
    """Whether outputs are to any reader what eager's are: their memory holds the values, autograd takes them."""
    for number, output in enumerate(outputs):
        if output.layout != torch.strided or output.is_neg() or output.is_conj():
            text = f"output {number} is not what its memory holds: it is sparse, packed, or to be negated when read"
            raise Unfit(Reason.wrong_type, text)
        if output.is_inference() and not any(isinstance(x, torch.Tensor) and x.is_inference() for x in inputs):
            raise Unfit(Reason.wrong_type, f"output {number} was made in inference mode: autograd refuses it")
        if output.requires_grad:
            raise Unfit(Reason.wrong_type, f"output {number} asks for a gradient, though no input does")


def frugal(outputs: Sequence[torch.Tensor]) -> None:
    """Whether outputs keep no more memory than they fill, or little: padded rows are usual."""
    filled: dict[int, int] = {}
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in outputs}
    for x in outputs:
        place = x.untyped_storage().data_ptr()
        filled[place] = filled.get(place, 0) + x.numel() * x.itemsize
    for place, size in sizes.items():
        if size > 2 * filled[place] + _PADDING_BYTES:
            text = f"outputs of {filled[place]} bytes are views of {size}, which live as long as they do"
            raise Unfit(Reason.wrong_strides, text)


def attached(kind: str, values: Sequence[Any]) -> list[str]:
    """Python attributes of tensors, but for torch.compile's own marks; hooks on their gradients, and gradients."""
    tensors = [(n, x) for n, x in enumerate(values) if isinstance(x, torch.Tensor)]
    names = [(n, name) for n, x in tensors for name in vars(x) if not name.startswith("_dynamo")]
    names += [(n, name) for n, x in tensors for name in _HOOKS if getattr(x, name)]
    names += [(n, "grad") for n, x in tensors if x.is_leaf and x.grad is not None]
    return [f".{name} of {kind} {n}" for n, name in names][:8]
