"""Public solutions of a folder in FlashInfer-Bench's format, judged: theirs against ours, solution by solution.

    python -m benchmarks.serving_solutions FOLDER --until 400 --out FILE.json   # on a GPU; resumable
    python -m benchmarks.serving_solutions FOLDER --times --until 200 --out FILE.json   # then, what it accepted

FOLDER holds `definitions`, `workloads` and `solutions` as kernels.suites.definitions reads them. It may hold
`theirs.json`: by a solution's path, the status that its own harness published for it (`theirs`). What the result
file already holds is kept; of what is left, solutions that their harness passed come first. C++ and CUDA are built
side by side, each within its limits (`kernels.suites.extension`). Workers are processes of one solution at a time.

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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-2
MATCHED = {"moe": 0.95}
"""Of a kind of operation, the share of elements that the published rule asks for."""
EACH_S, BUILD_S = 150.0, 200.0
WORKERS = 8


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
        row: dict[str, Any] = {**_words(verdict), "not_checked": list(verdict.not_checked)[:4]}
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


def work(folder: Path, built: Path, device: str) -> None:
    """A worker: one order a line comes in, one row a line goes out."""
    from nightshift.kernels.problem import ProblemError

    court = Court(folder, built, device)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            row = court.answer(order)
        except ProblemError as error:
            row = {"status": "not judged", "reason": "unfit", "detail": str(error)[:400]}
        except Exception as error:  # noqa: BLE001  one solution's row, and the rest is judged
            row = {"status": "not judged", "reason": "judge", "detail": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps({"key": order["key"], **row}), file=out, flush=True)


class Worker:
    """A worker's process, started again where it ends or takes too long."""

    def __init__(self, folder: Path, built: Path, device: str) -> None:
        self._command = [sys.executable, "-m", "benchmarks.serving_solutions", str(folder), "--worker", str(built)]
        self._command += ["--device", device]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, order: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            self._line(120.0)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._line(limit_s)
        if line is None:
            self.close()
            return {
                "key": order["key"],
                "status": "not judged",
                "reason": "limit",
                "detail": f"{limit_s:.0f} s over",
            }
        made: dict[str, Any] = json.loads(line)
        return made

    def _line(self, limit_s: float) -> str | None:
        assert self._process is not None
        assert self._process.stdout is not None
        found: queue.Queue[str] = queue.Queue()
        threading.Thread(
            target=lambda out: found.put(out.readline()), args=[self._process.stdout], daemon=True
        ).start()
        try:
            return found.get(timeout=limit_s) or None
        except queue.Empty:
            return None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def judge_all(folder: Path, out: Path, device: str, until_s: float, each: int, times: bool) -> dict[str, Any]:
    """Build and judge what the result file does not hold yet, until the time is over."""
    import torch

    from nightshift.kernels.suites.definitions import definitions_in, solutions_in

    start = time.monotonic()
    rows: dict[str, Any] = json.loads(out.read_text())["solutions"] if out.exists() else {}
    theirs = json.loads((folder / "theirs.json").read_text()) if (folder / "theirs.json").exists() else {}
    definitions, _ = definitions_in(folder)
    places = {path.stem: path for path in (folder / "definitions").rglob("*.json")}
    built = Path(os.environ.get("SERVING_BUILT", tempfile.gettempdir())) / "serving_built"
    built.mkdir(parents=True, exist_ok=True)
    arch = "{}{}{}".format(*torch.cuda.get_device_capability(), "a") if device == "cuda" else ""
    waiting = []
    for path, solution in solutions_in(folder):
        key = str(path.relative_to(folder / "solutions"))
        had = rows.get(key, {})
        again = had.get("status") in (None, "machine_fault") or had.get("reason") == "limit"
        if not (had.get("status") == "correct" and "times" not in had if times else again):
            continue
        if isinstance(solution, Exception):
            rows[key] = {"status": "not judged", "reason": "malformed", "detail": str(solution)[:300]}
        elif solution.definition not in definitions:
            rows[key] = {"status": "not judged", "reason": "no definition", "detail": solution.definition}
        elif solution.language == "cuda" and device == "cpu":
            rows[key] = {"status": "not judged", "reason": "needs a GPU", "detail": "CUDA"}
        else:
            waiting.append((key, path, solution))
    waiting.sort(key=lambda item: (theirs.get(item[0], {}).get("theirs") != "PASSED", item[0]))
    lock, ready, ended = threading.Lock(), queue.Queue[Any](), threading.Event()

    def keep(key: str, row: dict[str, Any], solution: Any) -> None:
        about = {"definition": solution.definition, "author": solution.author, "language": solution.language}
        with lock:
            before = rows.get(key, {}) if times else {}
            rows[key] = {**before, **about, "theirs": theirs.get(key, {}).get("theirs"), **row}
            save(out, rows, device)

    def prepare(item: Any) -> None:
        key, path, solution = item
        left = until_s - (time.monotonic() - start)
        if left < 20:
            return
        order = {"key": key, "solution": str(path), "definition": str(places[solution.definition]), "times": times}
        if solution.language == "cuda":
            from nightshift.kernels.suites import extension

            place = built / key.replace("/", "_").removesuffix(".json")
            began = time.monotonic()
            try:
                made = extension.build(solution.sources, place, built / "headers", arch, min(BUILD_S, left))
            except (extension.BuildError, OSError) as error:
                if time.monotonic() - start < until_s - 2:
                    keep(
                        key, {"status": "compile_error", "reason": "compile_failed", "detail": str(error)}, solution
                    )
                return
            order |= {"built": str(made), "build_s": round(time.monotonic() - began, 1)}
        ready.put((order, solution))

    def judge() -> None:
        worker = Worker(folder, built, device)
        while True:
            left = until_s - (time.monotonic() - start)
            try:
                order, solution = ready.get(timeout=0.5)
            except queue.Empty:
                if ended.is_set() or left < 5:
                    break
                continue
            if left > 5:
                row = worker.ask(order, min(EACH_S, left))
                if row.get("reason") != "limit" or left > EACH_S:
                    row.pop("key")
                    keep(order["key"], {**row, "build_s": order.get("build_s")}, solution)
        worker.close()

    judges = [threading.Thread(target=judge) for _ in range(min(each, max(1, len(waiting))))]
    for thread in judges:
        thread.start()
    if any(item[2].language == "cuda" for item in waiting):
        from nightshift.kernels.suites import extension

        extension.make_headers(built / "headers")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(prepare, waiting))
    ended.set()
    for thread in judges:
        thread.join()
    return save(out, rows, device)


def save(out: Path, rows: Mapping[str, Any], device: str) -> dict[str, Any]:
    from nightshift.kernels.judge.environment import environment
    from nightshift.version import commit

    judged = [row for row in rows.values() if row["status"] not in ("not judged", "machine_fault")]
    passed = [
        row for row in rows.values() if row.get("theirs") == "PASSED" or row.get("published_rule") == "PASSED"
    ]
    result = {
        "benchmark": "serving_solutions",
        "commit": commit() or "unknown",
        "environment": environment(device).to_json(),
        "judged": len(judged),
        "by_status": dict(collections.Counter(row["status"] for row in rows.values())),
        "by_reason": dict(collections.Counter(row["reason"] for row in rows.values())),
        "passed_by_their_harness": sum(row.get("theirs") == "PASSED" for row in rows.values()),
        "passed_by_their_rule_here": sum(row.get("published_rule") == "PASSED" for row in rows.values()),
        "refused_here_that_theirs_passed": sum(row["status"] not in ("correct", "not judged") for row in passed),
        "solutions": dict(sorted(rows.items())),
    }
    part = out.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(out)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--until", type=float, default=1e9, help="seconds")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--times", action="store_true", help="time what the result file has as correct")
    parser.add_argument("--worker", type=Path, help="of this benchmark itself")
    args = parser.parse_args()
    import torch

    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if args.worker:
        work(args.folder, args.worker, device)
        return
    made = judge_all(args.folder, args.out, device, args.until, args.workers, args.times)
    print(json.dumps({name: value for name, value in made.items() if name not in ("solutions", "environment")}))


if __name__ == "__main__":
    main()
