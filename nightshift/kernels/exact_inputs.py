"""Inputs of questions with one right answer that several operations share (`kernels.problem.RULES`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from nightshift.kernels.draw import WHOLE, Draw
from nightshift.kernels.problem import Case, nearest

# Of every value in a question about a norm: its mean square is 2^26, which no epsilon changes in float32.
SIZE = 1 << 13


def even_means(case: Case, least: int = 1, wide: bool = False) -> Iterator[Case]:
    """A mean by n is exact, by its reciprocal as well, for a power of two; outputs of 16 bits do not show the
    difference. `wide`: outputs are of 32 bits whatever the case's dtype is."""
    if case.dtype != "float32" and not wide:
        return nearest(case, "n", lambda near: near["n"] >= least)
    power = max(least, 1 << max(0, case["n"].bit_length() - 1))
    return nearest(case.with_(n=power), "n", lambda near: near["n"].bit_count() == 1 and near["n"] >= least)


def chosen(shape: tuple[int, int], draw: Draw, limit: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """(mask (m, n) of a few columns in each row, (m, 1) how many): a power of two up to `limit`, wherever they
    lie."""
    m, n = shape
    count = (2 ** draw.integers((m, 1), limit.bit_length())).clamp(max=1 << n.bit_length() - 1)
    first, step = draw.integers((m, 1), n), n // count
    away = (torch.arange(n, device=draw.device) - first) % n
    return (away % step == 0) & (away // step < count), count


def one_hot_logits(shape: tuple[int, int], dtype: torch.dtype, draw: Draw) -> torch.Tensor:
    """Logits of 0 at a few places, and of −128 to −384 elsewhere: weights are 0 and powers of two. In float32 at
    one place a row: who subtracts the logarithm of a sum of 2 is a unit off, and as good as any."""
    mask, _ = chosen(shape, draw, limit=1 if dtype == torch.float32 else 8)
    return torch.where(mask, 0, -128 * (1 + draw.integers(shape, 3))).to(dtype)


def cancelling(m: int, n: int, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """((m, n) of 2 or 4, and of twice that at most in one column; (n,) signs): their products add up to 0 in each
    row, by pairs of neighbours, and by the last three columns where n is odd."""
    signs = 1 - 2 * (torch.arange(n, device=draw.device) % 2)
    size = 2 * (1 + draw.integers((m, (n + 1) // 2), 2)).repeat_interleave(2, dim=1)[:, :n]
    if n % 2:
        signs[-2], signs[-1] = 1, -1
        size[:, -3:] = size[:, -3:-2] * torch.tensor((1, 1, 2), device=draw.device)
    return size, signs


def some_rows(m: int, dtype: torch.dtype, largest: int, draw: Draw) -> torch.Tensor:
    """(m, 1) of 1 and 0: so few rows that their sum, each element at most `largest`, is exact in the dtype."""
    step = -(-m * largest // (WHOLE[dtype] - largest))
    return ((torch.arange(m, device=draw.device) + draw.integer(0, step)) % step == 0)[:, None].long()


def one_hot_targets(shape: tuple[int, int], dtype: torch.dtype, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, targets): in each row one logit of 0, of the target in half of the rows, and others of −128 to −384:
    the logarithm of the sum is 0."""
    mask, _ = chosen(shape, draw, limit=1)
    logits = torch.where(mask, 0, -128 * (1 + draw.integers(shape, 3))).to(dtype)
    hit = draw.integers((shape[0],), 2) == 0
    return logits, torch.where(hit, mask.long().argmax(-1), draw.integers((shape[0],), shape[1]))


def coded(case: Case, choice: torch.Tensor, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k (b, h, s, d), ± powers of two, such that the scaled score of query i and key j is 0 where j is
    `choice` (b, h, s) of i, and at most −2^7 elsewhere: half of the first 2L places hold the key's number in
    binary, against the chosen one's, and half a constant, so that what scales or rounds every element alike keeps
    the 0."""
    s, d = case["s"], case["d"]
    length, size = max(1, (s - 1).bit_length()), 1 << math.ceil(math.log2(64 * d**0.5))
    bits = torch.arange(length, device=draw.device)
    codes = 1 - 2 * (torch.arange(s, device=draw.device)[:, None] >> bits & 1)
    shape = (case["b"], case["h"], s, d - 2 * length)
    ones = torch.ones_like(codes).expand(*shape[:3], length)
    k = torch.cat((codes.expand(*shape[:3], length), ones, 1 - 2 * draw.integers(shape, 2)), dim=-1)
    q = torch.cat((codes[choice], -ones, torch.zeros(shape, dtype=torch.int64, device=draw.device)), dim=-1) * size
    return q.to(case.torch_dtype), k.to(case.torch_dtype)


def room(case: Case) -> Iterable[Case]:
    """A key's number has to fit into half of a head."""
    return (case,) if 2 * (case["s"] - 1).bit_length() <= case["d"] else ()
