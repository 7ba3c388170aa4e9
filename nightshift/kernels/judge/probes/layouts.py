"""How tensors lie in memory: the layouts in which a candidate's inputs are handed over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nightshift.kernels.candidate import MIXED, REPEATED, STEPPED
from nightshift.kernels.problem import Inputs


@dataclass(frozen=True)
class Placement:
    """How one tensor lies in a buffer of `elements`: as_strided's size, stride and offset, in elements."""

    elements: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def place(shape: Sequence[int], layout: str) -> Placement:
    """Where a tensor of this shape goes. Every layout addresses each element once, so a copy into it is exact.

    contiguous; padded: rows lie 3 elements further apart than needed; transposed: the last two dimensions swapped
    in memory; offset: contiguous, but one element past the buffer's start, so that wide loads are misaligned.
    sliced: the middle one of three tensors that lie side by side in each (i, j), as queries, keys and values do in
    a projection that makes all of them; contiguous where there are fewer than four dimensions.
    repeated: one row stands for all (`repeats`), by a stride of 0: there alone elements share an address.
    stepped: every second element of rows twice as long; contiguous where there is one dimension.
    Of a mixed layout (`kernels.candidate.MIXED`), ask for the part that `layout_at` names.
    """
    sizes = tuple(int(n) for n in shape)
    # the gap of a padded row is odd, so that rows of whole vectors do not begin on one
    if layout == "padded" and sizes:
        strides = _dense((*sizes[:-1], sizes[-1] + 3))
        return Placement(math.prod((*sizes[:-1], sizes[-1] + 3)), sizes, strides, 0)
    if layout == "transposed" and len(sizes) >= 2:
        inner = _dense((*sizes[:-2], sizes[-1], sizes[-2]))
        return Placement(math.prod(sizes), sizes, (*inner[:-2], inner[-1], inner[-2]), 0)
    if layout == "sliced" and len(sizes) >= 4:
        outer = _dense((*sizes[:2], 3, *sizes[2:]))
        return Placement(3 * math.prod(sizes), sizes, (*outer[:2], *outer[3:]), math.prod(sizes[2:]))
    if layout == REPEATED and (axis := repeats(sizes)) >= 0:
        one = (*sizes[:axis], 1, *sizes[axis + 1 :])
        dense = _dense(one)
        return Placement(math.prod(one), sizes, (*dense[:axis], 0, *dense[axis + 1 :]), 0)
    if layout == STEPPED and len(sizes) >= 2:
        strides = _dense((*sizes[:-1], 2 * sizes[-1]))
        return Placement(2 * math.prod(sizes), sizes, (*strides[:-1], 2), 0)
    offset = 1 if layout == "offset" else 0
    return Placement(math.prod(sizes) + offset, sizes, _dense(sizes), offset)


def repeats(shape: Sequence[int]) -> int:
    """The dimension that the layout "repeated" repeats: the first of several, never the last; −1 where none is."""
    return next((axis for axis, size in enumerate(shape[:-1]) if size > 1), -1)


def write(view: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a view; where it repeats a row by stride 0, their first."""
    for axis, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        if stride == 0 and size > 1:
            view, values = view.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    view.copy_(values)


def layout_at(layout: str, position: int) -> str:
    """The layout of the input at a position."""
    if layout not in MIXED:
        return layout
    return MIXED[layout][position % 2 if layout.startswith("odd_") else position // 2 % 2]


def _dense(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(1, sizes[i + 1])
    return tuple(strides)


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A copy of the tensor with the layout's strides, in memory of its own; NaN (or −1) in the gaps."""
    where = place(tensor.shape, layout)
    gap = float("nan") if tensor.is_floating_point() else -1
    buffer = torch.full((max(1, where.elements),), gap, dtype=tensor.dtype, device=tensor.device)
    view = buffer.as_strided(where.shape, where.strides, where.offset)
    write(view, tensor)
    return view


def made_one(inputs: Inputs) -> Inputs:
    """The inputs with the first tensor of every shape and dtype in the place of all of them."""
    first: dict[object, torch.Tensor] = {}
    return tuple(first.setdefault((x.shape, x.dtype), x) if isinstance(x, torch.Tensor) else x for x in inputs)


def laid_out(inputs: Inputs, layout: str) -> Inputs:
    """All tensors of a problem's inputs in one layout; numbers unchanged."""
    return tuple(
        lay_out(x, layout_at(layout, position)) if isinstance(x, torch.Tensor) else x
        for position, x in enumerate(inputs)
    )
