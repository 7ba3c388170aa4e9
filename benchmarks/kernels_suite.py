"""fast_p over our own suite in KernelBench's format: what the families cover, and how fast their kernels are.

    python -m benchmarks.kernels_suite                 # on a GPU: a short search for each covered task
    python -m benchmarks.kernels_suite --coverage      # anywhere: only which tasks are covered

fast_p is the share of *all* tasks, covered or not, whose best kernel is certified correct and more than p times as
fast as eager (KernelBench, arXiv 2502.10517); "low" takes the lower end of the interval. Written after every task.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from kernels.executor import LocalExecutor
from kernels.judge.contest import Pace
from kernels.judge.inputs import QUICK_GPU
from kernels.judge.judge import Judge, Request
from kernels.kernelbench import CORRECT, speedup
from kernels.ledger import Ledger, Provenance
from kernels.optimise import from_suite
from kernels.search import Budget, Ladder, Search

SUITE = Path(__file__).parent / "kernelbench_suite"
OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
THRESHOLDS = (0.0, 1.0, 1.5, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coverage", action="store_true", help="do not search")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="stop after so long; the rest counts as unsolved"
    )
    given = parser.parse_args()
    started = time.time()
    works, missed = from_suite(SUITE)
    count = len(works) + len(missed)
    result: dict[str, Any] = {
        "tasks": count, "covered": len(works), "coverage": len(works) / count, "not_covered": missed,
        "families": sorted({work.generators[0].name for work in works}), "searched": 0, "solved": {},
    }  # fmt: skip
    print(f"{len(works)} of {count} tasks are covered")

    def save() -> None:
        OUT.mkdir(parents=True, exist_ok=True)
        for bound in ("low", "point"):
            scores = [task[bound] for task in result["solved"].values()]
            result[f"fast_p_{bound}"] = {
                f"fast_{p:g}": sum(s > p or (p == 0.0 and s >= 0) for s in scores) / count for p in THRESHOLDS
            }
        (OUT / "kernels_suite.json").write_text(json.dumps(result, indent=1) + "\n")

    if given.coverage:
        result.pop("solved")
        (OUT / "kernels_suite_coverage.json").write_text(json.dumps(result, indent=1) + "\n")
        return
    ladder = Ladder(full=Request(QUICK_GPU, Pace(min_rounds=15, max_rounds=30)))
    with tempfile.TemporaryDirectory() as folder, Judge("cuda", compiled=False) as judge:
        result["environment"] = judge.environment.to_json()
        executor = LocalExecutor([judge], 12)
        for work in works:
            if time.time() - started > given.seconds:
                break
            provenance = Provenance("benchmark", judge.environment.gpu, "none")
            budget = Budget(given.trials, 60.0, given.trials, batch=given.trials)
            with Ledger(Path(folder) / work.slug) as ledger:
                found = Search(work.task, work.generators, executor, ledger, provenance, budget, ladder).run()
            result["searched"] += 1
            verdict = found.verdict
            if verdict is not None and verdict.status in CORRECT:
                result["solved"][work.slug] = {b: speedup(verdict, "eager", b) for b in ("low", "point")}
            print(work.slug, found.stopped, result["solved"].get(work.slug), flush=True)
            save()
    save()


if __name__ == "__main__":
    main()
