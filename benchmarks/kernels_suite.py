"""fast_p over our own suite in KernelBench's format: what the families cover, and how fast their kernels are.

    python -m benchmarks.kernels_suite                 # on a GPU: a short search for each covered task
    python -m benchmarks.kernels_suite --coverage      # anywhere: only which tasks are covered
    python -m benchmarks.kernels_suite --tiny --only 01 11 40   # a CPU: every part once, on shrunken tasks

The next GPU minutes (one H200, about four minutes): `--trials 4 --seconds 250` with OUT at the results' folder.

fast_p is the share of *all* tasks, covered or not, whose best kernel is certified correct and more than p times as
fast as eager (KernelBench, arXiv 2502.10517); "low" takes the lower end of the interval. Written after every task.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import QUICK_GPU
from nightshift.kernels.judge.race.contest import Pace
from nightshift.kernels.loop.executor import LocalExecutor
from nightshift.kernels.loop.ledger import Ledger, Provenance
from nightshift.kernels.loop.optimise import ON_CPU
from nightshift.kernels.loop.search import Ladder, Search, SearchBudget
from nightshift.kernels.problem import ProblemError
from nightshift.kernels.suites.kernelbench import CORRECT, load_task, speedup
from nightshift.kernels.suites.suite import from_suite

SUITE = Path(__file__).parent / "kernelbench_suite"
OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
THRESHOLDS = (0.0, 1.0, 1.5, 2.0)
TINY = 40
"""Every number of a shrunken task is at most this."""


class _Shrink(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        large = type(node.value) is int and node.value > TINY
        return ast.copy_location(ast.Constant(TINY), node) if large else node


def chosen(folder: Path, only: list[str], tiny: bool) -> Path:
    """A folder of the tasks whose names begin so, shrunken if asked; those that no longer load are left out."""
    if not only and not tiny:
        return SUITE
    for path in sorted(SUITE.glob("*.py")):
        if only and not path.name.startswith(tuple(only)):
            continue
        text = path.read_text()
        target = folder / path.name
        target.write_text(ast.unparse(_Shrink().visit(ast.parse(text))) if tiny else text)
        try:
            load_task(target)
        except ProblemError as error:
            print(f"left out: {path.name}: {error}")
            target.unlink()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coverage", action="store_true", help="do not search")
    parser.add_argument("--tiny", action="store_true", help="shrunken tasks on Triton's interpreter: a dry run")
    parser.add_argument("--only", nargs="*", default=[], help="tasks whose files' names begin so")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--merge", action="store_true", help="keep what OUT already holds, search the others")
    parser.add_argument(
        "--take", nargs="*", type=Path, default=[], help="add other runs' tasks to OUT's, search none"
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="stop after so long; the rest counts as unsolved"
    )
    given = parser.parse_args()
    started = time.time()
    tasks = tempfile.TemporaryDirectory(prefix="suite-")
    works, missed = from_suite(chosen(Path(tasks.name), given.only, given.tiny))
    count = len(works) + len(missed)
    result: dict[str, Any] = {
        "tasks": count, "covered": len(works), "coverage": len(works) / count, "not_covered": missed,
        "families": sorted({work.generators[0].name for work in works}), "searched": 0, "solved": {}, "told": {},
    }  # fmt: skip
    print(f"{len(works)} of {count} tasks are covered")

    before = OUT / "kernels_suite.json"
    if given.merge and before.exists():
        kept = {k: result[k] for k in ("tasks", "covered", "families", "told")}
        result = {**json.loads(before.read_text()), **kept}
        works = [work for work in works if work.slug not in result["solved"]]
        result["searched"] = len(result["solved"])  # the others are searched again

    def save() -> None:
        OUT.mkdir(parents=True, exist_ok=True)
        for bound in ("low", "point"):
            scores = [task[bound] for task in result["solved"].values()]
            result[f"fast_p_{bound}"] = {
                f"fast_{p:g}": sum(s > p or (p == 0.0 and s >= 0) for s in scores) / count for p in THRESHOLDS
            }
        (OUT / ("kernels_suite_tiny.json" if given.tiny else "kernels_suite.json")).write_text(
            json.dumps(result, indent=1) + "\n"
        )

    if given.take:
        result = {
            **json.loads(before.read_text()),
            **{k: result[k] for k in ("tasks", "covered", "coverage", "families")},
        }
        result["not_covered"] = missed
        for path in given.take:
            found = json.loads(path.read_text())
            result["solved"] |= found["solved"]
            result.setdefault("told", {}).update(found.get("told", {}))
        result["told"] = {name: why for name, why in result["told"].items() if name not in result["solved"]}
        result["searched"] = len(result["solved"]) + len(result["told"])
        return save()
    if given.coverage:
        result.pop("solved")
        (OUT / "kernels_suite_coverage.json").write_text(json.dumps(result, indent=1) + "\n")
        return
    ladder = ON_CPU if given.tiny else Ladder(full=Request(QUICK_GPU, Pace(min_rounds=15, max_rounds=30)))
    where = "cpu" if given.tiny else "cuda"
    with tempfile.TemporaryDirectory() as folder, Judge(where, compiled=False, interpret=given.tiny) as judge:
        result["environment"] = judge.environment.to_json()
        executor = LocalExecutor([judge], 1 if given.tiny else 12)
        for work in works:
            if time.time() - started > given.seconds:
                break
            provenance = Provenance("benchmark", judge.environment.gpu, "none")
            budget = SearchBudget(given.trials, 60.0, given.trials, batch=given.trials)
            with Ledger(Path(folder) / work.slug) as ledger:
                search = Search(work.task, work.generators, executor, ledger, provenance, budget, ladder)
                found = search.run()
            result["searched"] += 1
            verdict = found.verdict
            if verdict is not None and verdict.status in CORRECT:
                result["solved"][work.slug] = {b: speedup(verdict, "eager", b) for b in ("low", "point")}
            else:
                result["told"][work.slug] = [
                    f"{o.status} {o.reason}: {o.detail[:200]}" for o in search.history[-3:]
                ]
            told = f"{verdict.status}: {verdict.detail}" if verdict is not None else "no verdict"
            print(work.slug, found.stopped, result["solved"].get(work.slug), told[:200], flush=True)
            save()
    save()


if __name__ == "__main__":
    main()
