"""Is one element that is off by one unit in the last place refused, in every operation, and is nothing good
refused?

    TRITON_INTERPRET=1 python -m benchmarks.kernels_ulp [--only PROBLEM …] [--good] [--out NAME]

On the CPU, without a race. Of every reference problem, and of a convolution in KernelBench's format, a good
candidate of `tests/kernels/good` is taken, and one element of one output is moved by one ULP: at a drawn place, at
the first, the last and the first of the last tile of 128; only in large outputs (more elements than half of the
sweep's largest); only where one of the last two axes is not whole tiles. They meet the exact stage of the judge's
plan alone. The drawn place is also judged by all of the plan but its exact probes, as the judge was before, for
each family's first operation. `good`: the unchanged candidates, held to the same probes; with `--good` every
candidate of that folder that this device can show, through the whole judge.

A family counts by its first operation (the one with its name, where there is one): refused where that refuses every
corruption of every output. All its other operations are asked about the drawn place, and counted by themselves.
Writes benchmarks/results/kernels_ulp.json; with `--only`, rows of other problems in it stay.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.report import RESULTS, write
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.gallery import Piece, read_gallery, show
from nightshift.kernels.judge.host.process import Limits
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER, Probe, plan
from nightshift.kernels.judge.verdict import Verdict
from nightshift.kernels.ops.problems import ALL
from nightshift.kernels.problem import Case, Problem
from nightshift.kernels.suites.kernelbench import load_task

GOOD = Path(__file__).parents[1] / "tests" / "kernels" / "good"
LIMITS = Limits(import_s=300.0, call_s=300.0, memory_bytes=3 << 30, scratch_bytes=64 << 20, file_bytes=64 << 20)
SCOPE = replace(CPU, max_bytes=1 << 16, base_bytes=1 << 13, max_rows=96, largest=320)
SECRET = b"one unit in the last place"
TILE = 128

PLACES = {
    "drawn": "7919 * x.numel() % 10007 * 31 % x.numel()",
    "first": "0",
    "last": "x.numel() - 1",
    "tail": f"(x.numel() - 1) // {TILE} * {TILE}",
}
CONDITIONS = {
    "always": "True",
    "large": "x.numel() > {large}",
    "ragged": "any(n % 16 for n in inputs[0].shape[-2:])",
}
CORRUPTIONS = (*(("always", place) for place in PLACES), ("large", "last"), ("ragged", "last"))

_GLUE = """

def nightshift_moved(*inputs):
    import torch
    given, changed = inputs, {mutates}
    if changed:
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    made = {entry}(*given)
    made = [made] if isinstance(made, torch.Tensor) else made
    outputs = [given[i] for i in changed] if changed else list(made)
    x = outputs[{output} % len(outputs)]
    if x.numel() and ({condition}):
        place, at = {place}, []
        for size in reversed(x.shape):
            at.append(place % size)
            place //= size
        at = tuple(reversed(at))
        same = {{1: torch.int8, 2: torch.int16, 4: torch.int32}}[x.element_size()]
        x = x.contiguous()
        if bool(torch.isfinite(x[at])):
            x.view(same)[at] += 1
        outputs[{output} % len(outputs)] = x
    return tuple(outputs)
"""


def moved(candidate: Candidate, condition: str, place: str, output: int = 0) -> Candidate:
    """The candidate with one element of an output one ULP higher, where the condition holds."""
    glue = _GLUE.format(
        entry=candidate.entry,
        mutates=tuple(candidate.mutates),
        condition=condition,
        place=PLACES[place],
        output=output,
    )
    return replace(
        candidate,
        source=candidate.source + glue,
        entry="nightshift_moved",
        kind="library",
        mutates=(),
        differentiable=False,
    )


CONVOLUTION = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(2, 5, 17, 19)]


def get_init_inputs() -> list[int]:
    return [5, 7]
"""
_CONVOLVED = """import torch


def entry(x, weight, bias):
    return torch.nn.functional.conv2d(x, weight, bias, padding=1)
"""


def convolution() -> tuple[Problem, Candidate]:
    """A convolution as a suite brings it, and a good candidate for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "convolution.py"
        path.write_text(CONVOLUTION)
        task = load_task(path)
    candidate = Candidate(_CONVOLVED, "entry", "python", "library", "bitwise")
    return replace(task.problem, name="convolution", family="convolution"), candidate


def good_candidate(pieces: Sequence[Piece], problem: Problem) -> Candidate:
    """The first of the folder for it, torch's own before Triton's, whose interpreter is slow."""
    fitting = [piece.file.candidate for piece in pieces if piece.file.problem == problem.name]
    return min(fitting, key=lambda candidate: candidate.language != "python")


def judged(judge: Judge, candidate: Candidate, problem: Problem, whole: bool = False) -> Verdict:
    """By the smoke and exact stages of its plan; by all of it with `whole`, or where every answer is exact."""

    def asked(*of: Any) -> tuple[Probe, ...]:
        return tuple(probe for probe in plan(*of) if whole or problem.exact or probe.stage in ("smoke", "exact"))

    with mock.patch.object(inputs, "plan", asked):
        return judge.verdict(candidate, problem, Request(SCOPE, None, static=False), SECRET)


def threshold(problem: Problem, candidate: Candidate) -> int:
    """Half as many elements as the largest output has among the cases of the plan."""
    probes: Sequence[Probe] = plan(problem, candidate, SECRET, SCOPE)
    sizes = {probe.case.with_(dtype=problem.dtypes[0], layout="contiguous") for probe in probes}
    large = max(sizes, key=problem.compulsory_bytes)
    return problem.eager(problem.inputs(large, "normal", 1, "cpu"))[0].numel() // 2


def told(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status.value,
        "reason": verdict.reason.value,
        "stage": verdict.stage,
        "detail": verdict.detail[:160],
    }


def rows_of(judge: Judge, problem: Problem, candidate: Candidate, corruptions: Sequence[tuple[str, str]]) -> Any:
    """The good candidate, and each corruption with and without the exact probes."""
    start = judged(judge, replace(candidate, differentiable=False), problem)
    found: dict[str, Any] = {"family": problem.family, "good": told(start), "compared": start.exact["compared"]}
    found["doubted"] = start.exact["doubted"]
    found |= {"refused": {}, "without": {}, "details": {}, "details_without": {}}
    large = threshold(problem, candidate)
    outputs = len(problem.eager(problem.inputs(_small(problem), "normal", 1, "cpu")))
    for condition, place in corruptions:
        for output in range(outputs if (condition, place) == ("always", "drawn") else 1):
            name = f"{condition}, {place}" + (f", output {output}" if output else "")
            bad = moved(candidate, CONDITIONS[condition].format(large=large), place, output)
            now = judged(judge, bad, problem)
            found["refused"][name] = now.refused
            found["details"][name] = told(now)
            if (condition, place) == CORRUPTIONS[0] and len(corruptions) > 1:
                without = judged(judge, replace(bad, exact=False), problem, whole=True)
                found["without"][name] = without.refused
                found["details_without"][name] = told(without)
    return found


def _small(problem: Problem) -> Case:
    case = problem.cases[0]
    sizes = {axis.name: max(axis.low, 2 * axis.multiple) for axis in problem.axes}
    return Case.of(case.dtype, case.layout, **{**case.sizes, **sizes}) if case.sizes != {"task": 1} else case


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """What was refused, by family and by operation, and every corruption that was missed, by name."""
    missed = {name: [what for what, refused in row["refused"].items() if not refused] for name, row in rows.items()}
    families = {row["family"]: missed[name] for name, row in rows.items() if row["first"]}
    every = [refused for row in rows.values() for refused in row["refused"].values()]
    without = [refused for row in rows.values() for refused in row["without"].values()]
    return {
        "families": len(families),
        "families_refused": sum(not found for found in families.values()),
        "families_missed": {name: found for name, found in families.items() if found},
        "operations": len(rows),
        "operations_refused": sum(not found for found in missed.values()),
        "operations_missed": {name: found for name, found in missed.items() if found},
        "corruptions": len(every),
        "corruptions_refused": sum(every),
        "drawn": len(without),
        "drawn_refused_without_exact_probes": sum(without),
        "good": len(rows),
        "good_refused": sorted(name for name, row in rows.items() if row["good"]["status"] != "correct"),
    }


def gallery(judge: Judge) -> dict[str, Any]:
    """Every good candidate of the folder, as the judge's own examination shows them."""
    refused, doubted, count = [], {}, 0
    for piece in read_gallery(GOOD, "cpu"):
        scope = INTERPRETER if piece.file.candidate.language == "triton" else CPU
        shown = show(judge, piece, scope, static=True, pace=None, secret=SECRET)
        count += 1
        if not shown.right:
            refused.append(f"{piece.name}: {shown.verdict.reason}: {shown.verdict.detail[:160]}")
        if shown.verdict.exact.get("doubted"):
            doubted[piece.name] = dict(shown.verdict.exact["doubted"])
    return {"candidates": count, "refused": refused, "doubted": doubted}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--good", action="store_true")
    parser.add_argument("--out", default="kernels_ulp")
    asked = parser.parse_args()
    pieces = read_gallery(GOOD, "cpu")
    pairs = [(problem, good_candidate(pieces, problem)) for problem in ALL] + [convolution()]
    firsts = {problem.family: problem.name for problem, _ in reversed(pairs)}
    firsts |= {problem.name: problem.name for problem, _ in pairs if problem.name == problem.family}
    stored = RESULTS / f"{asked.out}.json"
    results = json.loads(stored.read_text())["results"] if asked.only and stored.exists() else {"operations": {}}
    rows: dict[str, Any] = results["operations"]
    with Judge("cpu", interpret=True, limits=LIMITS) as judge:
        for problem, candidate in pairs:
            if asked.only and problem.name not in asked.only:
                continue
            first = firsts[problem.family] == problem.name
            found = rows_of(judge, problem, candidate, CORRUPTIONS if first else CORRUPTIONS[:1])
            rows[problem.name] = {"first": first, **found}
            print(problem.name, rows[problem.name]["refused"], rows[problem.name]["without"], flush=True)
        results |= {"summary": summary(rows), "operations": rows}
        if asked.good:
            results["good"] = gallery(judge)
    write(asked.out, results)


if __name__ == "__main__":
    main()
