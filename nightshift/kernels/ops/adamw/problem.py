"""An AdamW step (Loshchilov and Hutter, arXiv 1711.05101) in torch's order of operations, changing its inputs.

`adamw_cast` also leaves a 16-bit copy of the new parameter: what the next forward pass under autocast would read
four bytes and write two for, and launch a kernel of its own for each weight. `adamw_many` is that over all tensors
of a model in one launch: where each of their chunks begins stands in a table, counted from one tensor of each kind.
"""

from __future__ import annotations

import random
from functools import cache

import torch

from nightshift.kernels.draw import Draw, mix
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, unusual


def adamw_reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All tensors (n,) → new (parameter, first moment, second moment) after step number `step` ≥ 1."""
    shrunk = parameter * (1 - rate * decay)
    mean = first + (gradient - first) * (1 - beta1)
    square = second * beta2 + gradient * gradient * (1 - beta2)
    root = square.sqrt() / (1 - beta2**step) ** 0.5 + eps
    return shrunk - (rate / (1 - beta1**step)) * (mean / root), mean, square


def adamw_cast_reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    narrow: torch.Tensor,
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same on float32 tensors, and the new parameter rounded to the dtype of `narrow` (n,)."""
    made = adamw_reference(parameter, gradient, first, second, rate, beta1, beta2, eps, decay, step)
    return *made, made[0].to(narrow.dtype)


def adamw_many_reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    narrow: torch.Tensor,
    table: torch.Tensor,
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    """The same for the chunks that the table names, by row: where each begins in the five tensors, in elements
    (multiples of 8; −1 in the fifth column: no copy), and how many, 1 to CHUNK. What no row names stays."""
    counts = table[:, 5]
    row = torch.repeat_interleave(torch.arange(len(table), device=table.device), counts)
    within = torch.arange(len(row), device=table.device) - (counts.cumsum(0) - counts)[row]
    places = [table[row, column] + within for column in range(5)]
    p, g, mean, square = (x[i] for x, i in zip((parameter, gradient, first, second), places[:4], strict=True))
    made = adamw_reference(p, g, mean, square, rate, beta1, beta2, eps, decay, step)
    copied = table[row, 4] >= 0
    kinds = zip((parameter, first, second), (places[0], *places[2:4]), made, strict=True)
    news = [x.index_put((i,), new) for x, i, new in kinds]
    return *news, narrow.index_put((places[4][copied],), made[0][copied].to(narrow.dtype))


CHUNK = 16384
"""Most elements of a row of `adamw_many`'s table."""


@cache
def table_of(n: int) -> tuple[tuple[int, ...], ...]:
    """A table over tensors of n elements, by the size alone: pieces of a model's sizes, in another order for each
    kind; in small ones some elements are left out, and a quarter of the pieces has no copy."""
    rng = random.Random(n)
    sizes, used, large = [], 0, n >= 1 << 22
    while used < n:
        size = rng.choice((1024, 1 << 20, 3 << 20, 1 << 22) if large else (1, 7, 40, 1000, 5000, 40000))
        size = min(size, n - used)
        sizes.append(size)
        used += -(-size // 8) * 8 + (0 if large else 8 * rng.randrange(2))
    if used > n and len(sizes) > 1:
        used -= -(-sizes.pop() // 8) * 8
    begins = []
    for _ in range(5):
        order, at = list(range(len(sizes))), 0
        if used <= n:
            rng.shuffle(order)
        place = [0] * len(sizes)
        for number in order:
            place[number] = at
            at += -(-sizes[number] // 8) * 8
        begins.append(place)
    rows = []
    for number, size in enumerate(sizes):
        copied = rng.random() < 0.75
        for at in range(0, size, CHUNK):
            place = [kind[number] + at for kind in begins]
            rows.append((*place[:4], place[4] if copied else -1, min(CHUNK, size - at)))
    return tuple(rows)


def powers_of_two(case: Case, draw: Draw) -> Inputs:
    return _exact(case, draw, case.torch_dtype)


def powers_of_two_cast(case: Case, draw: Draw) -> Inputs:
    *tensors, rate, beta1, beta2, eps, decay, step = _exact(case, draw, torch.float32)
    return *tensors, draw.normal((case["n"],), case.torch_dtype), rate, beta1, beta2, eps, decay, step


def powers_of_two_many(case: Case, draw: Draw) -> Inputs:
    """Its tensors lie in orders of their own, so that any gradient may meet any moment: all gradients are 2."""
    *tensors, rate, beta1, beta2, eps, decay, step = powers_of_two_cast(case, draw)
    shape = (case["n"],)
    tensors[1] = torch.full(shape, 2.0, device=draw.device)
    tensors[2] = 128 * draw.whole(shape, torch.float32, reach=1) - 2
    tensors[3] = torch.full(shape, 124.0, device=draw.device)
    return *tensors, make_many(case, draw)[5], rate, beta1, beta2, eps, decay, step


def _exact(case: Case, draw: Draw, dtype: torch.dtype) -> Inputs:
    """Moments whose new root is 8 and whose new mean a multiple of 64, with numbers that are powers of two and a
    step so late that no bias is left: in 16 bits, too, nothing is rounded."""
    shape = (case["n"],)
    gradient, rise = draw.whole(shape, dtype, reach=3), draw.whole(shape, dtype, reach=1)
    parameter, first, second = 32 * draw.whole(shape, dtype), 128 * rise - gradient, 128 - gradient * gradient
    return parameter, gradient, first, second, 0.125, 0.5, 0.5, 2.0**-40, 0.25, 128


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return _inputs(case, draw, case.torch_dtype)


def make_many(case: Case, draw: Draw) -> Inputs:
    *tensors, rate, beta1, beta2, eps, decay, step = make_cast(case, draw)
    rows = torch.tensor(table_of(case["n"]), dtype=torch.int64).reshape(-1, 6)
    device = next(x.device for x in tensors if isinstance(x, torch.Tensor))
    return *tensors, rows.to(device), rate, beta1, beta2, eps, decay, step


def _many_elements(case: Case) -> tuple[int, int]:
    """(elements that the table names, those with a copy)."""
    rows = table_of(case["n"])
    return sum(row[5] for row in rows), sum(row[5] for row in rows if row[4] >= 0)


def make_cast(case: Case, draw: Draw) -> Inputs:
    parameter, gradient, first, second, *numbers = _inputs(case, draw, torch.float32)
    return parameter, gradient, first, second, draw.normal((case["n"],), case.torch_dtype), *numbers


def _inputs(case: Case, draw: Draw, dtype: torch.dtype) -> Inputs:
    n = case["n"]
    parameter, gradient = draw.normal((n,), dtype, 0.1), draw.values((n,), dtype)
    first, second = draw.normal((n,), dtype, 0.1), draw.uniform((n,), dtype, 0.0, 0.5)
    step = 1 + mix(n) % 2000
    if unusual(case):
        return parameter, gradient, first, second, 3e-3, 0.8, 0.9995, 1e-3, 0.3, step + 2000
    return parameter, gradient, first, second, 1e-3, 0.9, 0.999, 1e-8, 0.1, step


ADAMW = Problem(
    name="adamw",
    family="optimiser",
    reference=adamw_reference,
    make_inputs=make_inputs,
    cases=(Case.of("float32", n=92 << 20),),
    axes=(Axis("n", (0, 1, 7, 1021, 65537), 1, 1 << 22),),
    compulsory_bytes=lambda case: 7 * case["n"] * case.element_bytes,
    flops=lambda case: 14 * case["n"],
    dtypes=("float32", "bfloat16"),
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zeros", "nan"),
    layouts=("contiguous", "offset"),
    mutates=(0, 2, 3),
    numbers=1,
    rules=(Rule("powers_of_two", powers_of_two),),
)

ADAMW_CAST = Problem(
    name="adamw_cast",
    family="optimiser",
    reference=adamw_cast_reference,
    make_inputs=make_cast,
    cases=(Case.of("bfloat16", n=84 << 20),),
    axes=(Axis("n", (0, 1, 7, 1021, 65537), 1, 1 << 22),),
    compulsory_bytes=lambda case: (7 * 4 + case.element_bytes) * case["n"],
    flops=lambda case: 14 * case["n"],
    dtypes=("float16", "bfloat16"),
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zeros", "nan"),
    layouts=("contiguous", "offset"),
    mutates=(0, 2, 3, 4),
    numbers=1,
    rules=(Rule("powers_of_two", powers_of_two_cast),),
)

ADAMW_MANY = Problem(
    name="adamw_many",
    family="optimiser",
    reference=adamw_many_reference,
    make_inputs=make_many,
    cases=(Case.of("bfloat16", n=84 << 20),),
    axes=(Axis("n", (0, 1, 7, 1021, 65537), 1, 1 << 22),),
    compulsory_bytes=lambda case: 28 * _many_elements(case)[0] + case.element_bytes * _many_elements(case)[1],
    flops=lambda case: 14 * _many_elements(case)[0],
    dtypes=("float16", "bfloat16"),
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zeros", "nan"),
    layouts=("contiguous",),
    mutates=(0, 2, 3, 4),
    numbers=1,
    rules=(Rule("powers_of_two", powers_of_two_many),),
)
