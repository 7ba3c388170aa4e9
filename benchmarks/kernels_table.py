"""Our kernels beside their peers, row by row, in one run: eager, torch.compile, max-autotune, Liger, and ours.

    python -m benchmarks.kernels_table [--only softmax …] [--tables FILE] [--top 3] [--out FILE]
    python -m benchmarks.kernels_table --only anchors backward ...               # the rows that we are held to
    python -m benchmarks.kernels_table --tiny --only rmsnorm_backward --out FILE  # a CPU: every part, no times

For each row the best known configuration gets a whole verdict of the judge (correctness in all its stages, then the
timed race against every peer that is near the best); where it is refused, the next best does, and the row says so.
A row that comes out close to its best peer is raced again on other memory (`benchmarks.kernels_close`).
Peers that are not near are told with the time that they take alone. A copy of equal bytes is timed beside each row,
by the same clock. Each GPU has a judge of its own and takes one row after the other; a row's peers and ours run on
one GPU. Needs CUDA GPUs. Writes benchmarks/results/kernels_table.json, after every row.

Ten minutes of one H200 (R=benchmarks/results, OUT a folder that comes back) sweep what changed and race what won,
some 25 s a row; ten minutes of two H200s race the whole table:

    python3 -m benchmarks.kernels_tables --single --out $OUT/swept --seconds 60 --limit 90 --only reduce_sum rmsnorm
    python3 -m benchmarks.kernels_table --top 3 --more 4 --seconds 400 --out $OUT/table.json \
        --tables $R/kernels_tables $OUT/swept/tables.jsonl --only reduce_sum rmsnorm
    python3 -m benchmarks.kernels_table --seconds 560 --tables $R/kernels_tables --only anchors backward

Then, anywhere: `python -m benchmarks.kernels_best --import swept/tables.jsonl`, commit the tables, `make docs`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing as mp
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels_best import best
from benchmarks.kernels_close import Choice, Done, elsewhere, improve, row_json, written
from benchmarks.kernels_compile import own_gpu
from benchmarks.kernels_rows import OUT, dearest_first, resummarise, rows, summary
from nightshift.kernels.generate import best_measured
from nightshift.kernels.generate.base import GeneratorError
from nightshift.kernels.judge.host.replay import timed
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import FULL_GPU, INTERPRETER, QUICK_GPU
from nightshift.kernels.judge.race.contest import FULL
from nightshift.kernels.loop.optimise import TINY
from nightshift.kernels.ops.families import interprets
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case


def from_tables(paths: list[Path], top: int) -> dict[str, list[Choice]]:
    """The fastest configurations of each row over all families' tables; a later path's figure counts.

    A path is a folder of tables or a file of lines (`benchmarks.kernels_tables --single`). The best of a second
    family comes third, in case the judge refuses the first family's.
    """
    found: dict[str, dict[str, best_measured.BestMeasured]] = {}
    for path in (p for p in paths if p.exists()):
        for part in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            for table in map(json.loads, part.read_text().splitlines()):
                for item in best(table, top):
                    key = f"{item.family} {sorted(item.config.items())}"
                    found.setdefault(f"{item.problem} {item.case}", {})[key] = item
    chosen = {}
    for key, measured in found.items():
        items = sorted(measured.values(), key=lambda k: k.seconds)
        others = [k for k in items if k.family != items[0].family][:2]
        first = [k for k in items[:top] if k not in others]
        chosen[key] = [(k.family, dict(k.config)) for k in first[:2] + others[:1] + first[2:] + others[1:]]
    return chosen


def pass_seconds(size_bytes: int, flush: torch.Tensor) -> tuple[float, float]:
    """A copy that moves (reads and writes) that many bytes, and an addition in place, by the race's clock.

    The shortest of three medians: another thread's Python can hold up the queueing of all of one's calls, which
    makes a pass longer and our kernels look nearer to it, never shorter.
    """
    source = torch.arange(max(1, size_bytes // 16), dtype=torch.int64, device="cuda")
    target = torch.empty_like(source)
    copied, changed = (lambda: target.copy_(source)), (lambda: source.add_(1))
    looks = [[statistics.median(timed([call] * 21, flush)) for call in (copied, changed)] for _ in range(3)]
    return min(look[0] for look in looks), min(look[1] for look in looks)


def judged(
    judge: Judge, problem: str, case: Case, choices: list[Choice], request: Request, passes_s: tuple[float, float]
) -> dict[str, Any]:
    """A row: the first configuration that the judge takes and races, beside its peers; and which it refused."""
    began = time.time()
    judge.solo(named(problem), case)
    ready = time.time() - began
    made: dict[str, Any] = {"problem": problem, "case": str(case), "status": "none"}
    refused = []
    for choice in choices:
        verdict = judge.verdict(written(problem, case, choice), named(problem), request)
        if verdict.refused or not verdict.comparisons:
            told = f"{verdict.reason}: {verdict.detail}"
            refused.append({"family": choice[0], "config": choice[1], "detail": told})
            continue
        made = row_json(problem, case, judge, verdict, choice, passes_s) | {"peers_took_s": ready}
        break
    return {**made, "refused": refused}


def choices_of(board: str, problem: str, case: Case, tables: dict[str, list[Choice]], count: int) -> list[Choice]:
    """What to try for a row, the most promising first: its tables' best, else what neighbouring shapes teach, else
    a spread over each family's space."""
    if f"{problem} {case}" in tables:
        return tables[f"{problem} {case}"]
    near = [(k.family, dict(k.config)) for k in best_measured.neighbours(board, problem, case)[:count]]
    if near:
        return near
    found: list[Choice] = []
    for author in best_measured.templates(board, problem, case):
        with contextlib.suppress(GeneratorError):
            space = author.family.space(problem, case)
            found += [(author.name, dict(config)) for config, _ in author.choose(space, [], count)]
    return found


def refused_before(last: Path = OUT) -> list[tuple[str, str, str, dict[str, int | str]]]:
    """What the judge refused in the last run: it would cost another run its time to refuse it again."""
    found = json.loads(last.read_text())["rows"] if last.exists() else []
    return [(r["problem"], r["case"], x["family"], x["config"]) for r in found for x in r.get("refused", ())]


def dry(only: list[str], out: Path) -> None:
    """Every row once on a CPU, on Triton's interpreter and small shapes: much that would stop a run shows here."""
    made = []
    with Judge("cpu", compiled=False, interpret=True) as judge:
        for problem, case in rows(only):
            small = Case.of(case.dtype, **{k: min(v, {"m": 6}.get(k, 64)) for k, v in case.params})
            request = Request(INTERPRETER, TINY, cases=(small,))
            choices = [c for c in choices_of("none", problem, small, {}, 100) if interprets(c[0])]
            made.append(judged(judge, problem, small, choices[:1], request, (math.nan, math.nan)))
            print({k: v for k, v in made[-1].items() if k in ("problem", "case", "status", "refused")}, flush=True)
            out.write_text(json.dumps({"rows": made, "summary": summary(made)}, indent=1, default=str) + "\n")


def serve(gpu: int, todo: Any, told: Any, full: bool, top: int, until_s: float, threads: int) -> None:
    """One GPU's judge: rows from a queue until it gets None. With several threads one row is examined while another
    waits for its compilers; whatever is timed has the GPU alone (`kernels.judge.race.gpu_access`)."""
    own_gpu(gpu)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"/tmp/inductor-{os.getpid()}")
    sys.setswitchinterval(5e-4)  # a race's own Python must not wait long for another thread's
    with Judge("cuda") as judge:
        told.put(("environment", judge.environment.to_json()))
        done: list[Done] = []
        flush = judge.flush()
        scope = FULL_GPU if full else QUICK_GPU
        assert flush is not None

        def note(word: str, value: Any) -> None:
            told.put((word, value))

        def work() -> None:
            while (item := todo.get()) is not None:
                problem, case, choices = item
                try:
                    with judge.timing_lock, judge.quiet.alone():
                        passes_s = pass_seconds(named(problem).compulsory_bytes(case), flush)
                    request = Request(scope, FULL, cases=(case,))
                    made = judged(judge, problem, case, choices[:top], request, passes_s) | {"gpu": gpu}
                    told.put(("row", made))
                    tried = [(x["family"], x["config"]) for x in (made, *made["refused"]) if "family" in x]
                    done.append(Done(made, problem, case, [c for c in choices if c not in tried]))
                except Exception as error:  # noqa: BLE001  one row's fault must not cost the others
                    fault = {"status": "broken", "detail": repr(error)[:500]}
                    told.put(("row", {"problem": problem, "case": str(case), **fault}))
                torch.cuda.empty_cache()

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        improve(judge, done, note, scope, (time.time() + until_s) / 2)
        elsewhere(judge, done, note, until_s)
    told.put(("end", gpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cases", nargs="*", default=[], metavar="TEXT", help='only cases like "k=2048"')
    parser.add_argument("--tables", type=Path, nargs="*", default=[])
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--more", type=int, default=6, help="further configurations for rows that lose")
    parser.add_argument("--merge", action="store_true", help="keep the rows that --out already holds")
    parser.add_argument("--quick", action="store_true", help="a smaller examination, for a first look")
    parser.add_argument("--threads", type=int, default=1, help="rows at a time, each GPU")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--commit", default="", help="written into every row that is judged")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--summarise", action="store_true", help="only write the summary of --out again; no GPU")
    parser.add_argument("--tiny", action="store_true", help="a dry run on a CPU; writes --out")
    options = parser.parse_args()
    if options.tiny:
        if options.out == OUT:
            parser.error("--tiny: name a file with --out")
        dry(options.only, options.out)
        return
    if options.summarise:
        resummarise(options.out)
        return
    began = time.time()
    tables = from_tables(options.tables, options.top + options.more) if options.tables else {}
    board = torch.cuda.get_device_name(0)
    context = mp.get_context("spawn")
    until_s = began + options.seconds - 25.0
    todo: Any = context.Queue()
    told: Any = context.Queue()
    work = []
    passed_over = refused_before()
    for problem, case in dearest_first(rows(options.only, options.cases)):
        choices = choices_of(board, problem, case, tables, options.top + options.more)
        choices = [c for c in choices if (problem, str(case), *c) not in passed_over] or choices
        if choices:
            work.append((problem, case, choices))
    for item in work:
        todo.put(item)
    gpus = torch.cuda.device_count()
    judges = [
        context.Process(
            target=serve, args=(g, todo, told, not options.quick, options.top, until_s, options.threads)
        )
        for g in range(gpus)
    ]
    for judge in judges:
        judge.start()
        for _ in range(options.threads):
            todo.put(None)
    before = json.loads(options.out.read_text())["rows"] if options.merge and options.out.exists() else []
    number = 1 + max((r["run"] for r in before), default=0)
    record: dict[str, Any] = {"gpus": gpus, "rows": before}
    ended = 0
    while ended < gpus and time.time() - began < options.seconds:
        try:
            word, value = told.get(timeout=1.0)
        except Exception:  # noqa: BLE001  queue.Empty
            if not any(judge.is_alive() for judge in judges):
                break
            continue
        if word == "end":
            ended += 1
        elif word == "tried":
            print(value, flush=True)
        elif word == "environment":
            record["environment"] = value
        else:
            same = [r for r in record["rows"] if (r["problem"], r["case"]) != (value["problem"], value["case"])]
            record["rows"] = [*same, {**value, "run": number, "commit": options.commit}]
            record["summary"] = summary(record["rows"])
            record["took_s"] = round(time.time() - began, 1)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
            told_ = {k: round(v, 2) for k, v in value.get("peers_us", {}).items()}
            print(
                f"{time.time() - began:5.0f} {value['problem']} {value['case']}: {value['status']} ours "
                f"{value.get('ours_us') or math.nan:.2f} {told_} of copy {value.get('of_copy') or math.nan:.3f} "
                f"{value.get('took_s', 0):.0f}+{value.get('peers_took_s', 0):.0f} s {value.get('detail', '')[:90]} "
                f"{str(value.get('refused') or '')[:300]}",
                flush=True,
            )
    print(json.dumps(record.get("summary")), f"{time.time() - began:.0f} s", flush=True)
    for judge in judges:
        judge.kill()
    resummarise(options.out)


if __name__ == "__main__":
    main()
