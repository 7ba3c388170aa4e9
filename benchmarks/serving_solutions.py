"""Public solutions of a folder in FlashInfer-Bench's format, judged: theirs against ours, solution by solution.

    python -m benchmarks.serving_solutions FOLDER --until 400 --out FILE.json   # on a GPU; resumable
    python -m benchmarks.serving_solutions FOLDER --times --until 200 --out FILE.json   # then, what it accepted

FOLDER holds `definitions`, `workloads` and `solutions` as kernels.suites.definitions reads them. It may hold
`theirs.json`: by a solution's path, the status that its own harness published for it (`theirs`);
`benchmarks.serving_folder` makes one of the public history. What the result file holds is kept, but refusals by
earlier rules (`RULES`); of the rest, solutions that their harness passed come first. C++ and CUDA are built side
by side, each within its limits (`kernels.suites.extension`). A worker judges one solution at a time.

Each solution is judged twice: by our rules, in all that `kernels.suites.serving.probes` asks, and by the published
rule (an element is wrong where its absolute and its relative error are above 0.01) on its workloads alone. A
disagreement is one that our rules refuse and theirs, published or asked here, passed. `--times` races what was
accepted against the reference, one at a time.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import queue
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import serving_rows

TOLERANCE = 1e-2
MATCHED = {"moe": 0.95}
"""Of a kind of operation, the share of elements that the published rule asks for."""
EACH_S, BUILD_S = 150.0, 200.0
WORKERS = 8
RULES = 2
"""What earlier rules refused after a build is judged again. 1 called every solution in one way only."""


def published_rule(problem: Any, kind: str) -> Any:
    """The problem as FlashInfer-Bench's harness asks it: workloads with normal values, and its tolerance."""
    import torch

    from nightshift.kernels.judge.probes.inputs import Probe

    def accepts(calls: Sequence[Any]) -> str:
        inputs, outputs = calls[-1]
        for number, (mine, theirs) in enumerate(zip(outputs, problem.eager(inputs), strict=True)):
            x, y = mine.float(), theirs.float()
            same = (x == y) | (torch.isnan(x) & torch.isnan(y))
            error = (x - y).abs()
            wrong = ~same & ~((error <= TOLERANCE) | (error / (y.abs() + 1e-8) <= TOLERANCE))
            if x.numel() and float(wrong.float().mean()) > 1 - MATCHED.get(kind, 1.0):
                return f"output {number}: {int(wrong.sum())} of {x.numel()} elements"
        return ""

    def probes(problem: Any, candidate: Any, secret: bytes, scope: Any) -> tuple[Any, ...]:
        return tuple(Probe("smoke", case, "normal", (11 + k,)) for k, case in enumerate(problem.cases))

    return replace(problem, accepts=accepts, probes=probes)


class Court:
    """One worker's judge, and the problems that it has made."""

    def __init__(self, folder: Path, built: Path, device: str) -> None:
        from nightshift.kernels.judge.host.process import Limits
        from nightshift.kernels.judge.judge import Judge

        self.folder, self.device = folder, device
        interpret = device == "cpu"
        limits = Limits(import_s=60.0, call_s=40.0, all_calls_s=EACH_S)
        self.judge = Judge(
            device, interpret=interpret, limits=limits, compiled=False, quiet=built / "quiet", extensions=built
        )
        self._problems: dict[str, Any] = {}

    def problem(self, definition: Any) -> Any:
        from nightshift.kernels.suites.definitions import workloads_of
        from nightshift.kernels.suites.serving import problem_of

        if definition.name not in self._problems:
            self._problems[definition.name] = problem_of(definition, workloads_of(self.folder, definition))
        return self._problems[definition.name]

    def scope(self) -> Any:
        from nightshift.kernels.judge.probes.sizes import Scope

        gpu = self.device == "cuda"
        return Scope(1 << (31 if gpu else 26), 0, 0, 0, 0, benchmark=gpu, huge=False, repeats=4 if gpu else 2)

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Our verdict on one solution, and the published rule's."""
        from nightshift.kernels.judge.judge import Request
        from nightshift.kernels.suites.definitions import definition_of, solution_of
        from nightshift.kernels.suites.serving import candidate_of

        definition, solution = definition_of(Path(order["definition"])), solution_of(Path(order["solution"]))
        problem = self.problem(definition)
        extension = Path(order["built"]) if order.get("built") else None
        candidate = candidate_of(definition, solution, extension)
        if order.get("times"):
            return self.time(problem, candidate)
        plain = Request(self.scope(), None, static=False)
        verdict = self.judge.verdict(candidate, problem, plain)
        row: dict[str, Any] = {**_words(verdict), "rules": RULES, "not_checked": list(verdict.not_checked)[:4]}
        if problem.accepts is None and self.device == "cuda":
            asked = self.judge.verdict(candidate, published_rule(problem, definition.kind), plain)
            row["published_rule"] = (
                "PASSED" if str(asked.status) == "correct" else f"{asked.reason}: {asked.detail[:160]}"
            )
        return row

    def time(self, problem: Any, candidate: Any) -> dict[str, Any]:
        """An accepted solution against the reference, on its smallest and its largest workload."""
        from nightshift.kernels.judge.judge import Request
        from nightshift.kernels.judge.race.contest import QUICK

        cases = tuple(dict.fromkeys((problem.cases[0], problem.cases[-1])))
        pace = replace(QUICK, slot_bytes=1 << 30)
        timed = self.judge.verdict(
            candidate, problem, Request(self.scope(), pace, False, cases=cases, search=True, libraries=True)
        )
        times = [
            {"case": c.case, "baseline": c.baseline, "speedup": c.speedup.point, "candidate_s": c.candidate_s}
            for c in timed.comparisons
        ]
        return {"timing": _words(timed), "times": times}


def _words(verdict: Any) -> dict[str, Any]:
    return {
        "status": str(verdict.status),
        "reason": str(verdict.reason),
        "detail": in_words(verdict.detail)[:400],
        "stage": verdict.stage,
        "took_s": round(verdict.took_s, 2),
    }


def in_words(detail: str) -> str:
    """A refusal's case by its regime's name."""
    from nightshift.kernels.suites.serving import REGIMES

    for number, (name, _) in enumerate(REGIMES):
        detail = detail.replace(f"regime={number} ", "" if number == 0 else f"({name}) ")
    return detail.replace("workload=0 ", "")


def refused_before(row: Mapping[str, Any]) -> bool:
    """Whether earlier rules refused a solution that had been built."""
    return row.get("rules", 1) < RULES and row["status"] not in ("correct", "compile_error", "not judged")


class Round:
    """Solutions that are built side by side, and judged by workers as they are ready, until the time is over."""

    def __init__(self, args: argparse.Namespace, device: str) -> None:
        from nightshift.kernels.suites.definitions import definitions_in

        self.folder, self.out, self.times, self.device = args.folder, args.out, args.times, device
        self._end = time.monotonic() + args.until
        self.rows = serving_rows.rows_in(args.out, "solutions")
        place = args.folder / "theirs.json"
        self._theirs = json.loads(place.read_text()) if place.exists() else {}
        self._definitions = definitions_in(args.folder)[0]
        self._places = {path.stem: path for path in (args.folder / "definitions").rglob("*.json")}
        self._built = Path(os.environ.get("SERVING_BUILT", tempfile.gettempdir())) / "serving_built"
        self._built.mkdir(parents=True, exist_ok=True)
        self._lock, self._ready, self._ended = threading.Lock(), queue.Queue[Any](), threading.Event()

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def waiting(self) -> list[tuple[str, Path, Any]]:
        """What the result file does not hold yet, or holds of earlier rules; what cannot be judged gets its row."""
        from nightshift.kernels.suites.definitions import solutions_in

        found = []
        for path, solution in solutions_in(self.folder):
            key = str(path.relative_to(self.folder / "solutions"))
            if not self._wanted(self.rows.get(key)):
                continue
            if isinstance(solution, Exception):
                self.rows[key] = {"status": "not judged", "reason": "malformed", "detail": str(solution)[:300]}
            elif solution.definition not in self._definitions:
                self.rows[key] = {"status": "not judged", "reason": "no definition", "detail": solution.definition}
            elif solution.language == "cuda" and self.device == "cpu":
                self.rows[key] = {"status": "not judged", "reason": "needs a GPU", "detail": "CUDA"}
            else:
                found.append((key, path, solution))
        return sorted(
            found, key=lambda item: (self._passed(item[0]) is not True, item[0] not in self.rows, item[0])
        )

    def _wanted(self, had: Mapping[str, Any] | None) -> bool:
        if self.times:
            return had is not None and had["status"] == "correct" and "times" not in had
        if had is None or had["reason"] in ("limit", "needs a GPU"):
            return True
        return had["status"] == "machine_fault" or refused_before(had)

    def _passed(self, key: str) -> bool:
        return bool(self._theirs.get(key, {}).get("theirs") == "PASSED")

    def run(self, workers: int) -> None:
        from nightshift.kernels.suites import extension

        waiting = self.waiting()
        judges = [threading.Thread(target=self._judge) for _ in range(min(workers, max(1, len(waiting))))]
        for thread in judges:
            thread.start()
        if any(solution.language == "cuda" for _, _, solution in waiting):
            extension.make_headers(self._built / "headers")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(lambda item: self._prepare(*item), waiting))
        self._ended.set()
        for thread in judges:
            thread.join()

    def _keep(self, key: str, row: dict[str, Any], solution: Any) -> None:
        about = {"definition": solution.definition, "author": solution.author, "language": solution.language}
        with self._lock:
            before = self.rows.get(key, {}) if self.times else {}
            theirs = self._theirs.get(key, {}).get("theirs")
            self.rows[key] = {**before, **about, "theirs": theirs, **row}
            save(self.out, self.rows, self.device)

    def _prepare(self, key: str, path: Path, solution: Any) -> None:
        """Build a solution, where it is built, and put it before a worker."""
        if self.left_s < 20:
            return
        definition = str(self._places[solution.definition])
        order = {"key": key, "solution": str(path), "definition": definition, "times": self.times}
        if solution.language == "cuda":
            import torch

            from nightshift.kernels.suites import extension

            began, place = time.monotonic(), self._built / key.replace("/", "_").removesuffix(".json")
            arch, headers = "{}{}a".format(*torch.cuda.get_device_capability()), self._built / "headers"
            try:
                made = extension.build(solution.sources, place, headers, arch, min(BUILD_S, self.left_s))
            except (extension.BuildError, OSError) as error:
                if self.left_s > 2:
                    row = {"status": "compile_error", "reason": "compile_failed", "detail": str(error)}
                    self._keep(key, row, solution)
                return
            order |= {"built": str(made), "build_s": round(time.monotonic() - began, 1)}
        self._ready.put((order, solution))

    def _judge(self) -> None:
        given = [str(self.folder), "--worker", str(self._built), "--device", self.device]
        worker = serving_rows.Worker("benchmarks.serving_solutions", *given)
        while self.left_s > 5:
            try:
                order, solution = self._ready.get(timeout=0.5)
            except queue.Empty:
                if self._ended.is_set():
                    break
                continue
            left_s = self.left_s
            row = worker.ask(order, min(EACH_S, left_s))
            if row.get("reason") != "limit" or left_s > EACH_S:
                self._keep(row.pop("key"), {**row, "build_s": order.get("build_s")}, solution)
        worker.close()


def figures(rows: Mapping[str, Any]) -> dict[str, Any]:
    passed = [row for row in rows.values() if "PASSED" in (row.get("theirs"), row.get("published_rule"))]
    refused = [row for row in passed if row["status"] not in ("correct", "not judged")]
    return {
        "judged": sum(row["status"] not in ("not judged", "machine_fault") for row in rows.values()),
        "by_status": dict(collections.Counter(row["status"] for row in rows.values())),
        "by_reason": dict(collections.Counter(row["reason"] for row in rows.values())),
        "passed_by_their_harness": sum(row.get("theirs") == "PASSED" for row in rows.values()),
        "passed_by_their_rule_here": sum(row.get("published_rule") == "PASSED" for row in rows.values()),
        "refused_here_that_theirs_passed": len(refused),
        "refused_by_earlier_rules": sum(map(refused_before, rows.values())),
    }


def save(out: Path, rows: Mapping[str, Any], device: str) -> None:
    serving_rows.save(out, "serving_solutions", device, figures(rows), solutions=rows)


def main() -> None:
    parser = serving_rows.parser(__doc__)
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--times", action="store_true", help="time what the result file has as correct")
    parser.add_argument("--worker", type=Path, help="of this benchmark itself")
    args = parser.parse_args()
    import torch

    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if args.worker:
        serving_rows.serve(Court(args.folder, args.worker, device).answer)
        return
    made = Round(args, device)
    made.run(args.workers)
    save(args.out, made.rows, device)
    print(json.dumps(figures(made.rows)))


if __name__ == "__main__":
    main()
