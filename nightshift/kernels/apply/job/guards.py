"""Which calls a kernel may compute: only what its certificate covers; the rest is torch's, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nightshift.kernels.apply.job.forwards import autocast, plain, transformed, unsavable
from nightshift.kernels.apply.job.operators import invoke
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import DTYPES, ON_CPU, ROW_AXES, ROWS_SLACK, fell_back, in_use


def interpreted() -> bool:
    """Whether Triton runs on the CPU here: only tests do that."""
    return ON_CPU


def refusal(
    record: Mapping[str, Any],
    sizes: Mapping[str, int],
    tensors: Sequence[torch.Tensor],
    kind: torch.dtype | None = None,
    lies: Callable[[Mapping[str, Any], torch.Tensor], bool] = lambda record, x: x.is_contiguous(),
) -> str:
    """Why a call is torch's: the guard that it does not pass. Empty where it passes all. kind: of these tensors,
    where it is not the certified dtype. lies: whether one lies as the kernel takes it."""
    first = tensors[0]
    if first.device.type not in (("cuda", "cpu") if interpreted() else ("cuda",)):
        return "device"
    kind = kind or DTYPES.get(record["dtype"])
    if any(t.is_floating_point() and t.dtype != kind for t in tensors):
        return "dtype"
    lying = [lies(record, t) for t in tensors]  # torch 2.10 does not trace a generator that calls, in a gradient
    if not all(lying):
        return "stride"
    for name, size in record["sizes"].items():
        here = sizes.get(name, -1)
        # rows follow batch and sequence lengths, which change within a job; widths are the model's
        if name in ROW_AXES:
            if not size <= ROWS_SLACK * here or not here <= ROWS_SLACK * size:
                return "shape"
        elif here != size:
            return "shape"
    return outside(record, sizes)


def outside(record: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """ "shape" where a size is beyond the certified domain, "size" where it is larger than any that the judge asked
    of the kernel, else empty."""
    for bound in record["bounds"]:
        size = sizes.get(bound["name"], bound["low"])
        if not bound["low"] <= size <= bound["high"] or size % bound["multiple"]:
            return "shape"
    largest = record.get("largest", {})
    return "size" if any(size > largest.get(name, size) for name, size in sizes.items()) else ""


def as_rows(problem: str, *tensors: torch.Tensor) -> list[torch.Tensor] | None:
    """Tensors as rows; None, and counted, where they do not lie so: what torch computes of others lies as they do,
    and a kernel's result of a copy would not."""
    if all(x.is_contiguous() for x in tensors):
        return [x.reshape(-1, x.shape[-1]) for x in tensors]
    if in_use(problem) is not None:
        fell_back(problem, "stride")
    return None


def widened(x: torch.Tensor) -> bool:
    """Whether autocast has norms, softmax and losses of these 16 bits computed, and given, in float32."""
    return x.dtype in (torch.float16, torch.bfloat16) and autocast(x)


_WIDENED = ("softmax", "rmsnorm", "layernorm", "cross_entropy")


def guarded(problem: str, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
    """The operator's result, or None where a guard refuses; tensors as the problem takes them."""
    kernel = in_use(problem)
    if kernel is None:
        return None
    why = "transform" if transformed() else "" if plain(*tensors) else "subclass"
    why = why or ("inference" if unsavable(*tensors) else "")
    why = why or ("autocast" if problem in _WIDENED and widened(tensors[0]) else "")
    why = why or refusal(kernel.record, SPECS[problem].sizes(*tensors, *numbers), tensors)
    if why:
        fell_back(problem, why)
        return None
    return invoke(problem, *tensors, *numbers)
