"""A row family's kernel is offered only for rows whose loads in flight fit into a Hopper's shared memory, and whose
values a thread can hold."""

from __future__ import annotations

import random

import numpy as np
import pytest
import triton

from nightshift.kernels.generate.bulk import SHARED_BYTES
from nightshift.kernels.generate.rows import SUMMING_HOST
from nightshift.kernels.generate.template import candidate
from nightshift.kernels.ops.families import families_of
from nightshift.kernels.problem import Case


@pytest.mark.parametrize(
    ("problem", "tensors"), [("rmsnorm", 1), ("rmsnorm_residual", 2), ("layernorm", 1), ("softmax", 1)]
)
def test_what_is_in_flight_fits_at_the_widest_row_of_the_domain(problem: str, tensors: int) -> None:
    """On an H200 a float32 RMSNorm tuned for 1,024 columns asked for 512 KiB at the widest rows of its own domain,
    and the search that found it ended without a certificate."""
    family = next(f for f in families_of(problem) if f.name in ("rmsnorm", "layernorm", "softmax"))
    case = Case.of("float32", m=8192, n=1024)
    narrowed = 0
    for config in random.Random(0).sample(list(family.space(problem, case)), 60):
        domain = candidate(family, problem, case, config).domain
        assert domain.admits(case.sizes, case.dtype, case.layout)
        widest = max(
            n for n in (2**p for p in range(8, 16)) if domain.admits({"m": 8, "n": n}, "float32", case.layout)
        )
        in_flight = int(config["stages"]) if int(config["waves"]) and int(config["stages"]) > 1 else 0
        assert in_flight * int(config["rows"]) * widest * 4 * tensors <= SHARED_BYTES
        narrowed += widest < 32768
    assert 0 < narrowed < 60


@pytest.mark.parametrize(
    "problem",
    ["rmsnorm", "layernorm", "softmax", "rmsnorm_backward", "rmsnorm_cast_backward", "layernorm_backward",
     "softmax_backward"],
)  # fmt: skip
def test_no_thread_holds_more_values_than_compile_in_seconds(problem: str) -> None:
    """A whole verdict took three minutes: ptxas needed half a minute for each kernel of 512 values a thread, at the
    widest rows of a domain whose tuned rows need 32."""
    dtype = "bfloat16" if "cast" in problem else "float32"
    case = Case.of(dtype, m=8192, n=1024)
    names = ("rmsnorm", "layernorm", "softmax", "backward", "row_backward")
    family = next(f for f in families_of(problem) if f.name in names)
    narrowed = 0
    for config in random.Random(0).sample(list(family.space(problem, case)), 60):
        domain = candidate(family, problem, case, config).domain
        widest = max(n for n in (2**p for p in range(8, 16)) if domain.admits({"m": 8, "n": n}, dtype, case.layout))
        assert int(config["rows"]) * widest <= 32 * int(config["warps"]) * 128
        narrowed += widest < 16384
    assert 0 < narrowed < 60


def _summed(values: np.ndarray, rows: int, programs: int) -> float:
    """In float32, in the kernels' order: each program's tiles in turn, then the parts, 64 lines wide."""

    def in_turn(x: np.ndarray, width: int) -> np.ndarray:
        total = np.zeros(width, np.float32)
        for part in np.pad(x, (0, -len(x) % width)).reshape(-1, width):
            total += part
        return total

    parts = in_turn(values, programs * rows).reshape(programs, rows).sum(1)
    return float(in_turn(parts, 64).sum())


@pytest.mark.parametrize(("rows", "waves"), [(1, 1), (2, 2), (4, 2), (1, 8)])
def test_a_sum_over_sixteen_million_rows_is_nearly_as_exact_as_torchs(rows: int, waves: int) -> None:
    """On an H200 a weight's gradient over 2^24 rows was off by .019 where .0095 was allowed: each program had added
    up tens of thousands of tiles, one after the other."""
    line = SUMMING_HOST.replace("$rows", str(rows)).replace("$waves", str(waves))
    found: dict[str, int] = {}
    exec(line, {"triton": triton, "m": 1 << 24, "units": 132}, found)
    values = np.random.default_rng(rows).standard_normal(1 << 24).astype(np.float32)
    exact = float(values.sum(dtype=np.float64))
    ours = abs(_summed(values, rows, found["programs"]) - exact)
    assert ours < 6e-3
    exec(line, {"triton": triton, "m": 16384, "units": 132}, found)
    assert found["programs"] == min(16384 // rows, 132 * waves)
