"""What the judge's own figures are on this machine: A against A, interval width, throughput, verdicts per hour.

    python -m benchmarks.kernels_judge [--pairs 400] [--configurations 256] [--verdicts 6] [--out FILE]

A/A: one row-softmax launch plan raced against itself in another process, with a verdict's whole statistics each
time. Throughput: configurations of row-softmax (16384×4096 bfloat16) through compile, correctness and a quick race.
Verdicts: full ones, each judged twice with other secrets; two must agree unless one is inconclusive.
Needs a CUDA GPU. Writes benchmarks/results/kernels_judge.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels.candidate import Candidate, Domain
from kernels.candidate_file import read_candidate
from kernels.executor import Job, LocalExecutor
from kernels.judge import inputs
from kernels.judge.contest import FULL, QUICK, slot_count
from kernels.judge.contestants import Replayed
from kernels.judge.judge import Judge, Request
from kernels.judge.plan import Plan
from kernels.judge.timing import MARGIN, interval
from kernels.judge.track import Track
from kernels.judge.verdict import Status
from kernels.problem import Case
from kernels.problems import named

ROOT = Path(__file__).resolve().parents[1]
CASE = Case.of("bfloat16", m=16384, n=4096)
SMALL = Case.of("float16", m=4096, n=4096)
SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def row_softmax(x, out, m, n, x_row, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVICT: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * ROWS
    column = tl.arange(0, BLOCK)
    for r in tl.static_range(ROWS):
        row = first + r
        inside = (column < n) & (row < m)
        v = tl.load(x + row * x_row + column, mask=inside, other=-float("inf"), eviction_policy=EVICT)
        v = v.to(tl.float32)
        e = tl.exp(v - tl.max(v, 0))
        tl.store(out + row * n + column, (e / tl.sum(e, 0)).to(out.dtype.element_ty), mask=inside)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        row_softmax[(triton.cdiv(m, {rows}),)](
            x, out, m, n, x.stride(0), ROWS={rows}, BLOCK=triton.next_power_of_2(n) * {wide}, EVICT="{evict}",
            num_warps={warps}, num_stages={stages},
        )
    return out
"""


def configurations(count: int) -> list[Candidate]:
    """Distinct sources: rows a program, warps, stages, eviction, block width; one in ten wrong, as in a search."""
    grid = itertools.product((1, 2, 3, 4, 6, 8), (2, 4, 8, 16), (1, 2, 3, 4), ("", "evict_first"), (1, 2))
    made = []
    for number, (rows, warps, stages, evict, wide) in enumerate(grid):
        source = SOURCE.format(rows=rows, warps=warps, stages=stages, evict=evict, wide=wide)
        if number % 10 == 9:
            source = source.replace("tl.sum(e, 0)", "4096.0")
        domain = Domain(("bfloat16",), ("contiguous",))
        made.append(Candidate(source, "entry", "triton", "own_kernel", "bitwise", domain=domain))
    return made[:count]


def own(rows: int = 1, warps: int = 8) -> Candidate:
    source = SOURCE.format(rows=rows, warps=warps, stages=2, evict="", wide=1)
    return Candidate(
        source, "entry", "triton", "own_kernel", "bitwise", domain=Domain((), ("contiguous", "padded"))
    )


def plan_of(judge: Judge, case: Case) -> Plan:
    """The launch plan of the reference kernel on one case, recorded as a verdict does it."""
    return judge.record(own(), named("softmax"), case)


def race_itself(judge: Judge, case: Case, pairs: int, rounds: int) -> dict[str, Any]:
    """`pairs` comparisons of one plan with itself in two processes: how often "faster", how wide the intervals."""
    problem, made, pace, rng = named("softmax"), plan_of(judge, case), FULL, random.Random(20261121)
    count = min(4, slot_count(problem, case, judge.board.l2_bytes, pace))
    faster = slower = 0
    widths: list[float] = []
    points: list[float] = []
    with judge.start("replay") as one, judge.start("replay") as two:
        entrants = []
        for process in (one, two):
            track = Track(process, problem, case, (), count, judge.device, judge.pool)
            entrants.append(Replayed(track, made, judge.flush_bytes, rng=rng))
            for slot in range(count):
                track.refresh(slot, judge.pool.seed(rng))
        took = [entrant.seconds([0, 1, 0]) for entrant in entrants]
        start = time.time()
        for _ in range(pairs):
            logs = []
            for _ in range(rounds):
                calls = rng.randint(8, 12)
                order = [rng.randrange(count) for _ in range(calls)]
                pair = [0, 1]
                rng.shuffle(pair)
                times = {number: entrants[number].seconds(order) for number in pair}
                logs.append(_log(times[1] / times[0]))
            found = interval(logs)
            widths.append(found.width)
            points.append(found.point)
            faster += found.low > 1 + MARGIN
            slower += found.high < 1 - MARGIN
        spent = time.time() - start
    widths.sort()
    points.sort()
    return {
        "case": str(case),
        "pairs": pairs,
        "rounds": rounds,
        "microseconds": took[0] * 1e6,
        "said_faster": faster,
        "said_slower": slower,
        "width_median": widths[len(widths) // 2],
        "width_p99": widths[int(0.99 * (len(widths) - 1))],
        "point_p1": points[int(0.01 * (len(points) - 1))],
        "point_p99": points[int(0.99 * (len(points) - 1))],
        "took_s": spent,
    }


def _log(ratio: float) -> float:
    import math

    return math.log(ratio)


def throughput(judge: Judge, count: int, threads: int) -> dict[str, Any]:
    """Configurations per GPU-hour through compile, correctness and a quick race."""
    problem = replace(named("softmax"), cases=(CASE,))
    judge.solo(problem, CASE)
    pace = replace(QUICK, max_slots=2)
    request = Request(inputs.QUICK_GPU, pace, cases=(CASE,), search=True)
    jobs = [Job(str(n), candidate, problem, request) for n, candidate in enumerate(configurations(count))]
    start = time.time()
    tally: dict[str, int] = {}
    best = (0.0, "")
    for job, verdict in LocalExecutor([judge], threads).run(jobs):
        tally[verdict.reason] = tally.get(verdict.reason, 0) + 1
        for comparison in verdict.comparisons:
            if comparison.baseline == "eager":
                best = max(best, (comparison.speedup.point, job.key))
    took = time.time() - start
    return {
        "configurations": len(jobs),
        "threads": threads,
        "took_s": took,
        "per_gpu_hour": len(jobs) / took * 3600,
        "reasons": tally,
        "best_against_eager": best[0],
    }


def verdicts(judge: Judge, names: list[str]) -> dict[str, Any]:
    """Full verdicts of known-good kernels, each twice with other secrets: how long, and whether they agree."""
    rows = []
    for name in names:
        file = read_candidate(next((ROOT / "tests" / "kernels" / "good").glob(f"{name}.*")))
        problem = named(file.problem)
        for case in problem.cases:
            judge.solo(problem, case)
        for _ in range(2):
            verdict = judge.verdict(file.candidate, problem, Request(inputs.FULL_GPU, FULL))
            print(name, verdict.status, verdict.detail, f"{verdict.took_s:.1f} s", flush=True)
            rows.append({"name": name, **verdict.to_json()})
    took = sum(row["took_s"] for row in rows)
    agree = all(
        a["status"] == b["status"] or Status.inconclusive in (a["status"], b["status"])
        for a, b in zip(rows[::2], rows[1::2], strict=True)
    )
    widths = [
        (c["candidate_s"], c["speedup"]["high"] / c["speedup"]["low"] - 1)
        for row in rows
        for c in row["comparisons"]
        if c["candidate_s"] >= 50e-6
    ]
    return {
        "verdicts": rows,
        "per_hour": 3600 * len(rows) / took,
        "agree": agree,
        "widths_at_50us": {
            "count": len(widths),
            "worst": max((w for _, w in widths), default=None),
            "over_3_percent": sum(w > 0.03 for _, w in widths),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--configurations", type=int, default=256)
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--plain", action="store_true", help="without torch.compile's baselines: starts sooner")
    parser.add_argument("--verdicts", nargs="*", default=["softmax_row", "rmsnorm_row", "copy_rows"])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernels_judge.json")
    options = parser.parse_args()
    record: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        record[name] = value
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        brief = {k: v for k, v in value.items() if k != "verdicts"} if isinstance(value, dict) else value
        print(name, json.dumps(brief), flush=True)

    with Judge("cuda", compiled=not options.plain) as judge:
        keep("environment", judge.environment.to_json())
        if options.configurations:
            keep("throughput", throughput(judge, options.configurations, options.threads))
        if options.pairs:
            keep(
                "same_against_same",
                [race_itself(judge, case, options.pairs // 2, options.rounds) for case in (CASE, SMALL)],
            )
        if options.verdicts:
            keep("full", verdicts(judge, options.verdicts))


if __name__ == "__main__":
    main()
