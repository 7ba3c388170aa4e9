"""Two-dimensional stencils 3×3 and 5×5 over planes, zero outside; eager is the shifted sum that users write."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, mantissa


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x: (c, h, w); weight: (k, k), k odd → (c, h, w): out[i, j] = Σ weight[a, b] · x[i + a − r, j + b − r]."""
    size = weight.shape[0]
    radius = size // 2
    height, width = x.shape[1], x.shape[2]
    padded = F.pad(x, (radius, radius, radius, radius))
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    for a in range(size):
        for b in range(size):
            out = out + weight[a, b] * padded[:, a : a + height, b : b + width]
    return out


def convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same through cuDNN's convolution, planes as a batch."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # to be a baseline it needs all of float32
        return F.conv2d(x[:, None], weight[None, None], padding=weight.shape[0] // 2)[:, 0]


def turned(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same with every sum from its last term: planes and weights turned by half a turn, and the result back."""
    return reference(x.flip(1, 2), weight.flip(0, 1)).flip(1, 2)


def whole(case: Case, draw: Draw) -> Inputs:
    x = draw.whole((case["c"], case["h"], case["w"]), case.torch_dtype, terms=case["k"] ** 2, factor=2)
    return x, draw.whole((case["k"], case["k"]), case.torch_dtype, reach=2)


def long(case: Case, draw: Draw) -> Inputs:
    return draw.mantissas((case["c"], case["h"], case["w"])), draw.mantissas((case["k"], case["k"]))


def make_inputs(case: Case, draw: Draw) -> Inputs:
    x = draw.values((case["c"], case["h"], case["w"]), case.torch_dtype)
    return x, draw.weights((case["k"], case["k"]), case.torch_dtype)


def _problem(size: int, cases: tuple[Case, ...]) -> Problem:
    return Problem(
        name=f"stencil_{size}x{size}",
        family="stencil",
        reference=reference,
        make_inputs=make_inputs,
        cases=cases,
        axes=(
            Axis("c", (0, 1, 3), 1, 8),
            Axis("h", (1, 2, 17, 127, 512), 1, 1024),
            Axis("w", (1, 3, 33, 127, 512), 1, 1024),
        ),
        compulsory_bytes=lambda case: (2 * case["c"] * case["h"] * case["w"] + case["k"] ** 2) * case.element_bytes,
        flops=lambda case: 2 * case["k"] ** 2 * case["c"] * case["h"] * case["w"],
        dtypes=("float32",),
        distributions=("normal", "large_mean", "heavy_tail", "ties", "wide", "tiny", "infinite", "nan"),
        gradients=(0,),
        rules=(Rule("integers", whole, reordered=turned), mantissa(long, lambda case: case["k"] ** 2)),
        libraries={"conv2d": convolution},
        row_inputs=(0,),
        huge=(Case.of("float32", c=520, h=2048, w=2048, k=size),),
    )


STENCIL_3X3 = _problem(3, (Case.of("float32", c=3, h=4096, w=4096, k=3),))
STENCIL_5X5 = _problem(
    5, (Case.of("float32", c=3, h=4096, w=4096, k=5), Case.of("float32", c=16, h=2048, w=2048, k=5))
)
