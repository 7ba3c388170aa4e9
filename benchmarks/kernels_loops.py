"""Loop schedules found by evolution, against gcc and clang with Polly: `python -m benchmarks.kernels_loops`.

Twelve nests of our own, one thread and then two. Each final schedule races in paired rounds, in a new order each
round, on fresh inputs. One thread is timed by its own clock, two by the wall's. Writes results/kernels_loops.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
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


def one(name: str, threads: int, trials: int, rounds: int, clang: str, known: list[str]) -> dict[str, Any]:
    """One nest's row: the search, and the race of what it found."""
    began = time.monotonic()
    court = trial.Court(nest.named(name), threads)
    made = proposers.evolve(court, trials, 1, known)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--clang", default=shutil.which("clang-19") or shutil.which("clang") or "")
    parser.add_argument(
        "--threads", type=int, nargs="*", default=[1, 2], help="only these, beside the file's others"
    )
    options = parser.parse_args()
    path = RESULTS / "kernels_loops.json"
    before = json.loads(path.read_text())["results"]["threads"] if path.exists() else {}
    results: dict[str, Any] = {
        "commit": commit(), "cc": version(compiler() or "cc"), "load_at_start": os.getloadavg()[0],
        "clang": version(options.clang) if options.clang else "none", "seeds": 1, "threads": before,
    }  # fmt: skip
    known = {name: row["actions"] for made in before.values() for name, row in made["nests"].items()}
    for threads in options.threads:
        trials = options.trials if threads == 1 else options.trials // 3
        rows: dict[str, dict[str, Any]] = {}
        for name in nest.names():
            rows[name] = one(name, threads, trials, options.rounds, options.clang, known.get(name, []))
            known[name] = rows[name]["actions"]
            others = [other for other in ("gcc", "polly") if other in rows[name]]
            means = {other: round(mean(rows, other), 3) for other in others}
            results["threads"][str(threads)] = {"commit": commit(), "geometric_mean": means, "nests": rows}
            results["load_at_end"] = os.getloadavg()[0]
            write("kernels_loops", results)


if __name__ == "__main__":
    main()
