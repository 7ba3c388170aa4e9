"""Kernels of schemes against cuBLAS under the judge, on a GPU: `python -m benchmarks.kernels_schemes_gpu`.

Square products of 2,048 to 16,384 in three dtypes, each by Strassen's scheme (our own find), 1 and 2 levels deep,
with torch.bmm and with our own batched kernel in the middle. Times are taken in turns with cuBLAS, whether or not
the judge accepts the kernel. The error is the root mean square against float64, over cuBLAS's own. The judge gives
its verdict at the sizes of --judged.
Writes results/kernels_schemes_gpu.json: the curve of speed-ups over sizes, wherever it lies.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import write
from benchmarks.serving_rows import seconds
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import QUICK_GPU
from nightshift.kernels.judge.race.contest import QUICK
from nightshift.kernels.ops.products.problem import MATMUL
from nightshift.kernels.problem import Case
from nightshift.kernels.schemes import kernel, scheme
from nightshift.version import commit

DTYPES = ("bfloat16", "float16", "float32")
TURNS = 11


def measured(text: str, case: Case, folder: Path) -> dict[str, float]:
    """Times in turns with cuBLAS, and the error over that of torch's own product, against float64."""
    path = folder / "candidate.py"  # Triton reads a kernel's source from its file
    path.write_text(text)
    entry = runpy.run_path(str(path))["entry"]
    a, b = MATMUL.inputs(case, "normal", 1, "cuda")
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    rows = slice(0, 256)
    truth = a[rows].double() @ b.double()
    ours, theirs = ((x[rows].double() - truth).square().mean().sqrt() for x in (entry(a, b), a @ b))
    turns = [(seconds(lambda: entry(a, b)), seconds(lambda: a @ b)) for _ in range(TURNS)][1:]
    mine, cublas = (statistics.median(taken) for taken in zip(*turns, strict=True))
    return {
        "ms": round(1e3 * mine, 4), "cublas_ms": round(1e3 * cublas, 4), "over_cublas": round(cublas / mine, 3),
        "error_over_cublas": round(float(ours / theirs), 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--judged", type=int, nargs="*", default=[4096])
    options = parser.parse_args()
    strassen = scheme.known(scheme.Format.of("2x2x2"), "Z")
    assert strassen is not None
    rows: list[dict[str, Any]] = []
    results = {"commit": commit(), "device": torch.cuda.get_device_name(), "scheme": strassen.name, "rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        for size, dtype, levels, middle in product(options.sizes, DTYPES, (1, 2), kernel.MIDDLES):
            case = Case.of(dtype, m=size, n=size, k=size)
            row: dict[str, Any] = {"dtype": dtype, "size": size, "levels": levels, "middle": middle}
            try:
                row |= measured(kernel.source(strassen, levels, middle), case, Path(folder))
            except (RuntimeError, ValueError) as error:
                row["detail"] = f"{type(error).__name__}: {error}"[:300]
            rows.append(row)
            print(row, flush=True)
    write("kernels_schemes_gpu", results)
    with Judge("cuda") as court:
        for size, dtype in product(options.judged, DTYPES):
            case = Case.of(dtype, m=size, n=size, k=size)
            request = Request(QUICK_GPU, QUICK, cases=(case,), search=True, libraries=True)
            verdict = court.verdict(kernel.candidate(strassen, 1, kernel.MIDDLES[0]), MATMUL, request)
            found = {"status": str(verdict.status), "reason": str(verdict.reason), "detail": verdict.detail}
            row = next(x for x in rows if (x["size"], x["dtype"], x["levels"]) == (size, dtype, 1))
            row["verdict"] = found
            write("kernels_schemes_gpu", results)


if __name__ == "__main__":
    main()
