"""How far a result is from the float64 truth: units in the last place, root mean squares by row and in all.

The part of an error that all elements share is told apart: its least-squares fit by an offset and a scale of the
truth, error ≈ a + b · truth. That is what one sum over the whole output leaves behind: an offset in log weights, a
scale in what a norm divides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

# RMS error always allowed, in ULP of the output; correct rounding makes 0.29.
FLOOR_ULP = 0.5
_CHUNK = 1 << 25
_EXPONENT = 0x7FF << 52
"""The bits of a float64's exponent."""


def ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit in the last place of `dtype` at |value| (float64 in and out, no NaN).

    Below the smallest normal number it is that of the smallest subnormal for float16; for float32 and bfloat16,
    whose subnormals GPUs may flush to zero (PTX ISA, .ftz), the smallest normal number.
    """
    info, size = torch.finfo(dtype), value.abs()
    # a normal float64 without its mantissa is the power of two below it: a quarter of the time of frexp and pow
    power = (size.clamp(min=info.tiny, max=info.max).view(torch.int64) & _EXPONENT).view(torch.float64)
    unit = power * info.eps
    if dtype in (torch.float32, torch.bfloat16):
        return torch.where(size < info.tiny, info.tiny, unit)
    return unit


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """Two dimensions: rows and columns. One-dimensional outputs are one element a row."""
    if tensor.dim() <= 1:
        return tensor.reshape(-1, 1)
    return tensor.reshape(-1, tensor.shape[-1])


def parts(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Row chunks in float64, so that a large output needs little more memory than it has."""
    flat = [rows_of(t) for t in tensors]
    step = max(1, _CHUNK // max(1, flat[0].shape[1]))
    for start in range(0, flat[0].shape[0], step):
        yield tuple(t[start : start + step].to(torch.float64) for t in flat)


@dataclass(frozen=True)
class Errors:
    """Root mean squares of the error: total, the part of it that all elements share, per row; the same of the
    floor; the worst element, in ULP and per row as it is; each row's largest true value, and how many elements
    carry its size: three times (Σ truth²)² / Σ truth⁴, which is all of them where they are normal."""

    rmse: float
    shared: float
    floor: float
    rows: torch.Tensor
    row_floors: torch.Tensor
    row_scales: torch.Tensor
    row_worst: torch.Tensor
    row_tops: torch.Tensor
    row_carriers: torch.Tensor
    worst_ulp: float

    @property
    def residual(self) -> float:
        """Root mean square of what is left of the error without its shared part."""
        return math.sqrt(max(0.0, self.rmse**2 - self.shared**2))


def errors_of(got: torch.Tensor, truth: torch.Tensor, references: Sequence[torch.Tensor]) -> Errors:
    """Of the elements that are finite in all of them."""
    return errors_together([got], truth, references)[0]


def errors_together(
    results: Sequence[torch.Tensor], truth: torch.Tensor, references: Sequence[torch.Tensor] = ()
) -> list[Errors]:
    """Of several results of one dtype, each of the elements that are finite in all of them.

    Numbers come from the device together, at the end: on a GPU of several processes each wait is a long one.
    """
    device, count = truth.device, len(results)
    rows: list[list[torch.Tensor]] = [[] for _ in results]
    peaks: list[list[torch.Tensor]] = [[] for _ in results]
    floors, scales, tops, carriers = [], [], [], []
    # for each result: sums of error, truth, truth², truth · error, error², floor² and of elements; the worst
    sums = torch.zeros(count, 7, dtype=torch.float64, device=device)
    worst = torch.zeros(count, dtype=torch.float64, device=device)
    for exact, *chunks in parts(truth, *results, *references):
        mask = torch.isfinite(exact)
        for other in chunks:
            mask &= torch.isfinite(other)
        true = torch.where(mask, exact, 0.0)
        unit = ulp(true, results[0].dtype)
        weight = mask.sum(dim=1).clamp(min=1)
        square, floor = true.square(), torch.where(mask, unit, 0.0).square()
        floors.append((floor.sum(dim=1) / weight).sqrt() * FLOOR_ULP)
        scales.append((square.sum(dim=1) / weight).sqrt())
        tops.append(true.abs().amax(dim=1) if true.shape[1] else weight * 0.0)
        share = (true / positive(tops[-1])[:, None]).square()
        carriers.append(3.0 * share.sum(dim=1).square() / positive(share.square().sum(dim=1)))
        of_all = true.sum(), square.sum(), floor.sum(), mask.sum().double()
        for at, values in enumerate(chunks[:count]):
            error = torch.where(mask, values - true, 0.0)
            size, squared = error.abs(), error.square()
            rows[at].append((squared.sum(dim=1) / weight).sqrt())
            peaks[at].append(size.amax(dim=1) if error.shape[1] else weight * 0.0)
            sums[at] += torch.stack(
                [error.sum(), of_all[0], of_all[1], (true * error).sum(), squared.sum(), of_all[2], of_all[3]]
            )
            if error.numel():
                worst[at] = torch.maximum(worst[at], (size / unit).max())
    told = torch.cat([sums, worst[:, None]], dim=1).tolist()
    empty = torch.zeros(0, dtype=torch.float64, device=device)
    of_rows = [torch.cat(found) if found else empty for found in (floors, scales, tops, carriers)]
    return [
        _errors(told[at], [torch.cat(found[at]) if found[at] else empty for found in (rows, peaks)], of_rows)
        for at in range(count)
    ]


def _errors(told: Sequence[float], own: Sequence[torch.Tensor], shared: Sequence[torch.Tensor]) -> Errors:
    """From sums over all elements and the worst (as above), a result's own figures by row and those of all."""
    *sums, total, floor, elements, worst_ulp = told
    count = max(elements, 1.0)
    rmse = (total / count) ** 0.5
    fit = min(_shared(*(value / count for value in sums)), rmse)
    floor_rmse = FLOOR_ULP * (floor / count) ** 0.5
    (rows, worst), (floors, scales, tops, carriers) = own, shared
    return Errors(rmse, fit, floor_rmse, rows, floors, scales, worst, tops, carriers, worst_ulp)


def _shared(error: float, truth: float, square: float, product: float) -> float:
    """Root mean square of the least-squares fit a + b · truth to the error, from means over all elements."""
    variance = square - truth * truth
    slope = (product - truth * error) ** 2 / variance if variance > 1e-12 * square else 0.0
    return math.sqrt(error * error + slope)


def positive(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=torch.finfo(torch.float64).tiny)
