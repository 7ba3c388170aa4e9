"""Kernels of schemes against cuBLAS under the judge, on a GPU: `python -m benchmarks.kernels_schemes_gpu`.

Square products of 2,048 to 16,384 in three dtypes, each by Strassen's scheme (our own find), 1 and 2 levels deep,
with torch.bmm and with our own batched kernel in the middle. A candidate first passes the judge's probes; the race
is against the problem's own baselines. The error is the root mean square against float64, over cuBLAS's own.
Writes results/kernels_schemes_gpu.json: the curve of speed-ups over sizes, wherever it lies.
"""

from __future__ import annotations

import argparse
import runpy
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import write
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import QUICK_GPU
from nightshift.kernels.judge.race.contest import QUICK
from nightshift.kernels.ops.products.problem import MATMUL
from nightshift.kernels.problem import Case
from nightshift.kernels.schemes import kernel, scheme
from nightshift.version import commit


def error(text: str, case: Case, folder: Path) -> float:
    """Root mean square error of a candidate over that of torch's own product, against float64."""
    path = folder / "candidate.py"  # Triton reads a kernel's source from its file
    path.write_text(text)
    entry = runpy.run_path(str(path))["entry"]
    a, b = MATMUL.inputs(case, "normal", 1, "cuda")
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    rows = slice(0, 256)
    truth = a[rows].double() @ b.double()
    ours, theirs = ((x[rows].double() - truth).square().mean().sqrt() for x in (entry(a, b), a @ b))
    return float(ours / theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[2048, 4096, 8192, 16384])
    options = parser.parse_args()
    strassen = scheme.known(scheme.Format.of("2x2x2"), "Z")
    assert strassen is not None
    rows: list[dict[str, Any]] = []
    results = {"commit": commit(), "device": torch.cuda.get_device_name(), "scheme": strassen.name, "rows": rows}
    with Judge("cuda") as court, tempfile.TemporaryDirectory() as folder:
        for dtype, size, levels, middle in product(
            ("float32", "bfloat16", "float16"), options.sizes, (1, 2), kernel.MIDDLES
        ):
            case = Case.of(dtype, m=size, n=size, k=size)
            text = kernel.source(strassen, levels, middle)
            request = Request(QUICK_GPU, QUICK, cases=(case,), search=True, libraries=True)
            verdict = court.verdict(kernel.candidate(strassen, levels, middle), MATMUL, request)
            row: dict[str, Any] = {
                "dtype": dtype, "size": size, "levels": levels, "middle": middle, "status": str(verdict.status),
                "reason": str(verdict.reason), "detail": verdict.detail,
                "speedup": {c.baseline: [c.speedup.low, c.speedup.point, c.speedup.high]
                            for c in verdict.comparisons},
            }  # fmt: skip
            if not verdict.refused:
                row["error_over_cublas"] = round(error(text, case, Path(folder)), 3)
            rows.append(row)
            write("kernels_schemes_gpu", results)


if __name__ == "__main__":
    main()
