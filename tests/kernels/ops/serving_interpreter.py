"""Kernels for serving on the interpreter, and a mutant of each: `python -m tests.kernels.ops.serving_interpreter`.

Prints what is wrong in each, as JSON: {kernel: [of the kernel, of the mutant]}; empty where nothing is. It is a
process of its own, since Triton reads at its import whether to interpret.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from nightshift.kernels.judge.probes.correctness import compare
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.oracle import expected
from nightshift.kernels.ops.serving.families import family_of
from nightshift.kernels.problem import Problem, as_outputs
from nightshift.kernels.suites.definitions import definition_of
from nightshift.kernels.suites.serving import SHARED, problem_of
from tests.serving_definitions import (
    delta,
    embedding,
    experts,
    product,
    put,
    rotary,
    sample,
    scaled,
    silu,
    softmax,
    sparse,
    topk,
)

SCALED = {"lines": 128, "columns": 64, "stages": 2, "splits": 2, "warps": 4, "dot": "tl.float32"}
Asked = tuple[int, int, str, int]
"""Rows, regime, distribution, calls."""
MIXED, EMPTY = 0, 4
TABLE: tuple[tuple[Callable[[], dict[str, Any]], dict[str, int], str, Sequence[Asked]], ...] = (
    (sparse, {"block": 16, "splits": 2, "stages": 1, "warps": 4}, "known & (page >= 0) -> known",
     ((5, MIXED, "normal", 1), (3, MIXED, "far", 1))),
    (delta, {"rows": 16, "warps": 4}, "held = held * gate -> held = held",
     ((3, MIXED, "normal", 1), (3, EMPTY, "normal", 1))),
    (rotary, {"rows": 4, "warps": 4}, "first * c - second * s -> first * c + second * s",
     ((7, MIXED, "normal", 1),)),
    (silu, {"block": 64, "warps": 4}, "1.0 + tl.exp(-v) -> 1.1 + tl.exp(-v)", ((7, MIXED, "normal", 1),)),
    (embedding, {"block": 32, "rows": 2, "warps": 4}, "other=0)\n    v -> other=0) // 2\n    v",
     ((7, MIXED, "normal", 1),)),
    (topk, {"block": 64, "warps": 4},
     "(4294967295 - column.to(tl.int64)) -> (4294967295 - column.to(tl.int64) // 2)",
     ((3, MIXED, "normal", 1), (2, MIXED, "ties", 1))),
    (experts, {"lines": 16, "columns": 64, "depth": 128, "stages": 2, "warps": 4},
     "tl.max(grouped, 1) + second -> tl.max(grouped, 1)", ((1, MIXED, "normal", 1), (33, MIXED, "normal", 1))),
    (product, {"lines": 128, "columns": 64, "depth": 32, "stages": 2, "splits": 2, "warps": 4},
     "for split in range(SPLITS) -> for split in range(1)", ((1, MIXED, "normal", 1), (65, MIXED, "normal", 1))),
    (partial(softmax, 40), {"block": 256, "warps": 4}, "tl.sum(share, 1) -> tl.max(share, 1)",
     ((7, MIXED, "normal", 1),)),
    (softmax, {"block": 256, "warps": 4}, "total * tl.exp(most - top) -> total", ((3, MIXED, "normal", 1),)),
    (partial(scaled, "tensor"), SCALED, "tl.load(a_scale) * tl.load(b_scale) -> tl.load(a_scale)",
     ((3, MIXED, "normal", 1),)),
    (partial(scaled, "row"), SCALED, "tl.load(b_scale + column, -> tl.load(b_scale + column * 0,",
     ((65, MIXED, "normal", 1),)),
    (partial(scaled, "block"), SCALED, "b_scale + column // 128 * steps -> b_scale + column // 256 * steps",
     ((17, MIXED, "normal", 1),)),
    (partial(scaled, "int4"), SCALED, "tl.interleave(pair & 15, pair >> 4) -> tl.interleave(pair >> 4, pair & 15)",
     ((3, MIXED, "normal", 1),)),
    (sample, {"block": 512, "warps": 4}, "mass <= bound -> mass <= 2.0 * bound",
     ((8, MIXED, "normal", 1), (48, MIXED, SHARED, 2))),
)  # fmt: skip


def wrong(problem: Problem, source: str, asked: Sequence[Asked]) -> str:
    """What is wrong in the first of the calls in which something is."""
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for rows, regime, distribution, times in asked:
        case = problem.cases[0].with_(rows=rows, regime=regime)
        inputs = problem.inputs(case, distribution, 5, "cpu")
        calls = [(inputs, as_outputs(module.entry(*inputs))) for _ in range(times)]
        if problem.accepts is not None:
            told = problem.accepts(calls)
        else:
            told = compare(
                expected(problem, Probe("sweep", case, distribution, (5,)), 5, inputs), calls[0][1]
            ).detail
        if told:
            return f"{rows} rows, {regime}, {distribution}: {told}"
    return ""


def main() -> None:
    found: dict[str, list[str]] = {}
    for make, config, change, asked in TABLE:
        definition = definition_of(put(Path(tempfile.mkdtemp()), make()))
        family, problem = family_of(definition), problem_of(definition)
        assert family is not None
        source = family.source(problem.name, problem.cases[0], config)
        one, other = change.split(" -> ")
        assert one in source, change
        found[definition.name] = [wrong(problem, text, asked) for text in (source, source.replace(one, other))]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
