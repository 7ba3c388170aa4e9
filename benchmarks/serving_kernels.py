"""Our kernels for serving's definitions: judged, tuned, and raced against torch's own ways to compute them.

    python -m benchmarks.serving_kernels FOLDER --until 300 --out FILE.json    # on a GPU; resumable

FOLDER is read as kernels.suites.definitions reads it. Of each definition that one of `kernels.ops.serving.families`
fits, some of the kernel's configurations are compiled side by side and timed one after the other. Where FILE.json
has a row that other code made (`code_sha256`) and that was faster, its configuration is taken instead. The fastest
is judged in full on all workloads, and raced on the smallest and the largest: of `ROWS` lines where none is
published. A workload is judged but not raced where one call of the reference takes longer than `REFERENCE_S`.
Baselines: the reference as written, the same under torch.compile (`COMPILED`), and `benchmarks.serving_baselines`.

With `--key PRIVATE` (`nightshift kernels keygen`) accepted kernels get certificates, in a folder beside FILE.json.
A worker is a process; a file keeps each from racing beside the others' work.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import math
import queue
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import serving_rows

ORDER = (
    "decode", "norm", "prefill", "softmax", "silu", "rotary", "experts", "delta", "embedding", "sample", "mamba",
    "product", "topk", "latent_decode", "latent_prefill",
)  # fmt: skip
"""Kinds of kernels, each in turn: a definition of every kind before the second of any."""
COMPILED = ("norm", "softmax", "mamba", "rotary", "silu", "embedding", "topk")
"""Kinds with a reference that torch.compile compiles as one graph. Others synchronise in every token."""
CONFIGURATIONS, TIMED, TURNS = 12, 21, 3
ROWS = (64, 16)
REFERENCE_S = 0.3
EACH_S, WORKERS, COMPILERS = 240.0, 8, 4
LIBRARIES = ("flashinfer",)
FIT = ("faster", "slower", "inconclusive", "correct")
AGAIN = ("not judged", "machine_fault")


def cases_of(definition: Any, workloads: list[Any], device: str) -> tuple[Any, list[Any], list[str]]:
    """The problem, its cases worth racing (the smallest and the largest), and in words those that are too slow."""
    from benchmarks.serving_baselines import libraries
    from nightshift.kernels.suites.serving import problem_of

    problem = replace(problem_of(definition, workloads), libraries=libraries(definition))
    tried = [one for one in problem.cases if one["workload"]]
    raced: list[Any] = []
    slow = []
    for one in tried or [problem.cases[0].with_(rows=rows, workload=0) for rows in ROWS]:
        took_s = _reference_s(problem, one, device)
        if took_s > REFERENCE_S:
            slow.append(f"{one}: the reference takes {took_s:.1f} s")
        elif tried or not raced:
            raced.append(one)
    if not tried:
        problem = replace(problem, cases=(*problem.cases, *raced))
    return problem, list(dict.fromkeys((*raced[:1], *raced[-1:]))), slow


def _reference_s(problem: Any, case: Any, device: str) -> float:
    import torch

    inputs = problem.inputs(case, "normal", 1, device)
    best = math.inf
    for _ in range(2):
        start = time.monotonic()
        problem.eager(inputs)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.monotonic() - start)
        if best < REFERENCE_S / 10:
            break
    return best


class Court:
    """One worker's judges, made when they are needed."""

    def __init__(self, folder: Path, shared: Path, device: str, key: Path | None, certificates: Path) -> None:
        self.folder, self.shared, self.device = folder, shared, device
        self.key, self.certificates = key, certificates
        self._stack = contextlib.ExitStack()
        self._judges: dict[bool, Any] = {}

    def judge(self, compiled: bool) -> Any:
        from nightshift.kernels.judge.judge import Judge

        if compiled not in self._judges:
            made = Judge(
                self.device, interpret=self.device == "cpu", compiled=compiled, quiet=self.shared / "quiet"
            )
            self._judges[compiled] = self._stack.enter_context(made)
        return self._judges[compiled]

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """A definition's kernel: tuned, judged and raced."""
        from nightshift.kernels.generate.template import candidate
        from nightshift.kernels.judge.judge import Request
        from nightshift.kernels.judge.probes.sizes import Scope
        from nightshift.kernels.judge.race.contest import QUICK
        from nightshift.kernels.ops.serving.families import family_of
        from nightshift.kernels.suites.definitions import definition_of, workloads_of

        began = time.monotonic()
        definition = definition_of(Path(order["definition"]))
        family = family_of(definition)
        assert family is not None
        court = self.judge(family.kernel.name in COMPILED)
        with court.quiet.shared():  # nothing of another worker's race may find the GPU busy
            problem, raced, slow = cases_of(definition, workloads_of(self.folder, definition), self.device)
        gpu = self.device == "cuda"
        scope = Scope(1 << (31 if gpu else 20), 0, 0, 0, 0, benchmark=gpu, huge=False, repeats=4 if gpu else 2)
        pace = replace(QUICK, slot_bytes=2 << 30) if gpu and raced else None
        case = (raced or problem.cases)[-1]
        known = order["config"]
        tried = [] if known else self._tried(court, problem, family, raced if gpu else [])
        best = known or min(tried, key=lambda item: item[0])[1]
        tuned_s = time.monotonic() - began
        chosen = candidate(family, problem.name, case, best)
        verdict = court.verdict(chosen, problem, Request(scope, pace, cases=tuple(raced)))
        row = {
            "kernel": family.kernel.name,
            "config": dict(best),
            "not_raced": [f"{x.baseline}: {x.why.splitlines()[0][:120]}" for x in verdict.left_out] + slow,
            "tried": [[_micro(seconds), dict(c)] for seconds, c in tried],
            "beside": self._beside(court, problem, chosen, raced, verdict) if gpu else [],
            "tuned_s": round(tuned_s, 1),
            "took_s": round(time.monotonic() - began, 1),
            **_verdict(verdict, problem, raced),
        }
        if self.key is not None and str(verdict.status) in FIT:
            row["certificate"] = self._certify(verdict, chosen, problem)
        return row

    def _beside(
        self, court: Any, problem: Any, chosen: Any, raced: Sequence[Any], verdict: Any
    ) -> list[dict[str, Any]]:
        """Times, by the race's clock, of libraries that the judge did not race because they are less exact."""
        from nightshift.kernels.judge.host.replay import timed

        refused = {(x.case, x.baseline): x.why for x in verdict.left_out if "computes something else" in x.why}
        made = []
        for case in raced:
            inputs = problem.inputs(case, "normal", 1, self.device)
            for name, function in problem.libraries.items():
                if (str(case), name) not in refused:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    ours = partial(serving_rows.entry_of(chosen.source, Path(folder), 0), *inputs)
                    theirs, flush = partial(function, *inputs), court.flush()
                    ours(), theirs()
                    took: tuple[list[float], list[float]] = ([], [])
                    with court.quiet.alone():
                        for _ in range(TURNS):
                            for call, seconds in zip((ours, theirs), took, strict=True):
                                seconds.extend(timed([call] * TIMED, flush, tries=3)[0])
                mine, other = map(statistics.median, took)
                row = {"baseline": name, "why": refused[str(case), name][:200], "speedup": round(other / mine, 4)}
                made.append({"case": str(case), **row, "candidate_us": _micro(mine)})
        return made

    def _tried(
        self, court: Any, problem: Any, family: Any, raced: Sequence[Any]
    ) -> list[tuple[float, Mapping[str, Any]]]:
        """(geometric mean of the seconds, configuration): compiled side by side, timed one after the other."""
        from nightshift.kernels.generate.template import candidate
        from nightshift.kernels.judge.host.replay import timed

        case = (raced or problem.cases)[-1]
        space = family.space(problem.name, case)
        configs = space.configs[:: max(1, len(space) // CONFIGURATIONS)][:CONFIGURATIONS]
        if not raced:
            return [(math.inf, configs[0])]
        given = [problem.inputs(one, "normal", 1, self.device) for one in raced]

        def first(number: int) -> Callable[..., Any] | None:
            source = candidate(family, problem.name, case, configs[number]).source
            try:
                entry = serving_rows.entry_of(source, Path(folder), number)
                for inputs in given:
                    entry(*inputs)
            except Exception:  # noqa: BLE001  a configuration that the GPU has no room for
                return None
            return entry

        with (
            tempfile.TemporaryDirectory() as folder,
            court.quiet.shared(),
            concurrent.futures.ThreadPoolExecutor(COMPILERS) as pool,
        ):
            ready = list(pool.map(first, range(len(configs))))
        found, flush = [], court.flush()
        for config, entry in zip(configs, ready, strict=True):
            if entry is None:
                found.append((math.inf, config))
                continue
            with court.quiet.alone():  # by the race's clock: what an empty cache costs differs by configuration
                took = [timed([partial(entry, *inputs)] * TIMED, flush, tries=2)[0] for inputs in given]
            found.append((math.exp(statistics.fmean(math.log(statistics.median(one)) for one in took)), config))
        return found

    def _certify(self, verdict: Any, candidate: Any, problem: Any) -> str:
        from nightshift.collectors.seal import Signer
        from nightshift.kernels.certification.certificate import issue
        from nightshift.version import commit

        assert self.key is not None
        signer = Signer.from_file(self.key)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        name = f"{problem.name.removeprefix('serving/')}.json"
        made = issue(verdict, candidate, problem, signer, now, commit() or "unknown")
        self.certificates.mkdir(exist_ok=True)
        (self.certificates / name).write_text(json.dumps(made, indent=1) + "\n")
        return name


def _micro(seconds: float) -> float | None:
    return round(seconds * 1e6, 2) if math.isfinite(seconds) else None


def _verdict(verdict: Any, problem: Any, raced: list[Any]) -> dict[str, Any]:
    case = {str(case): case for case in raced}
    return {
        "status": str(verdict.status),
        "reason": str(verdict.reason),
        "detail": verdict.detail[:300],
        "times": [
            {
                "case": c.case,
                "baseline": c.baseline,
                "tier": c.tier,
                "speedup": round(c.speedup.point, 4),
                "low": round(c.speedup.low, 4),
                "candidate_us": _micro(c.candidate_s),
                "bytes_per_s": round(problem.compulsory_bytes(case[c.case]) / c.candidate_s),
            }
            for c in verdict.comparisons
            if c.case in case
        ],
    }


def figures(rows: Mapping[str, Any], fitting: int) -> dict[str, Any]:
    right = [row for row in rows.values() if row["status"] in FIT]
    worst: dict[str, list[float]] = {}
    for row in right:
        by_case: dict[str, list[float]] = {}
        for time_ in (*row["times"], *row.get("beside", ())):
            by_case.setdefault(time_["case"], []).append(time_["speedup"])
        worst.setdefault(row["kernel"], []).extend(min(found) for found in by_case.values())
    every = [ratio for ratios in worst.values() for ratio in ratios]
    return {
        "definitions_with_a_kernel": fitting,
        "judged": sum(row["status"] != "not judged" for row in rows.values()),
        "correct": len(right),
        "certified": sum("certificate" in row for row in rows.values()),
        "faster_than_all_baselines": sum(row["status"] == "faster" for row in rows.values()),
        "over_the_best_baseline": _mean(every),
        "over_the_best_baseline_by_kernel": {name: _mean(found) for name, found in sorted(worst.items())},
        "below_0.97": sum(ratio < 0.97 for ratio in every),
        "over_libraries_by_kernel": _over_libraries(right),
    }


def _over_libraries(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """By library and kernel: where it was raced, and beside, where it is less exact than a race asks for."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for time_ in (*row["times"], *row.get("beside", ())):
            if time_["baseline"] in LIBRARIES:
                found.setdefault(f"{time_['baseline']}: {row['kernel']}", []).append(time_["speedup"])
    return {name: _mean(ratios) for name, ratios in sorted(found.items())}


def _mean(ratios: list[float]) -> float | None:
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3) if ratios else None


def code_sha256() -> str:
    """Of all code that judges or makes a kernel of serving."""
    folder = serving_rows.ROOT / "nightshift" / "kernels"
    paths = [
        path for part in ("judge", "suites", "generate", "ops/serving") for path in (folder / part).rglob("*.py")
    ]
    texts = [f"{path.relative_to(folder)}\n{path.read_text()}" for path in sorted(paths)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def judge_all(args: argparse.Namespace) -> dict[str, Any]:
    """Rows of the definitions that the result file does not hold yet, until the time is over."""
    from nightshift.kernels.ops.serving.families import family_of
    from nightshift.kernels.suites.definitions import definitions_in
    from nightshift.version import commit

    start = time.monotonic()
    definitions, _ = definitions_in(args.folder)
    places = {path.stem: str(path) for path in (args.folder / "definitions").rglob("*.json")}
    kernels = {name: family.kernel.name for name, d in definitions.items() if (family := family_of(d)) is not None}
    found = serving_rows.rows_in(args.out)
    code = code_sha256()
    rows = {name: row for name, row in found.items() if row["status"] not in AGAIN and row.get("code") == code}
    configs = {name: row.get("config") for name, row in found.items() if row["status"] == "faster"}
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    left = [name for name in kernels if name not in rows and re.search(args.only, name)]
    left.sort(key=lambda name: (name not in configs, name))
    for name in serving_rows.in_turn(left, kernels.__getitem__, ORDER):
        waiting.put(name)
    lock = threading.Lock()

    def work(shared: str) -> None:
        given = [str(args.folder), "--worker", shared, "--device", args.device, "--out", str(args.out)]
        given += ["--key", str(args.key)] if args.key is not None else []
        worker = serving_rows.Worker("benchmarks.serving_kernels", *given)
        while (left := args.until - (time.monotonic() - start)) > EACH_S / 6:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            asked = {"key": name, "definition": places[name], "config": configs.get(name)}
            row = {
                "kernel": kernels[name],
                "code": code,
                "commit": commit(),
                "times": [],
                **worker.ask(asked, min(EACH_S, left)),
            }
            with lock:
                if row.get("reason") != "limit" or left > EACH_S:
                    rows[row.pop("key")] = row
                    serving_rows.save(
                        args.out, "serving_kernels", args.device, figures(rows, len(kernels)), rows=rows
                    )
                print(name, row["status"], row.get("took_s"), row["detail"][:100], flush=True)
        worker.close()

    with tempfile.TemporaryDirectory(prefix="serving-") as shared:
        threads = [threading.Thread(target=work, args=[shared]) for _ in range(args.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return figures(rows, len(kernels))


def main() -> None:
    parser = serving_rows.parser(__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--key", type=Path, help="private key that signs certificates")
    parser.add_argument("--only", default="", help="a pattern of the names of the definitions to judge")
    parser.add_argument("--worker", type=Path, help="of this benchmark itself")
    args = parser.parse_args()
    if args.worker is not None:
        certificates = args.out.with_name(f"{args.out.stem}_certificates")
        serving_rows.serve(Court(args.folder, args.worker, args.device, args.key, certificates).answer)
        return
    print(json.dumps(judge_all(args)))


if __name__ == "__main__":
    main()
