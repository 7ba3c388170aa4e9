"""What the judge's own figures are on this machine: A against A, interval width, throughput, verdicts per hour.

    python -m benchmarks.kernels_judge [--pairs 400] [--races 200] [--configurations 256] [--verdicts NAME …]
        [--seconds 120] [--commit COMMIT] [--out FILE]

same_against_same: one row-softmax launch plan against itself in another process, rounds added as in a verdict until
the interval is narrow. whole_races: the race as a verdict runs it (blended values, checked outputs), the baseline
being the candidate's own source called from Python, each race on other memory.
throughput: configurations of row-softmax (16384×4096 bfloat16) through compile, correctness and a quick race. full:
verdicts, each judged twice with other secrets, some beside each other, races alone; two must agree unless one is
inconclusive. Needs a CUDA GPU. Writes benchmarks/results/kernels_judge.json after every part.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels_close import BALLAST_BYTES
from benchmarks.kernels_compile import load
from nightshift.kernels.candidate import Candidate, Domain
from nightshift.kernels.candidate_file import read_candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.launch_plan import Plan
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.race.contest import FULL, QUICK, Race, slot_count
from nightshift.kernels.judge.race.contestants import Baseline, Replayed, Stir
from nightshift.kernels.judge.race.timing import MARGIN, WIDTH, interval
from nightshift.kernels.judge.race.track import Track
from nightshift.kernels.judge.verdict import Interval, Refusal, Status
from nightshift.kernels.loop.executor import Job, LocalExecutor
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

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


def race_itself(judge: Judge, case: Case, wanted: int, seconds: float) -> dict[str, Any]:
    """`wanted` comparisons of one plan with itself in two processes: how often "faster", how wide the intervals."""
    problem, made, pace, rng = named("softmax"), plan_of(judge, case), FULL, random.Random(20261121)
    count = min(4, slot_count(problem, case, judge.board.l2_bytes, pace))
    found: list[Interval] = []
    rounds: list[int] = []
    with judge.start("replay") as one, judge.start("replay") as two:
        entrants = []
        for process in (one, two):
            track = Track(process, problem, case, (), count, judge.device, judge.pool)
            entrants.append(Replayed(track, made, judge.flush_bytes, rng=rng))
            for slot in range(count):
                track.refresh(slot, judge.pool.seed(rng))
        took = [entrant.seconds([0, 1, 0]) for entrant in entrants]
        start = time.time()
        while len(found) < wanted and time.time() - start < seconds:
            logs: list[float] = []
            while len(logs) < pace.max_rounds:
                order = [rng.randrange(count) for _ in range(rng.randint(8, 12))]
                pair = [0, 1]
                rng.shuffle(pair)
                times = {number: entrants[number].seconds(order) for number in pair}
                logs.append(math.log(times[1] / times[0]))
                if len(logs) >= pace.min_rounds and interval(logs).width <= WIDTH:
                    break
            found.append(interval(logs))
            rounds.append(len(logs))
        spent = time.time() - start
    return {"case": str(case), "microseconds": took[0] * 1e6, "took_s": spent, **told(found, rounds)}


def race_whole(judge: Judge, case: Case, wanted: int, seconds: float) -> dict[str, Any]:
    """The whole race, as `kernels.judge.trial` sets it up, against the candidate's own source run from Python.

    Each in a process of its own and on other memory: where buffers lie in it counts too, for either side.
    """
    problem, made, rng = named("softmax"), plan_of(judge, case), random.Random(20261122)
    pace = replace(FULL, energy_s=0.0, check_every=5)
    count = slot_count(problem, case, judge.board.l2_bytes, pace) // 2 * 2
    found: list[Interval] = []
    rounds: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        itself = load(own(), folder)
    flush = judge.flush()
    start = time.time()
    while len(found) < wanted and time.time() - start < seconds:
        judge.give_back()
        ballast = torch.empty(rng.randrange(BALLAST_BYTES), dtype=torch.uint8, device=judge.device)
        with judge.start("replay") as process:
            track = Track(process, problem, case, (), count, judge.device, judge.pool)
            entrant = Replayed(track, made, judge.flush_bytes, judge.clock, True, rng)
            baseline = Baseline("itself", itself, [()] * count, flush, judge.clock, Stir(blends=True))
            (comparison,) = Race(entrant, [baseline], track, judge.board, pace, rng).run()
        del ballast
        found.append(comparison.speedup)
        rounds.append(comparison.pairs)
    spent = time.time() - start
    return {"case": str(case), "microseconds": comparison.candidate_s * 1e6, "took_s": spent, **told(found, rounds)}


def told(found: Sequence[Interval], rounds: Sequence[int]) -> dict[str, Any]:
    """What many comparisons of equals came to."""
    widths, points = sorted(x.width for x in found), sorted(x.point for x in found)
    return {
        "pairs": len(found),
        "rounds_median": sorted(rounds)[len(rounds) // 2],
        "said_faster": sum(x.low > 1 + MARGIN for x in found),
        "said_slower": sum(x.high < 1 - MARGIN for x in found),
        "width_median": widths[len(widths) // 2],
        "width_p99": widths[int(0.99 * (len(widths) - 1))],
        "over_3_percent": sum(width > WIDTH for width in widths),
        "point_p1": points[int(0.01 * (len(points) - 1))],
        "point_median": points[len(points) // 2],
        "point_p99": points[int(0.99 * (len(points) - 1))],
    }


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


def verdicts(
    judge: Judge,
    names: list[str],
    seconds: float,
    threads: int,
    scope: inputs.Scope,
    note: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Verdicts of known-good kernels, each twice with other secrets: how long, and whether they agree. `note` is
    given what is known after every verdict; none begins after `seconds`."""
    rows: list[dict[str, Any]] = []
    start = time.time()

    def jobs() -> Iterator[Job]:
        for name in names:
            file = read_candidate(next((ROOT / "tests" / "kernels" / "good").glob(f"{name}.*")))
            for _ in range(2):
                yield Job(name, file.candidate, named(file.problem), Request(scope, FULL))

    judged = LocalExecutor([judge], threads).run(jobs())
    for job, verdict in judged:
        print(job.key, verdict.status, verdict.detail, f"{verdict.took_s:.1f} s", flush=True)
        whole = verdict.to_json()
        kept = ("status", "reason", "detail", "stages", "errors", "comparisons", "left_out", "took_s")
        rows.append({"name": job.key, **{key: whole[key] for key in kept}})
        note(in_pairs(rows, scope, threads, time.time() - start))
        if time.time() - start > seconds:
            break
    return in_pairs(rows, scope, threads, time.time() - start)


def in_pairs(rows: Sequence[dict[str, Any]], scope: inputs.Scope, threads: int, took_s: float) -> dict[str, Any]:
    """What verdicts, two of each kernel, come to; `took_s`: all of them together, baselines included."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    pairs = [(found[0], found[1]) for found in by_name.values() if len(found) == 2]
    agree = all(a["status"] == b["status"] or Status.inconclusive in (a["status"], b["status"]) for a, b in pairs)
    widths = [
        (c["candidate_s"], c["speedup"]["high"] / c["speedup"]["low"] - 1)
        for row in rows
        for c in row["comparisons"]
        if c["candidate_s"] >= 50e-6
    ]
    return {
        "verdicts": rows,
        "scope": "full" if scope is inputs.FULL_GPU else "quick",
        "threads": threads,
        "took_s": took_s,
        "pairs": len(pairs),
        "raced_pairs": sum(bool(a["comparisons"] and b["comparisons"]) for a, b in pairs),
        "per_hour": 3600 * len(rows) / took_s,
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
    parser.add_argument("--races", type=int, default=200)
    parser.add_argument("--configurations", type=int, default=256)
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=120.0, help="at most, for each part that counts pairs")
    parser.add_argument("--commit", default="")
    parser.add_argument("--plain", action="store_true", help="without torch.compile's baselines: starts sooner")
    parser.add_argument("--verdicts", nargs="*", default=["softmax_row", "rmsnorm_row", "copy_rows"])
    parser.add_argument("--verdict-threads", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="verdicts on the quick plan of probes, raced in full")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernels_judge.json")
    options = parser.parse_args()
    record: dict[str, Any] = {"commit": options.commit}

    def keep(name: str, make: Callable[[], Any]) -> None:
        try:
            value = make()
        except (Refusal, RuntimeError, ValueError, OSError) as error:  # the other parts are worth having
            value = {"failed": f"{type(error).__name__}: {error}"[:500]}
        record[name] = value
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        brief = {k: v for k, v in value.items() if k != "verdicts"} if isinstance(value, dict) else value
        print(name, json.dumps(brief), flush=True)

    cases = (CASE, SMALL)
    with Judge("cuda", compiled=not options.plain) as judge:
        keep("environment", judge.environment.to_json)
        for name, race, wanted in (
            ("same_against_same", race_itself, options.pairs),
            ("whole_races", race_whole, options.races),
        ):
            if wanted:
                each = functools.partial(race, judge, wanted=wanted // 2, seconds=options.seconds / 2)
                keep(name, lambda each=each: [each(case) for case in cases])  # type: ignore[misc]
        if options.configurations:
            keep("throughput", lambda: throughput(judge, options.configurations, options.threads))
        if options.verdicts:
            scope = inputs.QUICK_GPU if options.quick else inputs.FULL_GPU

            def note(known: dict[str, Any]) -> None:
                options.out.write_text(json.dumps({**record, "full": known}, indent=1) + "\n")

            threads = options.verdict_threads
            keep("full", lambda: verdicts(judge, options.verdicts, options.seconds, threads, scope, note))


if __name__ == "__main__":
    main()
