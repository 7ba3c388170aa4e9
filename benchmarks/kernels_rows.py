"""The rows that our kernels are held to beside their peers, and what comes of them: `benchmarks.kernels_table`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels_best import best
from nightshift.kernels.generate import best_measured
from nightshift.kernels.ops.problems import ALL as PROBLEMS
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "kernels_table.json"
ANCHORS = (
    "rmsnorm", "layernorm", "softmax", "cross_entropy", "rotary_interleaved", "rotary_half", "swiglu", "reduce_sum",
    "stencil_3x3", "stencil_5x5", "particle_weights", "flash_attention", "matmul", "fused_mlp",
)  # fmt: skip
"""Problems whose timed cases are the rows that we are held to; the others' rows are told beside them."""
LIMITED = frozenset({"flash_attention", "matmul", "fused_mlp", "swiglu"})
"""Where the vendor's library is at the limit: there the intervals may overlap."""
NAMED = {
    "stencil_3x3": 0, "stencil_5x5": 0, "particle_weights": 0, "cross_entropy": 0,
    "rotary_interleaved": 128 << 20, "rotary_half": 128 << 20,
}  # fmt: skip
"""Problems of which more is asked, and from how many bytes on."""
GRADIENTS = tuple(p.name for p in PROBLEMS if p.name.endswith("_backward") or p.name == "embedding_gradient")
"""What `--only backward` stands for."""
COMPUTE = frozenset({"flash_attention", "matmul", "fused_mlp"})


def rows(only: list[str], cases: Sequence[str] = ()) -> list[tuple[str, Case]]:
    """The anchors' rows ("anchors"), those of the gradients ("backward"), of the problems named, or of all.
    `cases`: of them those whose text holds one."""
    wanted = {*only, *(GRADIENTS if "backward" in only else ()), *(ANCHORS if "anchors" in only else ())}
    found = [(p.name, c) for p in PROBLEMS for c in p.cases if not wanted or p.name in wanted]
    found = [(name, c) for name, c in found if not cases or any(text in str(c) for text in cases)]
    return sorted(found, key=lambda r: r[0] not in ANCHORS)


def dearest_first(found: list[tuple[str, Case]], last: Path = OUT) -> list[tuple[str, Case]]:
    """By the seconds that the last run spent on each row, so that several GPUs end together; new rows first."""
    spent = {}
    if last.exists():
        for row in json.loads(last.read_text())["rows"]:
            spent[row["problem"], row["case"]] = row.get("took_s", 0.0) + row.get("peers_took_s", 0.0)
    return sorted(found, key=lambda r: -spent.get((r[0], str(r[1])), math.inf))


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the issue asks for, from the rows that were certified."""
    certified = [r for r in found if r.get("certified") and r["anchor"] and r["speedup"]]
    backward = [r for r in found if r.get("certified") and r["problem"] in GRADIENTS and r["speedup"]]
    memory = [r for r in certified if r["problem"] not in COMPUTE]
    ratios = [_of_medians(r) for r in memory]
    large = [r for r in memory if r["bytes"] >= 256 << 20]
    return {
        "rows": len(found),
        "anchor_rows": len(rows(list(ANCHORS))),
        "anchor_runs": len({r["run"] for r in certified}),
        "certified": len(certified),
        "wrong": sum(r.get("status") in ("wrong", "cheat", "unstable") for r in found),
        "lowest_speedup_of_stencils_particles_cross_entropy_rotary": min(
            (told(r) for r in certified if r["problem"] in NAMED and r["bytes"] >= NAMED[r["problem"]]),
            default=None,
        ),
        "more_is_asked_of": {
            f"{r['problem']} {r['case']}": [round(told(r), 4), round(ceiling(r), 4)]
            for r in certified
            if r["problem"] in NAMED and r["bytes"] >= NAMED[r["problem"]]
        },
        "geometric_mean_over_best_peer": math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None,
        "slower_than_best_peer": losing(certified),
        "backward_rows": len(rows(["backward"])),
        "backward_runs": len({r["run"] for r in backward}),
        "backward_certified": len(backward),
        "backward_slower_than_best_peer": losing(backward),
        "of_copy_from_256_mib": {f"{r['problem']} {r['case']}": round(r["of_copy"], 4) for r in large},
    }


def _of_medians(row: dict[str, Any]) -> float:
    return float(row["peers_us"][row["best_peer"]] / row["ours_us"])


def told(row: dict[str, Any]) -> float:
    """The speed-up that a row is told with. A few rounds in which a peer was held up carry the race's point, which
    is made of every round's ratio; the medians they do not."""
    return min(float(row["speedup"][1]), _of_medians(row))


def ceiling(row: dict[str, Any]) -> float:
    """What a mere pass over the row's bytes in the same run reaches over the best peer: a copy, or an update in
    place, whichever was faster."""
    return float(row["peers_us"][row["best_peer"]] / min(row["copy_us"], row.get("in_place_us", math.inf)))


def losing(certified: list[dict[str, Any]]) -> list[str]:
    """The rows that are slower than their best peer."""
    return [
        f"{r['problem']} {r['case']}"
        for r in certified
        if (r["speedup"][2] < 1.0 if r["problem"] in LIMITED else r["speedup"][1] < 1.0)
    ]


def swept(found: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Rows without a verdict, or whose tables hold what is 3 % faster than what was judged: the best time of their
    tables. Quick looks, without a peer in the same run."""
    judged = {(r["problem"], r["case"]): r["ours_us"] for r in found if r.get("certified")}
    told = []
    for (problem, case), choices in zip(rows([]), map(_fastest(folder), rows([])), strict=True):
        if choices is None or judged.get((problem, str(case)), math.inf) < choices.seconds * 1.03e6:
            continue
        size = named(problem).compulsory_bytes(case)
        told.append(
            {
                "problem": problem,
                "case": str(case),
                "anchor": problem in ANCHORS,
                "ours_us": round(choices.seconds * 1e6, 2),
                "gigabytes_per_s": round(size / choices.seconds / 1e9),
                "family": choices.family,
                "config": dict(choices.config),
            }
        )
    return told


def _fastest(folder: Path) -> Any:
    tables = [item for part in sorted(folder.glob("*.json")) for item in best(json.loads(part.read_text()), 1)]

    def of(row: tuple[str, Case]) -> best_measured.BestMeasured | None:
        fitting = [k for k in tables if (k.problem, k.case) == row]
        return min(fitting, key=lambda k: k.seconds, default=None)

    return of


def resummarise(path: Path) -> None:
    """Write the summary of a results file again, and what only the tables know."""
    record = json.loads(path.read_text())
    for row in record["rows"]:
        if row.get("speedup"):
            row["told"] = told(row)
    record["summary"] = summary(record["rows"])
    record["swept"] = swept(record["rows"], ROOT / "benchmarks" / "results" / "kernels_tables")
    path.write_text(json.dumps(record, indent=1) + "\n")
