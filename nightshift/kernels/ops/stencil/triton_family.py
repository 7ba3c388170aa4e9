"""Stencils in Triton: a program walks down a strip of columns and keeps the sums of all rows that are not done.

Each input row is read once for each horizontal shift and added to every output row that it touches, so an output
costs `size` loads instead of `size`². The walk is written out row by row, which keeps the sums in registers.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import HINTS, render
from nightshift.kernels.problem import Case

BODY = """
import torch
import triton
import triton.language as tl


@triton.jit
def stencil(x, weight, out, h, w, xc, xh, wa, wb, BLOCK: tl.constexpr):
    plane = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * $height
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = x + plane * xc + j
    target = out + plane * h * w + j
$steps


def entry(x, weight):
    c, h, w = x.shape
    out = torch.empty((c, h, w), dtype=x.dtype, device=x.device)
    if out.numel():
        grid = (triton.cdiv(w, $block), triton.cdiv(h, $height), c)
        strides = (x.stride(0), x.stride(1), weight.stride(0), weight.stride(1))
        stencil[grid](x, weight, out, h, w, *strides, BLOCK=$block, num_warps=$warps)
    return out
"""


def steps(size: int, height: int, config: Config) -> str:
    """The body of the walk over height + size − 1 input rows."""
    reach = size // 2
    lines = [f"w{a}{b} = tl.load(weight + {a} * wa + {b} * wb)" for a in range(size) for b in range(size)]
    lines.append("none = tl.zeros((BLOCK,), tl.int32)")  # a mask of vectors: the interpreter joins no scalars
    for b in range(size):
        lines.append(f"in{b} = (j + {b - reach} >= 0) & (j + {b - reach} < w)")
    for r in range(height + 2 * reach):
        lines += [f"row = i + {r - reach}", "line = source + row * xh"]
        lines += ["inside = (row + none >= 0) & (row + none < h)"]
        for b in range(size):
            lines.append(
                f"v{b} = tl.load(line + {b - reach}, mask=inside & in{b}, other=0.0{HINTS[str(config['load'])]})"
            )
        for a in range(size):
            t = r - a
            # rows of the halo belong to fewer output rows
            if not 0 <= t < height:
                continue
            terms = " + ".join(f"w{a}{b} * v{b}" for b in range(size))
            lines.append(f"s{t} = {terms}" if a == 0 else f"s{t} += {terms}")
            if a == size - 1:
                lines.append(
                    f"tl.store(target + (i + {t}) * w, s{t}, mask=(i + {t} + none < h) & (j < w)"
                    f"{HINTS[str(config['store'])]})"
                )
    return "\n".join("    " + line for line in lines)


class Stencil:
    name = "stencil"
    problems = ("stencil_3x3", "stencil_5x5")

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            held = int(config["block"]) / (32 * int(config["warps"]))
            # each column keeps `size` unfinished sums, and all weights are in registers too
            return 1 <= held <= 4

        return Space.of(
            admits,
            block=(64, 128, 256, 512),
            warps=(1, 2, 4, 8),
            height=(4, 8, 16, 32),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        size = 3 if problem == "stencil_3x3" else 5
        values = {**config, "steps": steps(size, int(config["height"]), config)}
        keys = {"bounds": f"k {size}..{size}"}
        return render(problem, BODY, values, layouts="contiguous padded offset", keys=keys, like=case)
