"""Matrix products on the tensor cores: tiles by pointers or by TMA descriptors, one tile a program or persistent.

Descriptors come from the host: made in the kernel, they cost a small product a microsecond or two. "fixed" ones are
of one shape: a small product ends before the divisions that place its tiles are forgotten. float32 has kernels of
its own (`float32_products`). Of a linear layer's products one operand lies transposed: by pointers that is another
stride, by descriptors its tiles are read as they lie and turned in shared memory.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.ops.products import float32_kernels
from nightshift.kernels.problem import Case

POINTERS = """
import torch
import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, ${given}c, m, n, k, a_row, a_column, b_row, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, FULL: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    number = tl.program_id(0)
    first = number // (GROUP * tiles_n) * GROUP
    high = min(tiles_m - first, GROUP)
    at_m = first + number % (GROUP * tiles_n) % high
    at_n = number % (GROUP * tiles_n) // high
    i = at_m * BM + tl.arange(0, BM)
    j = at_n * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = a + (i % m).to(tl.int64)[:, None] * a_row + depth[None, :] * a_column
    right = b + depth.to(tl.int64)[:, None] * b_row + (j % n).to(tl.int64)[None, :] * b_column
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        if FULL:
            x, y = tl.load(left), tl.load(right)
        else:
            x = tl.load(left, mask=depth[None, :] < k - start, other=0.0)
            y = tl.load(right, mask=depth[:, None] < k - start, other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        left += BK * a_column
        right += BK * b_row
$shift    out = c + i.to(tl.int64)[:, None] * n + j[None, :]
    tl.store(out, total.to(c.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


def entry(a, b$row):
$turned    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=$kind, device=a.device)
    if m and n:
        matmul[(triton.cdiv(m, $bm) * triton.cdiv(n, $bn),)](
            a, b, ${given}c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
            BM=$bm, BN=$bn, BK=$bk, GROUP=$group, FULL=k % $bk == 0, num_warps=$warps, num_stages=$stages,
        )
    return c
"""

DESCRIPTORS = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul(
    left, right, ${given}out, m$fixed, n$fixed, k$fixed, programs$fixed, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr, SPECIALISED: tl.constexpr, FLAT: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    turns = tl.cdiv(k, BK)
    for number in tl.range(
        tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLAT, warp_specialize=SPECIALISED
    ):
        first = number // (GROUP * tiles_n) * GROUP
        high = min(tiles_m - first, GROUP)
        i = (first + number % (GROUP * tiles_n) % high) * BM
        j = number % (GROUP * tiles_n) // high * BN
        total = tl.zeros((BM, BN), tl.float32)
        for turn in range(turns):
            total = tl.dot($left_tile, $right_tile, total)
$shift        if SPLIT == 2:
            halves = tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1))
            low, up = tl.split(halves)
            out.store([i, j], low.to(out.dtype))
            out.store([i, j + BN // 2], up.to(out.dtype))
        else:
            out.store([i, j], total.to(out.dtype))


def entry(a, b$row):
    $rows = a.shape
    n = b.shape[$columns]
    c = torch.empty((m, n), dtype=$kind, device=a.device)
    if m and n:
        tiles = triton.cdiv(m, $bm) * triton.cdiv(n, $bn)
        units = torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 2
        programs = min(tiles, units) if $persistent else tiles
        left = TensorDescriptor.from_tensor(a, $left_block)
        right = TensorDescriptor.from_tensor(b, $right_block)
        out = TensorDescriptor.from_tensor(c, [$bm, $bn // $split])
        matmul[(programs,)](
            left, right, ${given}out, m, n, k, programs, BM=$bm, BN=$bn, BK=$bk, GROUP=$group, SPLIT=$split,
            SPECIALISED=bool($specialised), FLAT=bool($persistent), num_warps=$warps, num_stages=$stages,
        )
    return c
"""

TURNED = {
    "matmul": "",
    "linear": "    b = b.t()\n",
    "linear_bias": "    b = b.t()\n",
    "linear_weight_gradient": "    a = a.t()\n",
    "linear_weight_gradient_wide": "    a = a.t()\n",
}
"""What makes a · b of a problem's inputs."""
_BY_POINTERS = """    total += tl.load(bias + j, mask=j < n, other=0.0).to(tl.float32)[None, :]
"""
_BY_TILES = """        column = j + tl.arange(0, BN)
        total += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
"""
_LEFT = ("left.load([i, turn * BK])", "left.load([turn * BK, i]).T")
_RIGHT = ("right.load([turn * BK, j])", "right.load([j, turn * BK]).T")


def tiled(problem: str, config: Config) -> dict[str, str]:
    """How descriptors read the operands of a problem."""
    bm, bn, bk = (config[name] for name in ("bm", "bn", "bk"))
    left, right = problem.startswith("linear_weight_gradient"), problem in ("linear", "linear_bias")
    return {
        "rows": "k, m" if left else "m, k",
        "columns": "0" if right else "1",
        "left_tile": _LEFT[left],
        "right_tile": _RIGHT[right],
        "left_block": f"[{bk}, {bm}]" if left else f"[{bm}, {bk}]",
        "right_block": f"[{bn}, {bk}]" if right else f"[{bk}, {bn}]",
    }


def shifted(problem: str, lines: str) -> dict[str, str]:
    """What adds a bias to the total, before it is rounded: an argument more, and `lines`. Nothing without one."""
    if problem != "linear_bias":
        return {"row": "", "given": "", "shift": ""}
    return {"row": ", bias", "given": "bias, ", "shift": lines}


def _kind(problem: str) -> str:
    """The dtype of the result."""
    return "torch.float32" if problem.endswith("_wide") else "a.dtype"


class Matmul:
    name = "matmul"
    problems = tuple(TURNED)

    def space(self, problem: str, case: Case) -> Space:
        if case.dtype == "float32" and problem == "linear_bias":
            # the `linear` family does: its float32 kernel has the bias in it
            raise GeneratorError(f"{self.name}: adds no bias to float32 products")
        if case.dtype == "float32":
            return float32_kernels.space()
        wide = case.element_bytes
        # the result waits for the copy engine in shared memory, in the width that it leaves with
        written = 4 if problem.endswith("_wide") else wide
        # a vocabulary of 50,257: the copy engine wants rows that begin on 16 bytes, pointers and masks do not
        aligned = case["n"] % 8 == 0 and case["k"] % 8 == 0

        def admits(config: Config) -> bool:
            bm, bn, bk, stages, warps = (int(config[k]) for k in ("bm", "bn", "bk", "stages", "warps"))
            # by pointers a program has one tile and writes it at once: the other choices belong to descriptors
            tma = config["way"] != "pointers"
            room = stages * bk * (bm + bn) * wide + (bm * bn * written // int(config["split"]) if tma else 0)
            held = bm * bn / (32 * warps)
            fits = room <= 227 << 10 and 64 <= held <= 128
            whole = tma or (config["persistent"] == 0 and config["split"] == 1 and config["specialised"] == 0)
            large = config["way"] != "fixed" or (min(bm, bn) >= 128 and warps == 8)
            whole = whole and (aligned or not tma)
            return fits and whole and large and not (config["specialised"] and not config["persistent"])

        return Space.of(
            admits,
            way=("pointers", "tma", "fixed"),
            bm=(64, 128, 256),
            bn=(64, 128, 256),
            bk=(32, 64, 128),
            stages=(2, 3, 4, 5, 6, 7),
            warps=(4, 8),
            group=(2, 4, 8, 16),
            persistent=(0, 1),
            split=(1, 2),
            specialised=(0, 1),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        layouts = "contiguous padded transposed offset"
        turned = {**config, "turned": TURNED[problem], "kind": _kind(problem), **shifted(problem, _BY_POINTERS)}
        if case.dtype == "float32":
            return render(problem, float32_kernels.MATMUL, turned, layouts=layouts, like=case)
        if config["way"] == "pointers":
            return render(problem, POINTERS, turned, layouts=layouts, like=case)
        fixed = config["way"] == "fixed"
        # a fixed kernel has its sizes compiled in; the copy engine else wants rows that begin on 16 bytes
        sizes = ", ".join(f"{name} {case[name]}..{case[name]}" for name in "mnk")
        keys = {"dtypes": "float16 bfloat16", "bounds": sizes if fixed else "m 1.., n 8.. /8, k 8.. /8"}
        values = {**config, **tiled(problem, config), **shifted(problem, _BY_TILES)}
        values["kind"] = _kind(problem)
        values["fixed"] = ": tl.constexpr" if fixed else ""
        return render(problem, DESCRIPTORS, values, layouts="contiguous", keys=keys, like=case)
