"""The gradient of an embedding table: rows of the upstream gradient added up by token index."""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def embedding_gradient_reference(gradient: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    """gradient: (t, d); index: (t,) int64 in [0, rows) → (rows, d); rows that no token names are zero."""
    summed: torch.Tensor = torch.ops.aten.embedding_dense_backward(gradient, index, rows, -1, False)
    return summed


def oracle(gradient: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    table = torch.zeros(rows, gradient.shape[1], dtype=gradient.dtype, device=gradient.device)
    return table.index_add(0, index, gradient)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    index = draw.integers((case["t"],), case["v"])
    return draw.values((case["t"], case["d"]), case.torch_dtype), index, case["v"]


def whole(case: Case, draw: Draw) -> Inputs:
    index = draw.integers((case["t"],), case["v"])
    return draw.whole((case["t"], case["d"]), case.torch_dtype, terms=case["t"], axis=0), index, case["v"]


EMBEDDING_GRADIENT = Problem(
    name="embedding_gradient",
    family="embedding_gradient",
    reference=embedding_gradient_reference,
    oracle=oracle,
    make_inputs=make_inputs,
    cases=(Case.of("bfloat16", t=16384, d=4096, v=32000), Case.of("float32", t=16384, d=1024, v=8192)),
    axes=(
        Axis("t", (1, 7, 257), 1, 4096),
        Axis("v", (1, 3, 257), 1, 128256),
        Axis("d", (1, 31, 128, 1021), 1, 4096),
    ),
    compulsory_bytes=lambda case: (case["t"] + case["v"]) * case["d"] * case.element_bytes + 8 * case["t"],
    flops=lambda case: case["t"] * case["d"],
    distributions=("normal", "ties", "tiny", "nan"),
    rules=(Rule("integers", whole),),
)
