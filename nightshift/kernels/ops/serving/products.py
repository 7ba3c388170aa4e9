"""Products of a batch of tokens with a weight: C = A · Bᵀ, with B as a server keeps it, [outputs, inputs].

Tokens may be one or thousands, and the text is for both: few of them take tiles of few lines, and the depth of each
is dealt out to `splits` programs, so that reading the weight for one token fills the GPU. A second kernel sums the
parts in float32, in their order.

Quantised operands are FP8 (e4m3) with a float32 scale for each tensor, row, or block of 128 (in B of 128 by 128);
or A is bfloat16 and B int4: two values in a byte, lower bits first, where 8 means zero, and a scale for each 128
of a row. Products of a step of 128 are summed before their scale is multiplied in: no dequantised value is rounded.
"""

from __future__ import annotations

_HEAD = """
import torch
import triton
import triton.language as tl


@triton.jit
def place_of(tile, count, N: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    # eight lines of tiles at a time: neighbours share tiles of the weight in the L2 cache
    across: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    first = tile // (8 * across) * 8
    size = tl.minimum(tl.cdiv(count, LINES) - first, 8)
    inside = tile % (8 * across)
    line = (first + inside % size) * LINES + tl.arange(0, LINES)
    return line, inside // size * COLUMNS + tl.arange(0, COLUMNS)


"""

_TAIL = """


@triton.jit
def join(part, out, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    made = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        made += tl.load(part + split * size.to(tl.int64) + place, mask=place < size, other=0.0)
    tl.store(out + place, made.to(out.dtype.element_ty), mask=place < size)


def entry($arguments):
    count = A.shape[0]
    out = torch.empty((count, $columns_of_b), dtype=DTYPE, device=A.device)
    if count == 0:
        return out
    few = count <= 64
    lines = (16 if count <= 16 else 64) if few else $lines
    splits = $splits if few else 1
    made = out
    if splits > 1:
        made = torch.empty((splits, count, $columns_of_b), dtype=torch.float32, device=A.device)
    tiles = triton.cdiv(count, lines) * triton.cdiv($columns_of_b, $columns)
    product[(tiles, splits)](
        OPERANDS, made, count, N=$columns_of_b, K=$inner, LINES=lines, COLUMNS=$columns, SPLITS=splits,
        STAGES=$stages, DOT=$dot, OF_ITS_OWN, num_warps=$warps,
    )
    if splits > 1:
        join[(triton.cdiv(out.numel(), 1024),)](made, out, out.numel(), SPLITS=splits, BLOCK=1024, num_warps=4)
    return out
"""


def _whole(kernel: str, dtype: str, operands: str, of_its_own: str) -> str:
    """The source of a kernel `product`. of_its_own: what it takes by name beside what both take."""
    tail = _TAIL.replace("DTYPE", dtype).replace("OPERANDS", operands).replace("OF_ITS_OWN", of_its_own)
    return _HEAD + kernel + tail


PRODUCT = _whole(
    """@triton.jit
def product(
    a, b, out, count, N: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, DOT: tl.constexpr,
):
    split = tl.program_id(1)
    line, column = place_of(tl.program_id(0), count, N, LINES, COLUMNS)
    each: tl.constexpr = ((K + DEPTH - 1) // DEPTH + SPLITS - 1) // SPLITS * DEPTH
    lines = a + line[:, None].to(tl.int64) * K
    columns = b + column[:, None].to(tl.int64) * K
    made = tl.zeros((LINES, COLUMNS), tl.float32)
    for start in tl.range(split * each, tl.minimum(split * each + each, K), DEPTH, num_stages=STAGES):
        at = start + tl.arange(0, DEPTH)
        if K % DEPTH == 0:
            x = tl.load(lines + at[None, :], mask=(line < count)[:, None], other=0.0)
            y = tl.load(columns + at[None, :], mask=(column < N)[:, None], other=0.0)
        else:
            x = tl.load(lines + at[None, :], mask=(line < count)[:, None] & (at < K)[None, :], other=0.0)
            y = tl.load(columns + at[None, :], mask=(column < N)[:, None] & (at < K)[None, :], other=0.0)
        made = tl.dot(x.to(DOT), tl.trans(y).to(DOT), made)
    place = (split * count + line)[:, None].to(tl.int64) * N + column[None, :]
    tl.store(out + place, made.to(out.dtype.element_ty), mask=(line < count)[:, None] & (column < N)[None, :])
""",
    "A.dtype",
    "A, B",
    "DEPTH=$depth",
)

SCALED = _whole(
    """@triton.jit
def product(
    a, b, a_scale, b_scale, out, count, N: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr,
    COLUMNS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, DOT: tl.constexpr, SCALES: tl.constexpr,
):
    split = tl.program_id(1)
    line, column = place_of(tl.program_id(0), count, N, LINES, COLUMNS)
    known_line = line < count
    known_column = column < N
    steps: tl.constexpr = (K + 127) // 128
    each: tl.constexpr = (steps + SPLITS - 1) // SPLITS
    made = tl.zeros((LINES, COLUMNS), tl.float32)
    for step in tl.range(split * each, tl.minimum(split * each + each, steps), num_stages=STAGES):
        at = step * 128 + tl.arange(0, 128)
        inner = at < K
        x = tl.load(
            a + line[:, None].to(tl.int64) * K + at[None, :], mask=known_line[:, None] & inner[None, :], other=0.0
        )
        if SCALES == "int4":
            half = step * 64 + tl.arange(0, 64)
            pair = tl.load(
                b + column[:, None].to(tl.int64) * (K // 2) + half[None, :],
                mask=known_column[:, None] & (half < K // 2)[None, :], other=136,
            ).to(tl.int32)
            y = (tl.interleave(pair & 15, pair >> 4) - 8).to(tl.float32)
        else:
            y = tl.load(
                b + column[:, None].to(tl.int64) * K + at[None, :],
                mask=known_column[:, None] & inner[None, :], other=0.0,
            )
        part = tl.dot(x.to(DOT), tl.trans(y.to(DOT)))
        if SCALES == "block":
            part *= tl.load(a_scale + line * steps + step, mask=known_line, other=0.0)[:, None]
            part *= tl.load(b_scale + column // 128 * steps + step, mask=known_column, other=0.0)[None, :]
        if SCALES == "int4":
            of_column = tl.load(b_scale + column * steps + step, mask=known_column, other=0.0)
            part *= of_column.to(tl.float32)[None, :]
        made += part
    if SCALES == "tensor":
        made *= tl.load(a_scale) * tl.load(b_scale)
    if SCALES == "row":
        made *= tl.load(a_scale + line, mask=known_line, other=0.0)[:, None]
        made *= tl.load(b_scale + column, mask=known_column, other=0.0)[None, :]
    place = (split * count + line)[:, None].to(tl.int64) * N + column[None, :]
    tl.store(out + place, made.to(out.dtype.element_ty), mask=known_line[:, None] & known_column[None, :])
""",
    "torch.bfloat16",
    "A, $b, $a_scale, B_scale",
    'SCALES="$scales"',
)
