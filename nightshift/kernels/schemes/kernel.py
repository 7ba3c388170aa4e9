"""A scheme as a recursive kernel for the problem `matmul`, judged like any candidate.

Each level replaces a product of blocks by `rank` products of half the size (or what the format says): one Triton
kernel writes the sums of blocks of an operand, and one adds products up to blocks of the result; all products of
the last level are one batch. `middle` says who multiplies it: "triton", a kernel of ours, or "library", torch.bmm.
Such a product rounds sums of entries. Its file says `exact: no`, so the judge compares its error and not its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.candidate_file import parse_candidate
from nightshift.kernels.generate.base import Config, Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.template import render
from nightshift.kernels.schemes.scheme import Scheme, SchemeError, check

MIDDLES = ("triton", "library")
MAX_LEVELS = 3
_BODY = """
import torch
import triton
import triton.language as tl


@triton.jit
def spread_left(x, y, rows, columns, row, BLOCK: tl.constexpr):
$left

@triton.jit
def spread_right(x, y, rows, columns, row, BLOCK: tl.constexpr):
$right

@triton.jit
def collect(x, y, rows, columns, BLOCK: tl.constexpr):
$out
$product

def spread(kernel, x, p, q):
    batch, rows, columns = x.shape
    y = torch.empty((batch * $rank, rows // p, columns // q), dtype=x.dtype, device=x.device)
    if y.numel():
        size = (rows // p) * (columns // q)
        grid = (triton.cdiv(size, 1024), batch)
        kernel[grid](x, y, rows // p, columns // q, x.stride(1), BLOCK=1024, num_warps=4)
    return y


def entry(a, b):
    m, k = a.shape
    n = b.shape[1]
    left, right = [a.unsqueeze(0)], [b.unsqueeze(0)]
    for level in range($levels):
        left.append(spread(spread_left, left[level], $p, $q))
        right.append(spread(spread_right, right[level], $q, $r))
    products = multiply(left[$levels], right[$levels])
    for level in range($levels):
        batch, rows, columns = products.shape
        last = level == $levels - 1
        kind = a.dtype if last else products.dtype
        y = torch.empty((batch // $rank, rows * $p, columns * $r), dtype=kind, device=a.device)
        if y.numel():
            grid = (triton.cdiv(rows * columns, 1024), batch // $rank)
            collect[grid](products, y, rows, columns, BLOCK=1024, num_warps=4)
        products = y
    return products[0]
"""
_OWN = """

@triton.jit
def batched(
    a, b, c, m, n, k, row, column, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    number = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    first = number // (GROUP * tiles_n) * GROUP
    high = min(tiles_m - first, GROUP)
    i = (first + number % (GROUP * tiles_n) % high) * BM + tl.arange(0, BM)
    j = number % (GROUP * tiles_n) // high * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = a + batch * m * row + (i % m).to(tl.int64)[:, None] * row + depth[None, :]
    right = b + batch * k * column + depth.to(tl.int64)[:, None] * column + (j % n)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        x = tl.load(left, mask=depth[None, :] < k - start, other=0.0)
        y = tl.load(right, mask=depth[:, None] < k - start, other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        left += BK
        right += BK * column
    out = c + batch * m * n + i.to(tl.int64)[:, None] * n + j[None, :]
    tl.store(out, total, mask=(i[:, None] < m) & (j[None, :] < n))


def multiply(a, b):
    batch, m, k = a.shape
    n = b.shape[2]
    c = torch.empty((batch, m, n), dtype=torch.float32, device=a.device)
    if c.numel():
        grid = (triton.cdiv(m, $bm) * triton.cdiv(n, $bn), batch)
        batched[grid](
            a, b, c, m, n, k, a.stride(1), b.stride(1), BM=$bm, BN=$bn, BK=$bk, GROUP=8, num_warps=$warps,
            num_stages=3,
        )
    return c
"""
_LIBRARY = """

def multiply(a, b):
    return torch.bmm(a, b)
"""
_HEAD = """    number, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    i, j = at // columns, at % columns
    inside = at < rows * columns
"""


def _sum(coefficients: Sequence[int], name: str) -> str:
    """`x0 - x2 + 2.0 * x3`, of what is not 0."""
    text = ""
    for number, value in enumerate(coefficients):
        if value:
            size = "" if abs(value) == 1 else f"{float(abs(value))} * "
            sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
            text += f"{sign}{size}{name}{number}"
    return text or f"0.0 * {name}0"


def _spread(rows: Sequence[Sequence[int]], places: Sequence[tuple[int, int]], height: int, width: int) -> str:
    """Reads one element of each block, and writes it into each term's sum."""
    lines = [f"    start = x + batch * rows * {height} * row + i * row + j"]
    for number, (u, v) in enumerate(places):
        lines.append(
            f"    x{number} = tl.load(start + {u} * rows * row + {v} * columns, mask=inside, other=0.0)"
            ".to(tl.float32)"
        )
    lines.append(f"    to = y + batch * {len(rows)} * rows * columns + at")
    lines += [
        f"    tl.store(to + {term} * rows * columns, {_sum(row, 'x')}, mask=inside)"
        for term, row in enumerate(rows)
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _collect(columns: Sequence[Sequence[int]], places: Sequence[tuple[int, int]], height: int, width: int) -> str:
    """Reads one element of each product, and writes each block of the result."""
    rank = len(columns[0])
    lines = [f"    start = x + batch * {rank} * rows * columns + at"]
    lines += [
        f"    x{term} = tl.load(start + {term} * rows * columns, mask=inside, other=0.0).to(tl.float32)"
        for term in range(rank)
    ]
    lines.append(f"    to = y + (batch * rows * {height} + i) * columns * {width} + j")
    for (u, v), column in zip(places, columns, strict=True):
        where = f"{u} * rows * columns * {width} + {v} * columns"
        lines.append(f"    tl.store(to + {where}, {_sum(column, 'x')}, mask=inside)")
    return _HEAD + "\n".join(lines) + "\n"


def source(scheme: Scheme, levels: int, middle: str, config: Config | None = None) -> str:
    """The candidate file. config: bm, bn, bk and warps of the own kernel. Raises SchemeError: not over the
    integers, not exact, a structured format, or more levels than 3."""
    form = scheme.format
    if scheme.ring != "Z" or form.upper:
        raise SchemeError(f"{scheme.name}: a kernel needs integers, and a full product")
    if not 1 <= levels <= MAX_LEVELS or middle not in MIDDLES:
        raise SchemeError(f"levels: 1 to {MAX_LEVELS}; middle: {' or '.join(MIDDLES)}")
    left, right, out = check(scheme).factors()
    tiles = {"bm": 128, "bn": 128, "bk": 32, "warps": 8, **(config or {})}
    product = _OWN if middle == "triton" else _LIBRARY
    for name, value in tiles.items():
        product = product.replace(f"${name}", str(value))
    sizes = {"m": form.rows**levels, "k": form.inner**levels, "n": form.columns**levels}
    values: dict[str, int | str] = {
        "left": _spread(left.tolist(), form.left, form.rows, form.inner),
        "right": _spread(right.tolist(), form.right, form.inner, form.columns),
        "out": _collect(out.T.tolist(), form.out, form.rows, form.columns),
        "product": product, "rank": scheme.rank, "levels": levels, "p": form.rows, "q": form.inner,
        "r": form.columns,
    }  # fmt: skip
    bounds = ", ".join(f"{name} 0.. /{size}" for name, size in sizes.items())
    kind = "own_kernel" if middle == "triton" else "composition"
    return render("matmul", _BODY, values, kind=kind, layouts="contiguous", keys={"exact": "no", "bounds": bounds})


def candidate(scheme: Scheme, levels: int, middle: str, config: Config | None = None) -> Candidate:
    return parse_candidate(source(scheme, levels, middle, config), scheme.name).candidate


@dataclass
class Schemes:
    """The generator: kernels of verified schemes, least rank for the work first; the judge's time is the reward."""

    schemes: Sequence[Scheme]
    name: str = "schemes"

    def spent(self) -> Spent:
        return Spent()

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        """The variants that were not judged; those of the fastest scheme so far come first."""
        times = {
            str(outcome.proposal.config.get("scheme")): outcome.seconds
            for outcome in sorted(history, key=lambda o: o.seconds if o.timed else float("inf"), reverse=True)
        }
        made = []
        judged = {outcome.proposal.candidate.sha256 for outcome in history}
        ranked = sorted(self.schemes, key=lambda scheme: times.get(scheme.name, float("inf")))
        for scheme in ranked:
            for levels in range(1, MAX_LEVELS + 1):
                for middle in MIDDLES:
                    config: dict[str, int | str] = {"scheme": scheme.name, "levels": levels, "middle": middle}
                    each = candidate(scheme, levels, middle)
                    admits = each.domain.admits(task.case.sizes, task.case.dtype, task.case.layout)
                    if each.sha256 not in judged and admits and task.problem.name == "matmul":
                        why = f"{scheme.rank} products instead of {len(scheme.format.definition())}, {levels} deep"
                        made.append(Proposal(each, self.name, config, why))
        return made[:count]
