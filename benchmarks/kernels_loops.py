"""Loop schedules found by evolution, against gcc and clang with Polly: `python -m benchmarks.kernels_loops`.

Twelve nests of our own, one thread and then two; five seeds, each from nothing. Each final schedule races in paired
rounds, in a new order each round, on fresh inputs. One thread is timed by its own clock, two by the wall's. Writes
results/kernels_loops.json after each seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import time
from collections import Counter
from typing import Any

from benchmarks.report import RESULTS, write
from nightshift.kernels.loops import nest, proposers, trial
from nightshift.kernels.schemes.native import OPTIMISED, compiler
from nightshift.version import commit


def version(command: str) -> str:
    return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def one(
    name: str, threads: int, trials: int, seed: int, rounds: int, clang: str, beginning: list[str]
) -> dict[str, Any]:
    """One nest's row: the search, and the race of what it found."""
    began = time.monotonic()
    court = trial.Court(nest.named(name), threads)
    made = proposers.evolve(court, trials, seed, beginning)
    best = proposers.best_of(made)
    assert best is not None, f"{name}: no schedule was timed"
    others = {"gcc": trial.Built(court.nest, court.nest.source, OPTIMISED)}
    if clang:
        others["polly"] = trial.polly(court.nest, clang, threads)
    searched_s = time.monotonic() - began
    speedups = court.race(best.actions, others, rounds)
    row = {
        "actions": list(best.actions),
        "trials": dict(Counter(attempt.status for attempt in made)),
        "searched_s": round(searched_s, 1),
        **{other: [round(x, 3) for x in (span.low, span.point, span.high)] for other, span in speedups.items()},
    }
    print(name, threads, row, flush=True)
    return row


def mean(rows: dict[str, dict[str, Any]], other: str) -> float:
    """Geometric mean of the speed-ups' points over another compiler."""
    return math.exp(sum(math.log(row[other][1]) for row in rows.values()) / len(rows))


def of_seed(seed: int, threads: int, options: argparse.Namespace, one_thread: dict[str, Any]) -> dict[str, Any]:
    """All nests of one seed. Searches of more threads begin with what the same seed found for one."""
    rows: dict[str, dict[str, Any]] = {}
    trials = options.trials if threads == 1 else options.trials // 3
    for name in nest.names():
        beginning = one_thread.get(name, {}).get("actions", [])
        rows[name] = one(name, threads, trials, seed, options.rounds, options.clang, beginning)
    others = [other for other in ("gcc", "polly") if all(other in row for row in rows.values())]
    return {
        "commit": commit(), "load_at_end": os.getloadavg()[0],
        "geometric_mean": {other: round(mean(rows, other), 3) for other in others}, "nests": rows,
    }  # fmt: skip


def summary(seeds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The geometric mean over each compiler: the least, the median and the most of the seeds."""
    found: dict[str, Any] = {}
    for other in ("gcc", "polly"):
        means = [made["geometric_mean"][other] for made in seeds.values() if other in made["geometric_mean"]]
        if means:
            found[other] = [min(means), statistics.median(means), max(means)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--clang", default=shutil.which("clang-19") or shutil.which("clang") or "")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5], help="these, beside the file's")
    options = parser.parse_args()
    path = RESULTS / "kernels_loops.json"
    before = json.loads(path.read_text())["results"] if path.exists() else {}
    results: dict[str, Any] = {
        "cc": version(compiler() or "cc"), "clang": version(options.clang) if options.clang else "none",
        "threads": before.get("threads", {}),
    }  # fmt: skip
    for seed in options.seeds:
        one_thread: dict[str, Any] = {}
        for threads in (1, 2):
            made = of_seed(seed, threads, options, one_thread)
            one_thread = one_thread or made["nests"]
            told = results["threads"].setdefault(str(threads), {"seeds": {}})
            told["seeds"][str(seed)] = made
            told["geometric_mean"] = summary(told["seeds"])
            write("kernels_loops", results)


if __name__ == "__main__":
    main()
